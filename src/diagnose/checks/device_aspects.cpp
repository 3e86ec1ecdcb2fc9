#include "diagnose/checks/device_aspects.hpp"

#include <fmt/format.h>

#include <algorithm>

#include <sidestep/units.hpp>

#include "topology/link_rates.hpp"

namespace sidestep::diagnose {

namespace {

std::string property(const Device& device, std::string_view name) {
    const auto found = device.properties.find(name);
    return found == device.properties.end() ? "" : found->second;
}

// "gen5 x16" of a device's own link, where no property tells.
std::string link_words(const Link& link) {
    const auto generation = topology::pcie_generation_of(link.gb_per_s, link.width);
    return generation ? fmt::format("gen{} x{}", *generation, link.width) : "";
}

}  // namespace

bool has_aspects(const Device& device) {
    return device.kind == DeviceKind::gpu || device.kind == DeviceKind::nic ||
           device.kind == DeviceKind::drive;
}

Aspects aspects_of(const Topology& topology, DeviceId id) {
    const Device& device = topology.device(id);
    std::string now = property(device, "pcie_now");
    std::string best = property(device, "pcie_max");
    int nvlinks = 0;
    for (const Link& link : topology.links()) {
        if (link.a != id && link.b != id) continue;
        if (link.kind == LinkKind::nvlink) nvlinks += link.width;
        if (link.kind != LinkKind::pcie) continue;
        if (now.empty()) now = link_words(link);
        if (best.empty()) best = link_words(link);
    }
    Aspects aspects = {
        {"lanes", now.empty() ? "" : now.substr(now.find('x'))},
        {"best PCIe link", best},
        {"NVLinks", nvlinks > 0 || device.kind == DeviceKind::gpu ? std::to_string(nvlinks) : ""},
        {"memory", device.memory > 0 ? format_bytes(device.memory) : ""},
        {"BAR1", property(device, "bar1")},
        {"rate of port 1", property(device, "port1.rate")},
        {"state of port 1", property(device, "port1.state")},
        {"MIG", property(device, "mig")},
    };
    std::erase_if(aspects, [](const auto& aspect) { return aspect.second.empty(); });
    return aspects;
}

std::vector<OddOne> odd_ones(const std::vector<Aspects>& alike) {
    std::map<std::string, std::map<std::string, std::vector<std::size_t>>> values;
    for (std::size_t i = 0; i < alike.size(); ++i)
        for (const auto& [aspect, value] : alike[i]) values[aspect][value].push_back(i);
    std::vector<OddOne> odd;
    for (const auto& [aspect, by_value] : values) {
        const auto most =
            std::max_element(by_value.begin(), by_value.end(),
                             [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
        if (most->second.size() * 2 <= alike.size()) continue;
        for (const auto& [value, indices] : by_value) {
            if (value == most->first) continue;
            for (const std::size_t index : indices) odd.push_back({index, aspect, value, most->first});
        }
    }
    return odd;
}

double own_link_rate(const Topology& topology, DeviceId id) {
    const auto above = topology.parent(id);
    return above ? topology.pair(id, *above).gb_per_s : 0;
}

}  // namespace sidestep::diagnose
