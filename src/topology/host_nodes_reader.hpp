// Which NUMA nodes are host memory. GPUs with coherent memory (GH200, GB200, POWER9) show theirs as nodes too.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "driver/machine_files.hpp"

namespace sidestep::topology {

struct HostNodes {
    std::vector<int> nodes;              // in ascending order
    std::map<std::string, int> of_gpus;  // nodes that are a GPU's memory, by its bus id
    std::vector<std::string> notes;      // what was left out
};

HostNodes read_host_nodes(const driver::MachineFiles& files);

// MemTotal of a node in bytes; 0 where it cannot be read.
Bytes node_memory(const driver::MachineFiles& files, int node);
// What follows `key` in a file with lines like "MemTotal:  5073108 kB", in bytes.
Bytes kib_after(const driver::MachineFiles& files, const std::string& path, const std::string& key);

}  // namespace sidestep::topology
