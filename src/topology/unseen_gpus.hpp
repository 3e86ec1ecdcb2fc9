// A place in the PCI tree for GPUs that only NVML sees.
#pragma once

#include <vector>

#include "driver/nvml.hpp"
#include "topology/nvml_reader.hpp"

namespace sidestep::topology {

// Sandboxes hide the PCI tree. The bridges and switches are made up so that every pair of these GPUs has in
// common what NVML says it has; a note says so.
void place_unseen_gpus(PartsBuilder& builder, const driver::Nvml& nvml, const std::vector<KnownGpu>& gpus);

}  // namespace sidestep::topology
