// The tree: what hangs below what, with the link in between.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <sidestep/drawing.hpp>

#include "topology/text_parts.hpp"

namespace sidestep {

namespace {

using topology::Outline;

struct Branch {
    std::string text;
    std::vector<std::string> details;  // further lines of the same branch
    std::vector<Branch> below;
};

void print(const std::vector<Branch>& branches, const std::string& indent, std::string& text) {
    for (std::size_t i = 0; i < branches.size(); ++i) {
        const Branch& branch = branches[i];
        const bool last = i + 1 == branches.size();
        const std::string deeper = indent + (last ? "   " : "│  ");
        text += indent + (last ? "└─ " : "├─ ") + branch.text + "\n";
        for (const std::string& detail : branch.details)
            text += deeper + (branch.below.empty() ? "     " : "│    ") + detail + "\n";
        print(branch.below, deeper, text);
    }
}

// "[PCIe gen5 x16, 63.0 GB/s]", with what it came up as where that is less than it could be.
std::string link_in_brackets(const Outline& outline, DeviceId id) {
    const auto position = outline.link_up(id);
    if (!position) return "";
    const Link& link = outline.link(*position);
    std::string words =
        outline.device(id).kind == DeviceKind::host_bridge ? "" : topology::link_words(link) + ", ";
    words += format_rate(link.gb_per_s);
    const Properties& properties = outline.device(id).properties;
    if (!topology::pcie_shortfall(outline.device(id)).empty()) {
        const auto rate = [](const std::string& name) {
            const auto of = topology::rate_of_pcie_words(name);
            return of ? fmt::format("{}, {}", name, format_rate(*of)) : name;
        };
        words = fmt::format("PCIe now {}; possible {}", rate(properties.at("pcie_now")),
                            rate(properties.at("pcie_max")));
    }
    return "  [" + words + "]";
}

// What a device is called below a branch of machine `node`.
std::string name_below(const Device& device, int node) {
    return device.node == node ? std::string(topology::local_name(device)) : device.name;
}

// "gpu:0 to gpu:7", "gpu:1, gpu:2": names of one kind, ranges taken together.
std::string names_in_words(const Outline& outline, std::vector<DeviceId> ids, int node) {
    std::sort(ids.begin(), ids.end(),
              [&](DeviceId a, DeviceId b) { return outline.device(a).index < outline.device(b).index; });
    std::string text;
    for (std::size_t i = 0; i < ids.size();) {
        std::size_t end = i;
        while (end + 1 < ids.size() &&
               outline.device(ids[end + 1]).index == outline.device(ids[end]).index + 1)
            ++end;
        if (!text.empty()) text += ", ";
        text += name_below(outline.device(ids[i]), node);
        if (end > i) text += (end == i + 1 ? ", " : " to ") + name_below(outline.device(ids[end]), node);
        i = end + 1;
    }
    return text;
}

// The links of a device that do not lead up or down its tree: NVLink, sockets, the network. One line for
// each kind and width.
std::vector<std::string> other_links(const Outline& outline, DeviceId id) {
    std::map<std::pair<LinkKind, int>, std::pair<std::vector<DeviceId>, double>> groups;
    for (const std::uint32_t position : outline.links_of(id)) {
        const Link& link = outline.link(position);
        const DeviceId far = outline.far_end(position, id);
        const auto parent = outline.topology().parent(id);
        const auto parent_of_far = outline.topology().parent(far);
        const bool tree = link.kind == LinkKind::pcie || link.kind == LinkKind::c2c;
        if (tree && (parent == far || parent_of_far == id)) continue;
        auto& [ids, rate] = groups[{link.kind, link.width}];
        ids.push_back(far);
        rate += link.gb_per_s;
    }
    std::vector<std::string> lines;
    for (auto& [key, group] : groups) {
        auto& [ids, rate] = group;
        const Link sample{0, 0, key.first, key.second, rate / static_cast<double>(ids.size()), 0};
        lines.push_back(fmt::format("{}{}{}; {}{}", topology::link_words(sample),
                                    ids.size() > 1 ? " each: " : " to ",
                                    names_in_words(outline, ids, outline.device(id).node), format_rate(rate),
                                    ids.size() > 1 ? " together" : ""));
    }
    return lines;
}

// What a person looks for first when a path is slow. The link's own facts stand in brackets already.
constexpr std::array worth_seeing = {
    "acs",         "iommu_group", "bar1",      "mig",          "virtualization", "fabric",
    "nvlinks",     "rdma",        "netdev",    "port1.state",  "port1.rate",     "port1.link_layer",
    "port2.state", "port2.rate",  "operstate", "net_mb_per_s", "block",          "transport",
};

std::string facts(const Device& device) {
    std::string text = device.acs_redirect ? "access control (ACS) redirects to the host bridge" : "";
    for (const char* name : worth_seeing) {
        const auto found = device.properties.find(name);
        if (found == device.properties.end()) continue;
        std::string value = found->second;
        const bool number = !value.empty() && value.find_first_not_of("0123456789") == std::string::npos;
        if (found->first == "bar1" && number && value.size() < 19) value = format_bytes(std::stoull(value));
        text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value);
    }
    return text;
}

// Deeper than PCIe goes; a file may say otherwise, and indents grow with the depth.
constexpr int deepest_drawn = 32;

std::size_t count_below(const Outline& outline, DeviceId top) {
    std::size_t count = 0;
    std::vector<DeviceId> open{top};
    while (!open.empty()) {
        const DeviceId id = open.back();
        open.pop_back();
        count += outline.below(id).size();
        open.insert(open.end(), outline.below(id).begin(), outline.below(id).end());
    }
    return count;
}

Branch branch_of(const Outline& outline, DeviceId id, int depth = 0) {
    const Device& device = outline.device(id);
    Branch branch{std::string(topology::local_name(device)), {}, {}};
    if (!device.bus_id.empty()) branch.text += "  " + device.bus_id;
    if (!device.model.empty()) branch.text += "  " + device.model;
    if (device.memory > 0) branch.text += (device.model.empty() ? "  " : ", ") + format_bytes(device.memory);
    branch.text += link_in_brackets(outline, id);
    branch.details = other_links(outline, id);
    if (std::string line = facts(device); !line.empty()) branch.details.push_back(std::move(line));
    if (depth == deepest_drawn && !outline.below(id).empty()) {
        branch.below.push_back({fmt::format("{} further devices below", count_below(outline, id)), {}, {}});
        return branch;
    }
    for (const DeviceId below : outline.below(id))
        branch.below.push_back(branch_of(outline, below, depth + 1));
    return branch;
}

// The trees of one machine (-1: what machines share) and what stands beside them.
std::vector<Branch> branches_of(const Outline& outline, int node) {
    std::vector<Branch> branches;
    Branch loose{"not seen in the PCIe tree", {}, {}};
    for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::host_bridge, DeviceKind::pcie_switch,
                                  DeviceKind::gpu, DeviceKind::nic, DeviceKind::drive}) {
        for (const DeviceId id : outline.of(kind, node)) {
            if (outline.topology().parent(id)) continue;
            (kind == DeviceKind::cpu ? branches : loose.below).push_back(branch_of(outline, id));
        }
    }
    if (!loose.below.empty()) branches.push_back(std::move(loose));
    return branches;
}

