// The text that `lspci -vvv` prints, as a topology.
#pragma once

#include <string>
#include <string_view>

#include <sidestep/topology.hpp>

namespace sidestep::topology {

// Whether a text looks like it: the first line starts with the address of a PCI device.
bool is_lspci_text(std::string_view text);

// The PCIe tree of GPUs, network cards and NVMe drives with their links as they are and as they could be, and access
// control of switches, which lspci shows to root alone. NVLinks and memory are not in such a text, and a note says
// so. ErrorCode::invalid_argument where there is no device in it.
Result<Topology> read_lspci(std::string_view text, const std::string& where);

}  // namespace sidestep::topology
