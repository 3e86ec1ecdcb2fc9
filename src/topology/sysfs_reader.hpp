// The machine as Linux shows it: NUMA nodes and the PCI tree.
#pragma once

#include "driver/machine_files.hpp"
#include "topology/parts_builder.hpp"

namespace sidestep::topology {

// Reads the NUMA nodes, and the GPUs (NVIDIA), NVSwitches, network cards and NVMe drives with the bridges
// above them. GPUs are numbered in the order of their bus ids, which live() replaces by NVML's numbers.
// There is always at least one cpu. What cannot be read becomes a note.
PartsBuilder read_sysfs(const driver::MachineFiles& files);

// The cpu of a NUMA node, or the first cpu where the node is not known or not there.
DeviceId cpu_of_node(const PartsBuilder& builder, int numa_node);

}  // namespace sidestep::topology
