// The whole machine for people to read: matrix, devices, peer access, notes.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <sidestep/topology.hpp>

#include "topology/text_parts.hpp"

namespace sidestep {

namespace {

using topology::Outline;
using topology::Row;

// More lines than this of one kind do not help on a terminal.
constexpr std::size_t max_refusals = 8;

std::string numa_of(const Device& device) {
    return device.numa_node < 0 ? "-" : std::to_string(device.numa_node);
}

// The links that end at a device, NVLinks taken together: "PCIe gen5 x16, 63.0 GB/s; NVLink (18 links ...)".
std::string links_in_words(const Outline& outline, DeviceId id) {
    std::vector<std::string> words;
    Path nvlink;
    for (const std::uint32_t position : outline.links_of(id)) {
        const Link& link = outline.link(position);
        if (topology::is_fabric(link.kind)) {
            nvlink.links.push_back(position);
            nvlink.gb_per_s += link.gb_per_s;
            nvlink.nvlinks += link.width;
            nvlink.all_nvlink = true;
            continue;
        }
        const Path one{{position}, link.gb_per_s, link.latency_us, false, 0};
        words.push_back(fmt::format("{}, {}", outline.topology().describe(one), format_rate(link.gb_per_s)));
    }
    if (nvlink.all_nvlink)
        words.push_back(outline.topology().describe(nvlink) + ", " + format_rate(nvlink.gb_per_s));
    if (const std::string now = topology::pcie_shortfall(outline.device(id)); !now.empty())
        words.push_back("now " + now);
    return words.empty() ? "no link known" : fmt::format("{}", fmt::join(words, "; "));
}

// "PIX to gpu:0": the GPUs that are nearest to a device.
std::string nearest_gpus(const Outline& outline, DeviceId id, const std::vector<DeviceId>& gpus) {
    if (gpus.empty() || gpus.size() > topology::max_matrix_devices) return "";
    PairClass best;
    std::string names;
    for (const DeviceId gpu : gpus) {
        const auto pair = outline.topology().pair_class(id, gpu);
        if (pair.kind > best.kind || pair.kind >= PathClass::sys) continue;
        if (pair.kind < best.kind) names.clear();
        best = pair;
        names += (names.empty() ? "" : ", ") + outline.device(gpu).name;
    }
    return best.kind >= PathClass::sys ? "" : to_string(best) + " to " + names;
}

Row device_row(const Outline& outline, DeviceId id, const std::vector<DeviceId>& gpus) {
    const Device& device = outline.device(id);
    Row row{device.name};
    if (device.kind != DeviceKind::cpu) row.push_back(device.bus_id.empty() ? "-" : device.bus_id);
    row.push_back(device.model.empty() ? "-" : device.model);
    if (device.kind == DeviceKind::gpu || device.kind == DeviceKind::cpu)
        row.push_back(device.memory == 0 ? "-" : format_bytes(device.memory));
    if (topology::is_matrix_kind(device.kind)) {
        row.push_back(fmt::format("numa {}", numa_of(device)));
        row.push_back(links_in_words(outline, id));
    }
    if (device.kind == DeviceKind::nic || device.kind == DeviceKind::drive)
        row.push_back(nearest_gpus(outline, id, gpus));
    return row;
}

// The devices of one kind in one machine (-1: in all).
std::string section(const Outline& outline, DeviceKind kind, const char* title, int node) {
    const auto of = [&](DeviceKind wanted) {
        return node < 0 ? outline.of(wanted) : outline.of(wanted, node);
    };
    const std::vector<DeviceId> ids = of(kind);
    if (ids.empty()) return "";
    const std::vector<DeviceId> gpus = of(DeviceKind::gpu);
    std::vector<Row> rows;
    for (const DeviceId id : ids) rows.push_back(device_row(outline, id, gpus));
    return fmt::format("\n{}\n{}", title, topology::table(rows, "  "));
}

std::string sections(const Outline& outline, int node) {
    std::string text = section(outline, DeviceKind::gpu, "GPUs", node);
    text += section(outline, DeviceKind::cpu, "NUMA nodes", node);
    text += section(outline, DeviceKind::nvswitch, "NVSwitches", node);
    text += section(outline, DeviceKind::nic, "network cards", node);
    text += section(outline, DeviceKind::drive, "drives", node);
    return text;
}

std::string matrix(const Outline& outline, int node) {
    const auto ids = topology::matrix_devices(outline, node);
    if (ids.empty()) return "";
    if (ids.size() <= topology::max_matrix_devices)
        return fmt::format("\n{}", topology::matrix_text(outline, ids));
    const auto gpus = node < 0 ? outline.of(DeviceKind::gpu) : outline.of(DeviceKind::gpu, node);
    if (gpus.size() > topology::max_matrix_devices)
        return fmt::format("\nthe matrix is left out above {} devices\n", topology::max_matrix_devices);
    std::string text =
        fmt::format("\nnetwork cards and drives are left out of the matrix: more than {} devices together\n",
                    topology::max_matrix_devices);
    if (!gpus.empty()) text += fmt::format("\n{}", topology::matrix_text(outline, gpus));
    return text;
}

// A reason with the two GPUs' names taken out, so that pairs that are refused alike come together.
std::string without_names(std::string reason, const std::string& a, const std::string& b) {
    for (const std::string& name : {a, b}) {
        for (auto at = reason.find(name); at != std::string::npos; at = reason.find(name))
            reason = fmt::format("{}?{}", reason.substr(0, at), reason.substr(at + name.size()));
    }
    return reason;
}

// The pairs of GPUs that may not reach each other, by reason; nothing where all may or NVLink joins none and
// no driver was asked.
std::string refusals(const Outline& outline, int node) {
    const auto gpus = node < 0 ? outline.of(DeviceKind::gpu) : outline.of(DeviceKind::gpu, node);
    if (gpus.size() > topology::max_matrix_devices) return "";
    struct Group {
        std::string reason;
        std::string remedy;
        std::vector<std::string> pairs;
    };
    std::map<std::string, Group> groups;
    for (const DeviceId a : gpus) {
        for (const DeviceId b : gpus) {
            const PeerAccess access =
                outline.topology().peer_access(outline.device(a).index, outline.device(b).index);
            if (access.allowed || outline.topology().pair_class(a, b).kind == PathClass::net) continue;
            const std::string& from = outline.device(a).name;
            const std::string& to = outline.device(b).name;
            Group& group = groups[without_names(access.reason, from, to)];
            if (group.pairs.empty()) group = {access.reason, access.remedy, {}};
            group.pairs.push_back(from + " -> " + to);
        }
    }
    if (groups.empty()) return "";
    std::string text = "\npeer access that is refused\n";
    for (const auto& [key, group] : groups) {
        text += "  " + group.reason + (group.remedy.empty() ? "" : "; " + group.remedy) + "\n";
        std::string line;
        const std::size_t shown = std::min(group.pairs.size(), max_refusals);
        for (std::size_t i = 0; i < shown; ++i) line += (i == 0 ? "" : ", ") + group.pairs[i];
        if (shown < group.pairs.size()) line += fmt::format(" and {} more", group.pairs.size() - shown);
        text += "    " + line + "\n";
    }
    return text;
}

std::string machine_facts(const Topology& topology) {
    std::vector<Row> rows;
    for (const auto& [name, value] : topology.parts().properties) rows.push_back({name, value});
    return rows.empty() ? "" : fmt::format("\nmachine\n{}", topology::table(rows, "  "));
}

}  // namespace

std::string Topology::to_text() const {
    const Outline outline(*this);
    std::string text = fmt::format("machine {}\n", topology::headline(outline));
    const bool whole = outline.nodes().size() < 2 ||
                       topology::matrix_devices(outline, -1).size() <= topology::max_matrix_devices;
    // Of many machines one stands for all that are like it.
    const int shown = whole ? -1 : topology::alike_machines(outline).front().front();
    text += topology::cluster_text(outline);
    if (!whole) text += fmt::format("\nnode{}, as all that are alike:\n", shown);
    text += matrix(outline, shown);
    text += sections(outline, shown);
    text += refusals(outline, shown);
    text += machine_facts(*this);
    if (!notes().empty()) text += "\nnotes\n";
    for (const std::string& note : notes()) text += "  " + note + "\n";
    return text;
}

}  // namespace sidestep
