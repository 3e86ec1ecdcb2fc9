// What kind of memory lies at an address: it decides which engines can reach it.
#pragma once

#include <string_view>

#include <sidestep/api.h>

namespace sidestep {

enum class MemoryKind {
    automatic,  // asked for: whatever is fastest there (device memory on a GPU, pinned on the host)
    pageable,   // ordinary host memory; a GPU's copy engine cannot reach it
    pinned,     // page-locked host memory that every GPU maps
    device,     // GPU memory of cudaMalloc
    pool,       // GPU memory of a stream-ordered pool (cudaMallocAsync)
    vmm,        // GPU memory mapped with the virtual memory calls (cuMemMap)
    managed,    // memory that migrates between host and GPU
    storage,    // bytes of a file or block device
    p2pmem,     // PCI peer-to-peer memory that a driver publishes
};

SIDESTEP_API std::string_view to_string(MemoryKind kind);

}  // namespace sidestep
