// One device among several alike that is slower, narrower or smaller than the others.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "diagnose/checks/device_aspects.hpp"
#include "diagnose/checks/gpu_pairs.hpp"
#include "diagnose/checks/looks.hpp"

namespace sidestep::diagnose {

namespace {

constexpr std::size_t fewest_alike = 3;  // of two nobody can say which is the odd one

struct Odd {
    DeviceId device = 0;
    std::string aspect;
    std::string own;
    std::string others;
};

void compare(const Topology& topology, const std::vector<DeviceId>& group, std::vector<Odd>& odd) {
    std::vector<Aspects> alike;
    for (const DeviceId id : group) alike.push_back(aspects_of(topology, id));
    for (const OddOne& one : odd_ones(alike))
        odd.push_back({group[one.index], one.aspect, one.own, one.others});
}

}  // namespace

Outcome look_odd_devices(const Evidence& evidence) {
    const Topology& topology = evidence.topology;
    std::map<std::pair<DeviceKind, std::string>, std::vector<DeviceId>> groups;
    for (DeviceId id = 0; id < topology.devices().size(); ++id) {
        const Device& device = topology.device(id);
        if (!has_aspects(device)) continue;
        // Cards of different link layers, and of one port and of two, have different jobs.
        const auto layer = device.properties.find("port1.link_layer");
        const bool two = device.properties.count("port2.link_layer") != 0;
        const std::string job =
            layer == device.properties.end() ? "" : " " + layer->second + (two ? " x2" : "");
        groups[{device.kind, device.model + job}].push_back(id);
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
                for (const DeviceId other : group) best = std::max(best, own_link_rate(topology, other));
        lost = std::max(lost, best - own_link_rate(topology, one.device));
    }
    outcome.summary = "unlike the others of its kind: " + listed(names, 3);
    if (lost > 0) outcome.cost_gb_per_s = lost;
    return outcome;
}

}  // namespace sidestep::diagnose