void add_nvswitches(const Outline& outline, int node, std::vector<Branch>& branches) {
    Branch all{"NVSwitches", {}, {}};
    for (const DeviceId id : outline.of(DeviceKind::nvswitch, node))
        all.below.push_back(branch_of(outline, id));
    if (!all.below.empty()) branches.push_back(std::move(all));
}

}  // namespace

std::string draw_tree(const Topology& topology) {
    const Outline outline(topology);
    std::vector<Branch> branches;
    const auto groups = topology::alike_machines(outline);
    constexpr std::size_t max_groups = 8;
    for (std::size_t i = 0; i < std::min(groups.size(), max_groups); ++i) {
        std::vector<Branch> machine = branches_of(outline, groups[i].front());
        add_nvswitches(outline, groups[i].front(), machine);
        if (outline.nodes().size() < 2) {
            branches = std::move(machine);
            break;
        }
        std::string words = fmt::format("node{}", groups[i].front());
        if (groups[i].size() > 1) {
            const std::vector<int> others(groups[i].begin() + 1, groups[i].end());
            words += fmt::format(", and like it {}", topology::node_words(others));
        }
        branches.push_back({std::move(words), {}, std::move(machine)});
    }
    if (groups.size() > max_groups)
        branches.push_back({fmt::format("{} further kinds of machine", groups.size() - max_groups), {}, {}});
    if (const std::string words = topology::shared_nvlink_words(outline); !words.empty())
        branches.push_back({"NVLink between machines: " + words, {}, {}});
    if (const std::string words = topology::network_words(outline); !words.empty())
        branches.push_back({"network between machines: " + words, {}, {}});
    std::string text = topology::headline(outline) + "\n";
    print(branches, "", text);
    return text;
}

}  // namespace sidestep
