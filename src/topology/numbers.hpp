// The numbers that devices of one kind have.
#pragma once

#include <algorithm>
#include <vector>

#include <sidestep/topology.hpp>

namespace sidestep::topology {

// Ascending, perhaps with gaps: numbers of GPUs are NVML's, which skips none for a GPU that it has lost. So nothing
// counts from 0 to Topology::gpu_count().
inline std::vector<int> numbers_of(const Topology& topology, DeviceKind kind) {
    std::vector<int> numbers;
    for (const Device& device : topology.devices())
        if (device.kind == kind) numbers.push_back(device.index);
    std::sort(numbers.begin(), numbers.end());
    return numbers;
}

}  // namespace sidestep::topology
