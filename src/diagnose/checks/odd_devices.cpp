// One device among several alike that is slower, narrower or smaller than the others.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "diagnose/checks/gpu_pairs.hpp"
#include "diagnose/checks/hardware_looks.hpp"
#include "topology/link_rates.hpp"

namespace sidestep::diagnose {

namespace {

constexpr std::size_t fewest_alike = 3;  // of two nobody can say which is the odd one

std::string property(const Device& device, std::string_view name) {
    const auto found = device.properties.find(name);
    return found == device.properties.end() ? "" : found->second;
}

// "gen5 x16" -> "x16": the generation sinks while a GPU idles.
std::string lanes_of(const std::string& pcie) {
    const auto at = pcie.find('x');
    return at == std::string::npos ? "" : pcie.substr(at);
}

// What the link to the device above carries; 0 where there is none.
double link_rate(const Topology& topology, DeviceId id) {
    const auto above = topology.parent(id);
    return above ? topology.pair(id, *above).gb_per_s : 0;
}

// What alike devices have alike: aspect -> value. What is not told is left out.
using Aspects = std::map<std::string, std::string>;
Aspects aspects_of(const Topology& topology, DeviceId id) {
    const Device& device = topology.device(id);
    Aspects aspects = {
        {"lanes", lanes_of(property(device, "pcie_now"))},
        {"best link", property(device, "pcie_max")},
        {"NVLinks", property(device, "nvlinks")},
        {"BAR1", property(device, "bar1")},
        {"rate of port 1", property(device, "port1.rate")},
        {"state of port 1", property(device, "port1.state")},
        {"MIG", property(device, "mig")},
    };
    if (device.memory > 0) aspects["memory"] = format_bytes(device.memory);
    // Where /sys says nothing of the link, its rate does.
    if (aspects["lanes"].empty()) {
        const double rate = link_rate(topology, id);
        if (rate > 0) aspects["link"] = fmt::format("{:.1f} GB/s", rate);
    }
    std::erase_if(aspects, [](const auto& aspect) { return aspect.second.empty(); });
    return aspects;
}

struct Odd {
    DeviceId device = 0;
    std::string aspect;
    std::string own;
    std::string others;
};

// Those of a group whose value is not that of more than half of it.
void compare(const Topology& topology, const std::vector<DeviceId>& group, std::vector<Odd>& odd) {
    std::map<std::string, std::map<std::string, std::vector<DeviceId>>> values;
    for (const DeviceId id : group)
        for (const auto& [aspect, value] : aspects_of(topology, id)) values[aspect][value].push_back(id);
    for (const auto& [aspect, by_value] : values) {
        const auto most =
            std::max_element(by_value.begin(), by_value.end(),
                             [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
        if (by_value.size() < 2 || most->second.size() * 2 <= group.size()) continue;
        for (const auto& [value, ids] : by_value) {
            if (value == most->first) continue;
            for (const DeviceId id : ids) odd.push_back({id, aspect, value, most->first});
        }
    }
}

}  // namespace

Outcome look_odd_devices(const Evidence& evidence) {
    const Topology& topology = evidence.topology;
    std::map<std::pair<DeviceKind, std::string>, std::vector<DeviceId>> groups;
    for (DeviceId id = 0; id < topology.devices().size(); ++id) {
        const Device& device = topology.device(id);
        const bool counts = device.kind == DeviceKind::gpu || device.kind == DeviceKind::nic ||
                            device.kind == DeviceKind::drive;
        // Cards of different link layers have different jobs.
        if (counts) groups[{device.kind, device.model + property(device, "port1.link_layer")}].push_back(id);
    }
    std::erase_if(groups, [](const auto& group) { return group.second.size() < fewest_alike; });
    if (groups.empty()) return does_not_apply("there are no three devices alike");
    std::vector<Odd> odd;
    for (const auto& [kind, group] : groups) compare(topology, group, odd);
    if (odd.empty()) {
        Outcome outcome = pass("devices of one product are alike");
        for (const auto& [kind, group] : groups)
            outcome.saw(kind.second.empty() ? std::string(to_string(kind.first)) : kind.second,
                        fmt::format("{} alike", group.size()));
        return outcome;
    }
    Outcome outcome = warn("");
    std::vector<std::string> names;
    double lost = 0;
    for (const Odd& one : odd) {
        const std::string& name = topology.device(one.device).name;
        names.push_back(fmt::format("{}: {} {}, the others {}", name, one.aspect, one.own, one.others));
        outcome.saw(name, fmt::format("{} {}; the others {}", one.aspect, one.own, one.others));
        double best = 0;
        for (const auto& [kind, group] : groups)
            if (std::find(group.begin(), group.end(), one.device) != group.end())
                for (const DeviceId other : group) best = std::max(best, link_rate(topology, other));
        lost = std::max(lost, best - link_rate(topology, one.device));
    }
    outcome.summary = "not like its likes: " + listed(names, 3);
    if (lost > 0) outcome.cost_gb_per_s = lost;
    return outcome;
}

}  // namespace sidestep::diagnose
