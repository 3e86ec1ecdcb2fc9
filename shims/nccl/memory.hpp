// Memory of ncclMemAlloc: known to all communicators of its GPU, so that every one of them is zero-copy.
#pragma once

#include <cstddef>

#include "shims/nccl/communicator.hpp"

namespace sidestep::nccl {

// On this thread's current GPU.
Result<void*> allocate_memory(std::size_t bytes);
// ErrorCode::invalid_argument for what allocate_memory() did not give.
Result<void> free_memory(void* address);

// Lets a communicator that has just been made know all memory on its GPU.
void attach_memory(Communicator& communicator);

}  // namespace sidestep::nccl
