#include "topology/outline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <set>
#include <unordered_map>

#include "topology/link_rates.hpp"

namespace sidestep::topology {

Outline::Outline(const Topology& topology)
    : topology_(&topology), links_of_(topology.devices().size()), below_(topology.devices().size()) {
    for (std::uint32_t i = 0; i < topology.links().size(); ++i) {
        links_of_[link(i).a].push_back(i);
        links_of_[link(i).b].push_back(i);
    }
    by_kind_.resize(topology.devices().size());
    std::iota(by_kind_.begin(), by_kind_.end(), DeviceId{0});
    std::sort(by_kind_.begin(), by_kind_.end(), [this](DeviceId a, DeviceId b) {
        return std::pair(device(a).kind, device(a).index) < std::pair(device(b).kind, device(b).index);
    });
    std::set<int> nodes;
    for (const DeviceId id : by_kind_) {
        if (const auto above = topology.parent(id)) below_[*above].push_back(id);
        if (device(id).node >= 0) nodes.insert(device(id).node);
    }
    nodes_.assign(nodes.begin(), nodes.end());
}

std::optional<std::uint32_t> Outline::link_up(DeviceId id) const {
    const auto above = topology_->parent(id);
    if (!above) return std::nullopt;
    for (const std::uint32_t position : links_of_[id]) {
        const LinkKind kind = link(position).kind;
        if ((kind == LinkKind::pcie || kind == LinkKind::c2c) && far_end(position, id) == *above)
            return position;
    }
    return std::nullopt;
}

std::vector<DeviceId> Outline::of(DeviceKind kind) const {
    const auto before = [this](DeviceId id, DeviceKind wanted) { return device(id).kind < wanted; };
    const auto after = [this](DeviceKind wanted, DeviceId id) { return wanted < device(id).kind; };
    return {std::lower_bound(by_kind_.begin(), by_kind_.end(), kind, before),
            std::upper_bound(by_kind_.begin(), by_kind_.end(), kind, after)};
}

std::vector<DeviceId> Outline::of(DeviceKind kind, int node) const {
    std::vector<DeviceId> ids = of(kind);
    ids.erase(std::remove_if(ids.begin(), ids.end(), [&](DeviceId id) { return device(id).node != node; }),
              ids.end());
    return ids;
}

std::string_view local_name(const Device& device) {
    std::string_view name = device.name;
    const auto slash = name.find('/');
    if (device.node >= 0 && slash != std::string_view::npos && name.starts_with("node"))
        name.remove_prefix(slash + 1);
    return name;
}

std::string short_name(const Device& device, bool whole) {
    std::string_view name = local_name(device);
    const std::string node(device.name, 0, device.name.size() - name.size());
    for (const std::string_view kind : {"nic:", "drive:"}) {
        // A bare number says nothing without its kind.
        if (name.starts_with(kind) && name.find_first_not_of("0123456789", kind.size()) != name.npos)
            name.remove_prefix(kind.size());
    }
    return (whole ? node : "") + std::string(name);
}

bool is_fabric(LinkKind kind) {
    return kind == LinkKind::nvlink || kind == LinkKind::xgmi;
}

bool is_matrix_kind(DeviceKind kind) {
    return kind == DeviceKind::gpu || kind == DeviceKind::nic || kind == DeviceKind::drive;
}

std::string link_words(const Link& link) {
    switch (link.kind) {
        case LinkKind::pcie:
            if (const auto generation = pcie_generation_of(link.gb_per_s, link.width))
                return fmt::format("PCIe gen{} x{}", *generation, link.width);
            return fmt::format("PCIe x{}", link.width);
        case LinkKind::nvlink:
            return fmt::format("NVLink x{}", link.width);
        case LinkKind::c2c:
            return "NVLink-C2C";
        case LinkKind::socket:
            return "socket link";
        case LinkKind::xgmi:
            return fmt::format("Infinity Fabric x{}", link.width);
        case LinkKind::network:
            return fmt::format("network {:.0f} Gb/s", link.gb_per_s * 8);
    }
    return "";
}

std::string count_words(std::size_t count, DeviceKind kind) {
    const char* word = "";
    const char* plural = "s";
    switch (kind) {
        case DeviceKind::cpu:
            word = "NUMA node";
            break;
        case DeviceKind::host_bridge:
            word = "host bridge";
            break;
        case DeviceKind::pcie_switch:
            word = "PCIe switch";
            plural = "es";
            break;
        case DeviceKind::gpu:
            word = "GPU";
            break;
        case DeviceKind::nvswitch:
            word = "NVSwitch";
            plural = "es";
            break;
        case DeviceKind::nic:
            word = "network card";
            break;
        case DeviceKind::drive:
            word = "drive";
            break;
        case DeviceKind::net_switch:
            word = "network switch";
            plural = "es";
            break;
    }
    return fmt::format("{} {}{}", count, word, count == 1 ? "" : plural);
}

std::string pcie_shortfall(const Device& device) {
    const auto now = device.properties.find("pcie_now");
    const auto max = device.properties.find("pcie_max");
    if (now == device.properties.end() || max == device.properties.end() || now->second == max->second)
        return "";
    return now->second + " of " + max->second;
}

std::optional<double> rate_of_pcie_words(std::string_view words) {
    // "gen5 x16"
    const auto blank = words.find(" x");
    if (!words.starts_with("gen") || blank == std::string_view::npos) return std::nullopt;
    const int generation = std::atoi(std::string(words.substr(3, blank - 3)).c_str());
    const int lanes = std::atoi(std::string(words.substr(blank + 2)).c_str());
    const double rate = lanes > 0 ? pcie_gb_per_s(generation, lanes) : 0;
    return rate > 0 ? std::optional(rate) : std::nullopt;
}

namespace {

// Everything by which a machine could differ from another, less its number and what identifies a part of it.
// Links to what machines share count by their kind and rate.
std::string fingerprint(const Outline& outline, const std::vector<DeviceId>& devices) {
    std::string text;
    for (const DeviceId id : devices) {
        const Device& device = outline.device(id);
        text += fmt::format("{} {} {} {} {} {}\n", to_string(device.kind), local_name(device), device.model,
                            device.memory, device.numa_node, device.acs_redirect);
        std::vector<std::string> links;
        for (const std::uint32_t position : outline.links_of(id)) {
            const Link& link = outline.link(position);
            const Device& far = outline.device(outline.far_end(position, id));
            const std::string_view to = far.node == device.node ? local_name(far) : to_string(far.kind);
            links.push_back(
                fmt::format("{} {} {} {}\n", to_string(link.kind), link.width, link.gb_per_s, to));
        }
        std::sort(links.begin(), links.end());
        for (const std::string& link : links) text += link;
    }
    return text;
}

}  // namespace

std::vector<std::vector<int>> alike_machines(const Outline& outline) {
    std::unordered_map<int, std::vector<DeviceId>> devices_of;
    const Topology& topology = outline.topology();
    for (DeviceId id = 0; id < topology.devices().size(); ++id) {
        if (outline.device(id).node >= 0) devices_of[outline.device(id).node].push_back(id);
    }
    std::vector<std::vector<int>> groups;
    // By a hash, since the texts of a big cluster would take gigabytes. Two machines of equal hash are taken
    // to be alike: among a million machines that goes wrong once in 10^7 topologies.
    std::unordered_map<std::size_t, std::size_t> group_of;
    for (const int node : outline.nodes()) {
        const std::size_t hash = std::hash<std::string>()(fingerprint(outline, devices_of[node]));
        const auto [at, fresh] = group_of.emplace(hash, groups.size());
        if (fresh) groups.emplace_back();
        groups[at->second].push_back(node);
    }
    return groups;
}

std::string node_words(const std::vector<int>& nodes) {
    std::string text;
    std::size_t ranges = 0;
    for (std::size_t i = 0; i < nodes.size();) {
        std::size_t end = i;
        while (end + 1 < nodes.size() && nodes[end + 1] == nodes[end] + 1) ++end;
        if (++ranges > 8) return text + fmt::format(" and {} more", nodes.size() - i);
        if (!text.empty()) text += ", ";
        text += fmt::format("node{}", nodes[i]);
        if (end > i) text += fmt::format("{}node{}", end == i + 1 ? ", " : " to ", nodes[end]);
        i = end + 1;
    }
    return text;
}

NetworkSummary summarize_network(const Outline& outline) {
    NetworkSummary summary;
    std::set<std::string_view> rails;
    std::set<DeviceId> at_leaves;
    std::vector<DeviceId> upper;
    bool by_rail = true;
    for (const DeviceId id : outline.of(DeviceKind::net_switch)) {
        std::set<std::string_view> cards;  // the places of cards in their machines
        std::vector<DeviceId> switches;
        for (const std::uint32_t position : outline.links_of(id)) {
            const DeviceId far = outline.far_end(position, id);
            if (outline.device(far).kind == DeviceKind::net_switch) {
                summary.switch_links += far < id ? 1 : 0;
                switches.push_back(far);
                continue;
            }
            const double rate = outline.link(position).gb_per_s;
            summary.card_gb_per_s = summary.card_links == 0 ? rate : std::min(summary.card_gb_per_s, rate);
            ++summary.card_links;
            if (cards.size() < 2) cards.insert(local_name(outline.device(far)));
        }
        (cards.empty() ? upper : summary.leaves).push_back(id);
        if (!cards.empty()) at_leaves.insert(switches.begin(), switches.end());
        by_rail = by_rail && cards.size() < 2;
        rails.insert(cards.begin(), cards.end());
    }
    for (const DeviceId id : upper) (at_leaves.count(id) != 0 ? summary.spines : summary.cores).push_back(id);
    if (by_rail) summary.rails = static_cast<int>(rails.size());
    return summary;
}

}  // namespace sidestep::topology
