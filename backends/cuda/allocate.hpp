// Memory of every kind the CUDA driver gives.
#pragma once

#include <sidestep/allocation.hpp>
#include "backends/cuda/gpus.hpp"

namespace sidestep::backends::cuda {

// Pinned host memory that every GPU maps; `node` is its NUMA node, -1: any. Pinned through the context of
// a GPU near that node.
Result<Allocation> allocate_pinned(Gpus& gpus, int node, Bytes bytes);

// The same, wherever it lies. The context is current.
Result<Allocation> allocate_portable(std::shared_ptr<const driver::CudaContext> context, Bytes bytes);

// Memory of one GPU: device, pool, vmm or managed. out_of_memory says what was asked and what is free.
// Other GPUs reach it once a copy between them has started, not before.
Result<Allocation> allocate_on_gpu(const Gpu& gpu, Bytes bytes, MemoryKind kind);

}  // namespace sidestep::backends::cuda
