// Memory of GPUs as dma-bufs, for network cards.
#pragma once

#include "backend/device_memory.hpp"
#include "backends/cuda/gpus.hpp"
#include "backends/cuda/pointer.hpp"

namespace sidestep::backends::cuda {

// The whole pages that hold the buffer: of its allocation, or, of memory that was mapped in pieces, of what was asked for.
// unsupported for kinds of memory that have no place of their own on the GPU, and where GPU or driver exports none.
Result<backend::DmaBuf> export_dma_buf(Gpus& gpus, const Buffer& buffer, const Pointer& pointer);

// As backend::DmaBufs::see_writes().
Result<void> see_card_writes(Gpus& gpus, const Place& gpu);

// As backend::DmaBufs::copy_in() and copy_out().
Result<void> copy_to_gpu(Gpus& gpus, const Buffer& memory, const void* from);
Result<void> copy_from_gpu(Gpus& gpus, const Buffer& memory, void* to);

}  // namespace sidestep::backends::cuda
