#include "topology/host_nodes_reader.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

#include "driver/cpus.hpp"
#include "topology/pci_names.hpp"

namespace sidestep::topology {

namespace {

constexpr const char* nodes_folder = "/sys/devices/system/node";
constexpr std::size_t most_nodes = 1024;  // CONFIG_NODES_SHIFT is 10 at most

// Where the driver tells: "Node:   1".
std::map<std::string, int> nodes_of_gpus(const driver::MachineFiles& files) {
    const std::string gpus = "/proc/driver/nvidia/gpus";
    std::map<std::string, int> nodes;
    for (const std::string& bus_id : files.names(gpus)) {
        const std::string text = files.text(fmt::format("{}/{}/numa_status", gpus, bus_id)).value_or("");
        const auto at = text.find("Node:");
        if (at == std::string::npos) continue;
        const long node = std::strtol(text.c_str() + at + 5, nullptr, 10);
        if (node >= 0 && node < static_cast<long>(most_nodes)) nodes[bus_id] = static_cast<int>(node);
    }
    return nodes;
}

// Grace (ARM's part 0xd4f) and POWER9 make GPU memory nodes of their own; elsewhere a node without processors is
// host memory (CXL, persistent memory).
bool joins_gpu_memory(const driver::MachineFiles& files) {
    const std::string text = files.text("/proc/cpuinfo").value_or("");
    return text.find("0xd4f") != std::string::npos || text.find("POWER9") != std::string::npos;
}

}  // namespace

Bytes kib_after(const driver::MachineFiles& files, const std::string& path, const std::string& key) {
    const auto text = files.text(path);
    const auto at = text ? text->find(key) : std::string::npos;
    if (at == std::string::npos) return 0;
    return static_cast<Bytes>(std::strtoull(text->c_str() + at + key.size(), nullptr, 10)) << 10;
}

Bytes node_memory(const driver::MachineFiles& files, int node) {
    return kib_after(files, fmt::format("{}/node{}/meminfo", nodes_folder, node), "MemTotal:");
}

HostNodes read_host_nodes(const driver::MachineFiles& files) {
    HostNodes found;
    std::vector<int> all;
    for (const std::string& name : files.names(nodes_folder)) {
        if (const auto node = numbered(name, "node")) all.push_back(*node);
    }
    std::sort(all.begin(), all.end());
    if (all.size() > most_nodes) {
        found.notes.push_back(
            fmt::format("{} shows {} NUMA nodes, and Linux has {} at most: the rest is left out",
                        nodes_folder, all.size(), most_nodes));
        all.resize(most_nodes);
    }
    found.of_gpus = nodes_of_gpus(files);
    const auto with_cpus =
        driver::parse_cpu_list(files.line(fmt::format("{}/has_cpu", nodes_folder)).value_or(""));
    const bool told = with_cpus.ok() && !with_cpus->empty();
    const bool coherent = joins_gpu_memory(files);
    std::vector<int> of_gpus;
    std::vector<int> empty;
    for (const int node : all) {
        const auto is_node = [node](const auto& gpu) { return gpu.second == node; };
        const bool of_gpu = std::any_of(found.of_gpus.begin(), found.of_gpus.end(), is_node);
        const bool processors = !told || std::binary_search(with_cpus->begin(), with_cpus->end(), node);
        if (processors && !of_gpu)
            found.nodes.push_back(node);
        else if (node_memory(files, node) == 0)
            empty.push_back(node);
        else if (of_gpu || coherent)
            of_gpus.push_back(node);
        else
            found.nodes.push_back(node);
    }
    if (!of_gpus.empty())
        found.notes.push_back(fmt::format("NUMA nodes that are memory of GPUs, and no host memory: {}",
                                          fmt::join(of_gpus, ", ")));
    if (!empty.empty())
        found.notes.push_back(
            fmt::format("NUMA nodes without processors and memory: {}", fmt::join(empty, ", ")));
    return found;
}

}  // namespace sidestep::topology
