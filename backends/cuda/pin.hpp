// Page-locking host memory that others allocated.
#pragma once

#include <memory>

#include <sidestep/buffer.hpp>
#include "backends/cuda/gpus.hpp"

namespace sidestep::backends::cuda {

// See backend::GpuAddresses::pin. Every GPU reaches the memory; the lock goes on through the context of a GPU near
// the buffer's NUMA node.
Result<std::shared_ptr<void>> pin_host(Gpus& gpus, const Buffer& buffer);

}  // namespace sidestep::backends::cuda
