#include "diagnose/checks/pci_distance.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "diagnose/checks/gpu_direct.hpp"
#include "diagnose/checks/gpu_pairs.hpp"

namespace sidestep::diagnose {

namespace {

struct Nearest {
    DeviceId gpu = 0;
    DeviceId other = 0;
    PathClass kind = PathClass::sys;
};

Nearest nearest_to(const Topology& topology, DeviceId gpu, const std::vector<DeviceId>& others) {
    Nearest nearest{gpu, others.front(), topology.pair_class(gpu, others.front()).kind};
    for (const DeviceId other : others) {
        const PathClass kind = topology.pair_class(gpu, other).kind;
        if (kind < nearest.kind) nearest = {gpu, other, kind};
    }
    return nearest;
}

// Whether the GPU is joined by C2C to the CPU that one of the others hangs at: its bytes then do not take the
// PCIe tree, whatever class that gives the pair.
bool at_own_cpu(const Topology& topology, DeviceId gpu, const std::vector<DeviceId>& others) {
    if (!has_c2c(topology, gpu)) return false;
    const auto cpu = topology.cpu_of(gpu);
    return std::any_of(others.begin(), others.end(),
                       [&](DeviceId other) { return topology.cpu_of(other) == cpu; });
}

// The rate of the slower of the two devices' own links, less what the path between them carries. 0 where that
// is as fast; links between sockets carry other traffic too, which nothing here knows of.
double lost_on_path(const Topology& topology, const Nearest& nearest) {
    const auto own_link = [&](DeviceId device) {
        const auto above = topology.parent(device);
        return above ? topology.pair(device, *above).gb_per_s : 0;
    };
    const double best = std::min(own_link(nearest.gpu), own_link(nearest.other));
    return std::max(0.0, best - topology.pair(nearest.gpu, nearest.other).gb_per_s);
}

}  // namespace

bool hides_tree(const Evidence& evidence) {
    const Topology& topology = evidence.topology;
    const auto is_switch = [](const Device& device) { return device.kind == DeviceKind::pcie_switch; };
    const bool switches = std::any_of(topology.devices().begin(), topology.devices().end(), is_switch);
    if (switches) return false;
    if (evidence.from_topology) return is_guest(evidence);
    return is_guest(evidence) || !evidence.files.exists("/sys/bus/pci/devices");
}

Outcome behind_hypervisor(const std::string& what) {
    Outcome outcome = unknown(
        fmt::format("which {} is near which GPU cannot be seen: the PCI tree is made up or not shown", what));
    outcome.saw("/sys/bus/pci/devices", "no PCIe switch");
    outcome.remedy = "See the check vm-hides-switches; measure with each card and GPU to find the near ones.";
    outcome.command = "sidestep topo";
    return outcome;
}

Outcome judge_distances(const Evidence& evidence, const std::vector<DeviceId>& others,
                        const DistanceRule& rule) {
    const Topology& topology = evidence.topology;
    std::vector<Seen> seen;
    std::vector<std::string> far;
    PathClass worst = PathClass::self;
    double lost = 0;
    for (const DeviceId gpu : gpus_of(topology)) {
        const Nearest nearest = nearest_to(topology, gpu, others);
        const Device& device = topology.device(gpu);
        seen.push_back(
            {fmt::format("{} ({}) to {} ({})", device.name, device.bus_id,
                         topology.device(nearest.other).name, topology.device(nearest.other).bus_id),
             to_string(PairClass{nearest.kind, 0})});
        if (nearest.kind <= rule.farthest || at_own_cpu(topology, gpu, others)) continue;
        far.push_back(device.name);
        worst = std::max(worst, nearest.kind);
        lost = std::max(lost, lost_on_path(topology, nearest));
    }
    Outcome outcome;
    if (far.empty()) {
        outcome = pass(fmt::format("every GPU has a near {}", rule.what));
    } else {
        outcome = warn(fmt::format("the nearest {} of {} is as far as {}", rule.what, listed(far),
                                   to_string(PairClass{worst, 0})));
        if (lost > 0) outcome.cost_gb_per_s = lost;
    }
    outcome.seen = std::move(seen);
    return outcome;
}

}  // namespace sidestep::diagnose
