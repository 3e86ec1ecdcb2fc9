#include "topology/nccl_xml/attributes.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <optional>

#include "topology/nccl_xml/products.hpp"
#include "topology/nccl_xml/values.hpp"

namespace sidestep::topology::nccl_xml {

std::string property_name(std::string_view attribute) {
    return "nccl." + std::string(attribute);
}

const std::string* find_property(const Device& device, std::string_view attribute) {
    const auto found = device.properties.find(property_name(attribute));
    return found == device.properties.end() ? nullptr : &found->second;
}

bool is_amd(const Device& gpu) {
    if (const std::string* vendor = find_property(gpu, "vendor")) return whole_number(*vendor) == amd;
    return find_property(gpu, "gcn") != nullptr || gpu.properties.count(gfx) != 0 ||
           gpu.model.substr(0, 4) == "AMD ";
}

int sm_of(const Device& gpu) {
    const auto told = gpu.properties.find(compute_capability);
    if (told == gpu.properties.end()) return 0;
    const std::string_view text = told->second;
    const auto dot = text.find('.');
    const auto major = whole_number(text.substr(0, dot));
    const auto minor =
        dot == std::string_view::npos ? std::optional<long>(0) : whole_number(text.substr(dot + 1));
    const bool sensible = major && minor && *major > 0 && *major < 1000 && *minor >= 0 && *minor < 10;
    return sensible ? static_cast<int>(*major * 10 + *minor) : 0;
}

void set_sm(Device& gpu, int sm) {
    gpu.properties[std::string(compute_capability)] = fmt::format("{}.{}", sm / 10, sm % 10);
}

long network_mb_per_s(const Device& nic) {
    constexpr long max = 1'000'000'000;
    const auto told = nic.properties.find(network_rate);
    if (told != nic.properties.end()) {
        const long rate = whole_number(told->second).value_or(0);
        return rate > 0 && rate <= max ? rate : 0;
    }
    // "400 Gb/sec (4X NDR)", as Linux has it.
    const auto port = nic.properties.find("port1.rate");
    if (port == nic.properties.end()) return 0;
    const double rate = std::strtod(port->second.c_str(), nullptr) * 1000;
    return rate >= 1 && rate <= static_cast<double>(max) ? std::lround(rate) : 0;
}

std::string_view usual_class(const Device& device) {
    switch (device.kind) {
        case DeviceKind::gpu:
            return is_amd(device) ? "0x120000" : "0x030200";
        case DeviceKind::nic:
            return "0x020000";
        case DeviceKind::drive:
            return "0x010802";
        case DeviceKind::nvswitch:
            return "0x068000";
        case DeviceKind::cpu:
        case DeviceKind::host_bridge:
        case DeviceKind::pcie_switch:
        case DeviceKind::net_switch:
            break;
    }
    return "0x060400";
}

}  // namespace sidestep::topology::nccl_xml
