// What numbers and names that Linux shows stand for.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <sidestep/topology.hpp>

namespace sidestep::topology {

// What a PCI class is to us: "0x030200" and so on; nullopt for what moves no bytes of ours.
std::optional<DeviceKind> kind_of_class(long pci_class, bool is_nvidia);

// "ConnectX-7", or "PCI 15b3:1021" for what is not in our short list.
std::string pci_model(long vendor, long device);

// The processor's name in the text of /proc/cpuinfo; empty where it has none.
std::string cpu_model(std::string_view cpuinfo);

// The number after `prefix`: 3 for "node3". nullopt for other names.
std::optional<int> numbered(std::string_view name, std::string_view prefix);

}  // namespace sidestep::topology
