// PCIe links that run slower or narrower than both of their ends can.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string_view>

#include "diagnose/checks/gpu_pairs.hpp"
#include "diagnose/checks/looks.hpp"
#include "topology/link_rates.hpp"
#include "topology/machine_facts_reader.hpp"

namespace sidestep::diagnose {

namespace {

constexpr long redhat = 0x1b36;  // ports that QEMU makes up
constexpr long max_lanes = 32;   // Linux writes 63 or 255 where a device sleeps or does not tell

// Zero: not told.
struct Speed {
    int generation = 0;
    int lanes = 0;

    bool told() const { return generation > 0 && lanes > 0; }
};

std::string folder_of(const std::string& bus_id) {
    return "/sys/bus/pci/devices/" + bus_id;
}

Speed speed_in(const driver::MachineFiles& files, const std::string& bus_id, const char* which) {
    Speed speed;
    const std::string start = fmt::format("{}/{}_link_", folder_of(bus_id), which);
    const std::string rate = files.line(start + "speed").value_or("");
    speed.generation = topology::pcie_generation(std::strtod(rate.c_str(), nullptr)).value_or(0);
    const long lanes = files.number(start + "width").value_or(0);
    if (lanes >= 1 && lanes <= max_lanes) speed.lanes = static_cast<int>(lanes);
    return speed;
}

double rate(Speed speed) {
    const double signalled = topology::pcie_gb_per_s(speed.generation, speed.lanes);
    return signalled * topology::reached_part({0, 1, LinkKind::pcie, speed.lanes, signalled});
}

std::string words(Speed speed) {
    return fmt::format("gen{} x{}", speed.generation, speed.lanes);
}

// A link, named by the bus id of its lower end.
struct PcieLink {
    std::string name;  // "gpu:0", "the switch above gpu:0"
    std::string source;
    bool gpu = false;
    Speed can;
    Speed now;
    int card_lanes = 0;  // more than can.lanes: the slot is narrower than the card
};

// The port above may be made up by a hypervisor, and then claims less than what already runs through it.
void limit_by_port(const driver::MachineFiles& files, const std::string& port, PcieLink& link) {
    if (files.number(folder_of(port) + "/vendor") == redhat) return;
    const Speed max = speed_in(files, port, "max");
    if (!max.told() || max.generation < link.now.generation || max.lanes < link.now.lanes) return;
    link.can.generation = std::min(link.can.generation, max.generation);
    link.can.lanes = std::min(link.can.lanes, max.lanes);
}

// Every link from the device up to the host bridge. Ports come in pairs: those of one switch have no link
// between them, so counted from the device every second step is one.
std::vector<PcieLink> links_above(const Evidence& evidence, DeviceId id, std::set<std::string>& been) {
    const Device& device = evidence.topology.device(id);
    auto walk = topology::pci_walk(evidence.files, device.bus_id);
    if (walk.empty() || walk.back() != device.bus_id) walk = {device.bus_id};
    std::vector<PcieLink> links;
    for (std::size_t below = walk.size(); below >= 1; below -= 2) {
        const std::string& lower = walk[below - 1];
        const bool port_alone = below == 1 && walk.size() > 1;  // a root port without a partner
        if (!port_alone && been.insert(lower).second) {
            PcieLink link;
            link.gpu = device.kind == DeviceKind::gpu && below == walk.size();
            link.name = below == walk.size() ? device.name
                                             : fmt::format("the switch at {} above {}", lower, device.name);
            link.source = folder_of(lower) + "/current_link_*";
            link.can = speed_in(evidence.files, lower, "max");
            link.now = speed_in(evidence.files, lower, "current");
            link.card_lanes = link.can.lanes;
            if (below >= 2) limit_by_port(evidence.files, walk[below - 2], link);
            links.push_back(std::move(link));
        }
        if (below < 2) break;
    }
    return links;
}

// Where /sys does not show the link of a GPU.
void ask_nvml(const Evidence& evidence, DeviceId id, PcieLink& link) {
    const auto facts = nvml_facts(evidence, id);
    if (!facts) return;
    link.can = {facts->pcie_generation, facts->pcie_width};
    link.now = {facts->pcie_generation_now, facts->pcie_width_now};
    link.source = fmt::format("nvmlDeviceGetCurrPcieLinkWidth({})", link.name);
}

// "gen5 x16": what the reader of /sys put into the topology.
Speed speed_of(const Device& device, std::string_view property) {
    Speed speed;
    const auto found = device.properties.find(property);
    if (found == device.properties.end() ||
        std::sscanf(found->second.c_str(), "gen%d x%d", &speed.generation, &speed.lanes) != 2)
        return {};
    return speed;
}

// Where there are no files.
void ask_topology(const Evidence& evidence, DeviceId id, PcieLink& link) {
    const Device& device = evidence.topology.device(id);
    link.can = speed_of(device, "pcie_max");
    link.now = speed_of(device, "pcie_now");
    link.source = "topology";
}

struct Findings {
    std::vector<std::string> slow;  // for sure
    std::vector<std::string> idle;  // perhaps only asleep
    int told = 0;
    double lost = 0;
};

void judge(const PcieLink& link, Findings& findings, Outcome& outcome) {
    if (!link.can.told() || !link.now.told()) return;
    ++findings.told;
    const bool narrow = link.now.lanes < link.can.lanes;
    const bool slow = link.now.generation < link.can.generation;
    const auto saw = [&](const std::string& value) {
        if (outcome.seen.size() < max_seen) outcome.saw(link.source, link.name + ": " + value);
    };
    if (!narrow && !slow) {
        if (link.card_lanes > link.can.lanes)
            saw(fmt::format("{}; the card has {} lanes, its slot {}", words(link.now), link.card_lanes,
                            link.can.lanes));
        return;
    }
    saw(fmt::format("{} now, both ends can do {}", words(link.now), words(link.can)));
    // GPUs slow their links down while they idle; other devices at most to the lowest speed.
    if (!narrow && (link.gpu || link.now.generation == 1)) {
        findings.idle.push_back(link.name);
        return;
    }
    findings.slow.push_back(link.name);
    Speed awake = link.now;
    if (link.gpu) awake.generation = link.can.generation;
    findings.lost = std::max(findings.lost, rate(link.can) - rate(awake));
}

void saw_replays(const Evidence& evidence, Outcome& outcome) {
    for (const DeviceId gpu : gpus_of(evidence.topology)) {
        const auto facts = nvml_facts(evidence, gpu);
        if (facts && facts->pcie_replays.value_or(0) > 0)
            outcome.saw(fmt::format("nvmlDeviceGetPcieReplayCounter({})", evidence.topology.device(gpu).name),
                        std::to_string(*facts->pcie_replays));
    }
}

Outcome conclude(const Evidence& evidence, const Findings& findings, Outcome outcome) {
    if (!findings.slow.empty()) {
        outcome.verdict = Verdict::warn;
        outcome.summary = "PCIe links run below what both ends can do: " + listed(findings.slow);
        outcome.cost_gb_per_s = findings.lost;
        saw_replays(evidence, outcome);
    } else if (!findings.idle.empty()) {
        outcome.verdict = Verdict::unknown;
        outcome.summary =
            "idle links have slowed down, which is no fault by itself: " + listed(findings.idle);
        outcome.remedy =
            "Look again under load: run the doctor while something copies to and from these devices.";
        outcome.command =
            "nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv -l 1";
    } else if (findings.told == 0) {
        outcome.verdict = Verdict::unknown;
        outcome.summary = "no PCIe link shows its speed";
        outcome.saw("/sys/bus/pci/devices/*/current_link_speed", "not shown");
        outcome.remedy = "Look on the host of this virtual machine or sandbox.";
        outcome.command = "lspci -vv | grep -E '^[0-9a-f]|LnkSta:'";
    } else {
        outcome.verdict = Verdict::pass;
        outcome.summary = "PCIe links run at what their slots and devices can do";
        outcome.saw("PCIe links that show their speed", std::to_string(findings.told));
    }
    return outcome;
}

}  // namespace

Outcome look_pcie_links(const Evidence& evidence) {
    if (gpus_of(evidence.topology).empty()) return does_not_apply("there is no GPU");
    Outcome outcome;
    Findings findings;
    std::set<std::string> been;
    for (const DeviceId id : pcie_partners(evidence)) {
        for (PcieLink& link : links_above(evidence, id, been)) {
            if (evidence.from_topology) ask_topology(evidence, id, link);
            if (link.gpu && !(link.can.told() && link.now.told())) ask_nvml(evidence, id, link);
            judge(link, findings, outcome);
        }
    }
    return conclude(evidence, findings, std::move(outcome));
}

}  // namespace sidestep::diagnose
