// The whole machine for people to read.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include <sidestep/topology.hpp>

namespace sidestep {

namespace {

// A terminal shows no more columns, and the work grows with the square.
constexpr int most_matrix_gpus = 64;

std::vector<DeviceId> devices_of(const Topology& topology, DeviceKind kind) {
    std::vector<DeviceId> ids;
    for (DeviceId id = 0; id < topology.devices().size(); ++id) {
        if (topology.device(id).kind == kind) ids.push_back(id);
    }
    std::sort(ids.begin(), ids.end(),
              [&](DeviceId a, DeviceId b) { return topology.device(a).index < topology.device(b).index; });
    return ids;
}

using Row = std::vector<std::string>;

// Lines up the columns of a table, two blanks apart.
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

std::string numa_of(const Device& device) {
    return device.numa_node < 0 ? "-" : std::to_string(device.numa_node);
}

std::string matrix(const Topology& topology, const std::vector<DeviceId>& gpus) {
    std::vector<Row> rows(1, Row{""});
    for (const DeviceId gpu : gpus) rows.front().push_back(topology.device(gpu).name);
    rows.front().push_back("NUMA");
    for (const DeviceId from : gpus) {
        Row row{topology.device(from).name};
        for (const DeviceId to : gpus) row.push_back(to_string(topology.pair_class(from, to)));
        row.push_back(numa_of(topology.device(from)));
        rows.push_back(std::move(row));
    }
    return table(rows, "");
}

using LinksOf = std::vector<std::vector<std::uint32_t>>;  // positions of links, by device

// The links that end at a device, NVLinks taken together: "PCIe gen5 x16, 63.0 GB/s; NVLink (18 links ...)".
std::string link_words(const Topology& topology, const std::vector<std::uint32_t>& links) {
    std::vector<std::string> words;
    Path nvlink;
    for (const std::uint32_t position : links) {
        const Link& link = topology.links()[position];
        if (link.kind == LinkKind::nvlink || link.kind == LinkKind::xgmi) {
            nvlink.links.push_back(position);
            nvlink.gb_per_s += link.gb_per_s;
            nvlink.nvlinks += link.width;
            nvlink.all_nvlink = true;
            continue;
        }
        words.push_back(fmt::format("{}, {}",
                                    topology.describe({{position}, link.gb_per_s, link.latency_us, false, 0}),
                                    format_rate(link.gb_per_s)));
    }
    if (nvlink.all_nvlink) words.push_back(topology.describe(nvlink) + ", " + format_rate(nvlink.gb_per_s));
    return words.empty() ? "no link known" : fmt::format("{}", fmt::join(words, "; "));
}

// "PIX to gpu:0": the GPUs that are nearest to a device.
std::string nearest_gpus(const Topology& topology, DeviceId id, const std::vector<DeviceId>& gpus) {
    if (gpus.empty() || gpus.size() > std::size_t{most_matrix_gpus}) return "";
    PairClass best;
    std::string names;
    for (const DeviceId gpu : gpus) {
        const auto pair = topology.pair_class(id, gpu);
        if (pair.kind > best.kind) continue;
        if (pair.kind < best.kind) names.clear();
        best = pair;
        names += (names.empty() ? "" : ", ") + topology.device(gpu).name;
    }
    return best.kind == PathClass::sys ? "" : to_string(best) + " to " + names;
}

std::string section(const Topology& topology, DeviceKind kind, const char* title,
                    const std::vector<DeviceId>& gpus, const LinksOf& links_of) {
    const auto ids = devices_of(topology, kind);
    if (ids.empty()) return "";
    std::vector<Row> rows;
    for (const DeviceId id : ids) {
        const Device& device = topology.device(id);
        Row row{device.name};
        if (kind != DeviceKind::cpu) row.push_back(device.bus_id.empty() ? "-" : device.bus_id);
        row.push_back(device.model.empty() ? "-" : device.model);
        if (kind == DeviceKind::gpu || kind == DeviceKind::cpu) {
            row.push_back(device.memory == 0 ? "-" : format_bytes(device.memory));
        }
        if (kind == DeviceKind::gpu || kind == DeviceKind::nic || kind == DeviceKind::drive) {
            row.push_back("numa " + numa_of(device));
            row.push_back(link_words(topology, links_of[id]));
        }
        if (kind == DeviceKind::nic || kind == DeviceKind::drive)
            row.push_back(nearest_gpus(topology, id, gpus));
        rows.push_back(std::move(row));
    }
    return fmt::format("\n{}\n{}", title, table(rows, "  "));
}

}  // namespace

std::string Topology::to_text() const {
    const auto gpus = devices_of(*this, DeviceKind::gpu);
    std::string text = fmt::format("machine {}{}: {} GPU{}\n", name(), emulated() ? " (emulated)" : "",
                                   gpu_count(), gpu_count() == 1 ? "" : "s");
    if (gpu_count() > most_matrix_gpus) {
        text += fmt::format("\nthe matrix is left out above {} GPUs\n", most_matrix_gpus);
    } else if (!gpus.empty()) {
        text += '\n';
        text += matrix(*this, gpus);
    }
    text += section(*this, DeviceKind::gpu, "GPUs", gpus, links_of_);
    text += section(*this, DeviceKind::cpu, "NUMA nodes", gpus, links_of_);
    text += section(*this, DeviceKind::nvswitch, "NVSwitches", gpus, links_of_);
    text += section(*this, DeviceKind::nic, "network cards", gpus, links_of_);
    text += section(*this, DeviceKind::drive, "NVMe drives", gpus, links_of_);
    if (!notes().empty()) text += "\nnotes\n";
    for (const std::string& note : notes()) text += "  " + note + "\n";
    return text;
}

}  // namespace sidestep
