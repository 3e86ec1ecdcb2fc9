#include "topology/pci_names.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>

namespace sidestep::topology {

namespace {

struct PciName {
    long vendor;
    long device;
    std::string_view name;
};

// From pci.ids, which every Linux distribution ships. Only what a reader of the list would miss.
constexpr std::array<PciName, 13> pci_table = {{
    {0x10de, 0x1af1, "NVIDIA NVSwitch 2"},
    {0x10de, 0x22a3, "NVIDIA NVSwitch 3"},
    {0x10de, 0x2901, "NVIDIA B200"},
    {0x15b3, 0x1017, "Mellanox ConnectX-5"},
    {0x15b3, 0x1019, "Mellanox ConnectX-5 Ex"},
    {0x15b3, 0x101b, "Mellanox ConnectX-6"},
    {0x15b3, 0x101d, "Mellanox ConnectX-6 Dx"},
    {0x15b3, 0x101e, "Mellanox ConnectX virtual function"},
    {0x15b3, 0x1021, "NVIDIA ConnectX-7"},
    {0x15b3, 0x1023, "NVIDIA ConnectX-8"},
    {0x15b3, 0xa2dc, "NVIDIA BlueField-3"},
    {0x1af4, 0x1000, "virtio network"},
    {0x1af4, 0x1041, "virtio network"},
}};

}  // namespace

std::optional<DeviceKind> kind_of_class(long pci_class, bool is_nvidia) {
    switch (pci_class >> 8) {
        case 0x0300:
        case 0x0302:
            return is_nvidia ? std::optional(DeviceKind::gpu) : std::nullopt;
        case 0x0680:
            return is_nvidia ? std::optional(DeviceKind::nvswitch) : std::nullopt;
        case 0x0200:
        case 0x0207:
            return DeviceKind::nic;
        case 0x0108:
            return DeviceKind::drive;
        default:
            return std::nullopt;
    }
}

std::string pci_model(long vendor, long device) {
    for (const PciName& entry : pci_table) {
        if (entry.vendor == vendor && entry.device == device) return std::string(entry.name);
    }
    return vendor == 0 ? "" : fmt::format("PCI {:04x}:{:04x}", vendor, device);
}

std::string cpu_model(std::string_view cpuinfo) {
    const auto key = cpuinfo.find("model name");
    if (key == std::string_view::npos) return {};
    const auto end = cpuinfo.find('\n', key);
    const auto line = cpuinfo.substr(key, end == std::string_view::npos ? end : end - key);
    const auto colon = line.find(": ");
    return colon == std::string_view::npos ? std::string() : std::string(line.substr(colon + 2));
}

std::optional<int> numbered(std::string_view name, std::string_view prefix) {
    if (name.substr(0, prefix.size()) != prefix) return std::nullopt;
    const std::string_view digits = name.substr(prefix.size());
    int number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error != std::errc() || end != digits.data() + digits.size() || number < 0) return std::nullopt;
    return number;
}

}  // namespace sidestep::topology
