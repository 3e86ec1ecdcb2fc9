// The XML that hwloc's lstopo writes, as a topology.
#pragma once

#include <string>
#include <string_view>

#include <sidestep/topology.hpp>

namespace sidestep::topology {

// Whether an XML text is hwloc's: its root is <topology>.
bool is_hwloc_xml(std::string_view text);

// The PCIe tree of GPUs, network cards and NVMe drives, and the NUMA nodes they are at. A link's rate is what hwloc saw
// at that moment; its lanes are guessed from it. ErrorCode::invalid_argument where it is no XML or has no such device.
Result<Topology> read_hwloc_xml(std::string_view text, const std::string& where);

}  // namespace sidestep::topology
