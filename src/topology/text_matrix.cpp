// The matrix of classes, as `nvidia-smi topo -m` prints it, with drives.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "topology/text_parts.hpp"

namespace sidestep::topology {

std::string table(const std::vector<Row>& rows, const std::string& indent) {
    std::vector<std::size_t> width;
    for (const Row& row : rows) {
        width.resize(std::max(width.size(), row.size()));
        for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
    }
    std::string text;
    for (const Row& row : rows) {
        std::string line = indent;
        for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], width[i]);
        line.erase(line.find_last_not_of(' ') + 1);
        text += line + "\n";
    }
    return text;
}

std::vector<DeviceId> matrix_devices(const Outline& outline, int node) {
    std::vector<DeviceId> all;
    for (const DeviceKind kind : {DeviceKind::gpu, DeviceKind::nic, DeviceKind::drive}) {
        const auto ids = node < 0 ? outline.of(kind) : outline.of(kind, node);
        all.insert(all.end(), ids.begin(), ids.end());
    }
    return all;
}

const char* class_words(PathClass kind) {
    switch (kind) {
        case PathClass::self:
            return "the same device";
        case PathClass::nvlink:
            return "NVLink all the way, # links side by side";
        case PathClass::xgmi:
            return "Infinity Fabric between GPUs all the way";
        case PathClass::pix:
            return "PCIe, at most one switch between them";
        case PathClass::pxb:
            return "PCIe, several switches, no host bridge";
        case PathClass::phb:
            return "PCIe, through one host bridge";
        case PathClass::node:
            return "through several host bridges of one NUMA node";
        case PathClass::sys:
            return "across NUMA nodes (UPI, Infinity Fabric), or by nothing that is known";
        case PathClass::net:
            return "in different machines, over the network";
    }
    return "";
}

namespace {

// The processors next to a device, from the property "cpus" of its NUMA node.
std::string processors_of(const Outline& outline, DeviceId id) {
    const auto cpu = outline.topology().cpu_of(id);
    if (!cpu || outline.device(id).numa_node < 0) return "";
    const Properties& properties = outline.device(*cpu).properties;
    const auto found = properties.find("cpus");
    return found == properties.end() ? "" : found->second;
}

std::string legend(const std::set<PathClass>& kinds) {
    std::vector<Row> rows;
    for (const PathClass kind : kinds)
        rows.push_back(
            {kind == PathClass::nvlink ? "NV#" : to_string(PairClass{kind, 0}), class_words(kind)});
    return fmt::format("\n{}", table(rows, "  "));
}

}  // namespace

std::string matrix_text(const Outline& outline, const std::vector<DeviceId>& ids) {
    const bool several = std::any_of(ids.begin(), ids.end(), [&](DeviceId id) {
        return outline.device(id).node != outline.device(ids.front()).node;
    });
    bool processors = false;
    for (const DeviceId id : ids) processors = processors || !processors_of(outline, id).empty();

    std::vector<Row> rows(1, Row{""});
    for (const DeviceId id : ids) rows.front().push_back(short_name(outline.device(id), several));
    if (processors) rows.front().push_back("CPUs");
    rows.front().push_back("NUMA");
    std::set<PathClass> kinds;
    for (const DeviceId from : ids) {
        const Device& device = outline.device(from);
        Row row{short_name(device, several)};
        for (const DeviceId to : ids) {
            const PairClass pair = outline.topology().pair_class(from, to);
            kinds.insert(pair.kind);
            row.push_back(to_string(pair));
        }
        if (processors) {
            const std::string list = processors_of(outline, from);
            row.push_back(list.empty() ? "-" : list);
        }
        row.push_back(device.numa_node < 0 ? "-" : std::to_string(device.numa_node));
        rows.push_back(std::move(row));
    }
    return table(rows, "") + legend(kinds);
}

}  // namespace sidestep::topology
