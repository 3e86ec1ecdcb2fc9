// What the attributes of a topology file say.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sidestep::topology::nccl_xml {

// A whole number, decimal or 0x..., as the C library's strtol() with base 0 takes it; nullopt where anything
// is left over.
std::optional<long> whole_number(std::string_view text);

// A PCI address in the form NCCL and Linux use: "0000:1b:00.0", in lower case, with the domain in four digits
// where that is enough (NVML writes eight). nullopt for what is none.
std::optional<std::string> bus_id(std::string_view text);

// Whether the target of an NVLink is one that NVML hides: "fffffff:ffff:ff" in virtual machines and racks.
bool is_hidden(std::string_view target);

// The generation that "16 GT/s" or "16.0 GT/s PCIe" stands for; nullopt for "", "Unknown" and the like.
std::optional<int> generation_of(std::string_view link_speed);
// And back: "16.0 GT/s PCIe".
std::string_view link_speed(int generation);

// The classes of PCI devices, as much of them as counts: "0x0302", "0x06".
bool is_class(std::string_view pci_class, std::string_view prefix);
constexpr std::string_view display_class = "0x03";
constexpr std::string_view accelerator_class = "0x12";  // AMD Instinct
constexpr std::string_view network_class = "0x02";
constexpr std::string_view drive_class = "0x0108";
constexpr std::string_view nvlink_class = "0x0680";        // an NVSwitch
constexpr std::string_view nvlink_cpu_class = "0x068001";  // the NVLinks of an IBM processor
constexpr std::string_view bridge_class = "0x0604";

}  // namespace sidestep::topology::nccl_xml
