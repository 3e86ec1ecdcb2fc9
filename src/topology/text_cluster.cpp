// What several machines have beyond one: which are alike, what NVLinks they share, their network.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "topology/text_parts.hpp"

namespace sidestep::topology {

const char* where_from(const Topology& topology) {
    // What a built-in machine says of itself, as it is or in a file.
    return topology.parts().properties.count("description") != 0 ? "emulated" : "recorded";
}

std::string headline(const Outline& outline) {
    const Topology& topology = outline.topology();
    const std::size_t machines = outline.nodes().size();
    return fmt::format("{}{}: {}{}", topology.name(),
                       topology.emulated() ? fmt::format(" ({})", where_from(topology)) : "",
                       count_words(static_cast<std::size_t>(topology.gpu_count()), DeviceKind::gpu),
                       machines > 1 ? fmt::format(" in {} machines", machines) : "");
}

std::string network_words(const Outline& outline) {
    const NetworkSummary network = summarize_network(outline);
    if (network.leaves.empty()) return "";
    std::string text = network.rails > 1
                           ? fmt::format("{} rails, a leaf switch for each in every unit; ", network.rails)
                           : std::string();
    const auto counted = [](std::size_t count, const char* one, const char* plural) {
        return fmt::format("{} {}{}", count, one, count == 1 ? "" : plural);
    };
    text += counted(network.card_links, "link", "s") +
            fmt::format(" of network cards, at least {} each; ", format_rate(network.card_gb_per_s)) +
            counted(network.leaves.size(), "leaf switch", "es");
    if (!network.spines.empty()) text += fmt::format(", {}", counted(network.spines.size(), "spine", "s"));
    if (!network.cores.empty()) text += fmt::format(", {}", counted(network.cores.size(), "core", "s"));
    return text;
}

namespace {

// What is joined by NVSwitches that machines share: a rack, or a cluster's every rack.
struct NvlinkDomain {
    std::set<DeviceId> gpus;
    std::set<int> machines;
    std::size_t switches = 0;
};

std::vector<NvlinkDomain> nvlink_domains(const Outline& outline) {
    // By a machine of each: machines that have a switch in common are of one domain.
    std::map<int, int> leader;
    const auto find = [&](int node) {
        while (leader.emplace(node, node).first->second != node) node = leader[node];
        return node;
    };
    std::vector<std::pair<DeviceId, int>> switches;  // with one of their machines
    for (const DeviceId id : outline.of(DeviceKind::nvswitch, -1)) {
        std::optional<int> first;
        for (const std::uint32_t position : outline.links_of(id)) {
            const Device& far = outline.device(outline.far_end(position, id));
            if (far.kind != DeviceKind::gpu) continue;
            if (!first) first = far.node;
            leader[find(far.node)] = find(*first);
        }
        if (first) switches.emplace_back(id, *first);
    }
    std::map<int, NvlinkDomain> domains;
    for (const auto& [id, machine] : switches) {
        NvlinkDomain& domain = domains[find(machine)];
        ++domain.switches;
        for (const std::uint32_t position : outline.links_of(id)) {
            const DeviceId far = outline.far_end(position, id);
            if (outline.device(far).kind != DeviceKind::gpu) continue;
            domain.gpus.insert(far);
            domain.machines.insert(outline.device(far).node);
        }
    }
    std::vector<NvlinkDomain> all;
    for (auto& [machine, domain] : domains) all.push_back(std::move(domain));
    return all;
}

}  // namespace

std::string shared_nvlink_words(const Outline& outline) {
    const auto domains = nvlink_domains(outline);
    if (domains.empty()) return "";
    const NvlinkDomain& first = domains.front();
    const bool alike = std::all_of(domains.begin(), domains.end(), [&](const NvlinkDomain& domain) {
        return domain.gpus.size() == first.gpus.size() && domain.machines.size() == first.machines.size() &&
               domain.switches == first.switches;
    });
    if (!alike) return fmt::format("{} NVLink domains of several kinds", domains.size());
    return fmt::format("{}{} of {} machine{} share {}",
                       domains.size() > 1 ? fmt::format("{} NVLink domains: in each ", domains.size()) : "",
                       count_words(first.gpus.size(), DeviceKind::gpu), first.machines.size(),
                       first.machines.size() == 1 ? "" : "s",
                       count_words(first.switches, DeviceKind::nvswitch));
}

std::string cluster_text(const Outline& outline) {
    if (outline.nodes().size() < 2) return "";
    std::vector<Row> rows;
    const auto groups = alike_machines(outline);
    constexpr std::size_t max_groups = 16;
    for (std::size_t i = 0; i < std::min(groups.size(), max_groups); ++i) {
        const int first = groups[i].front();
        std::string words;
        for (const DeviceKind kind :
             {DeviceKind::gpu, DeviceKind::nic, DeviceKind::drive, DeviceKind::cpu, DeviceKind::nvswitch}) {
            const std::size_t count = outline.of(kind, first).size();
            if (count > 0) words += (words.empty() ? "" : ", ") + count_words(count, kind);
        }
        rows.push_back(
            {node_words(groups[i]),
             (groups[i].size() > 1 ? fmt::format("{} alike, each ", groups[i].size()) : "") + words});
    }
    if (groups.size() > max_groups)
        rows.push_back({fmt::format("{} further kinds of machine", groups.size() - max_groups)});
    std::string text = fmt::format("\nmachines\n{}", table(rows, "  "));
    if (const std::string words = shared_nvlink_words(outline); !words.empty())
        text += "\nNVLink between machines\n  " + words + "\n";
    if (const std::string words = network_words(outline); !words.empty())
        text += "\nnetwork between machines\n  " + words + "\n";
    return text;
}

}  // namespace sidestep::topology
