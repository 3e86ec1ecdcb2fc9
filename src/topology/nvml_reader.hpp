// What NVML adds to the machine that sysfs shows.
#pragma once

#include "driver/nvml.hpp"
#include "topology/parts_builder.hpp"

namespace sidestep::topology {

// Gives the GPUs NVML's numbers, names and memory, adds those that only NVML sees, joins them by NVLink and
// records which pairs may reach each other. GPUs that NVML does not list are taken out, with a note: they
// are not given to this process, or have no driver.
void merge_nvml(PartsBuilder& builder, const driver::Nvml& nvml);

// A GPU that NVML lists, and where it is among the parts.
struct KnownGpu {
    DeviceId id = 0;
    driver::NvmlGpu facts;
};

// Joins the GPUs by what NVML says of their NVLinks. NVSwitches that only show up as bus ids are added;
// one device stands for all that a virtual machine does not see.
void join_nvlinks(PartsBuilder& builder, const driver::Nvml& nvml, const std::vector<KnownGpu>& gpus);

}  // namespace sidestep::topology
