// Ranks of several processes on one GPU, which runs the kernels of one process at a time.
#pragma once

#include <span>
#include <string>

#include "collective/wire.hpp"

namespace sidestep::collective {

// "rank 0 (process 11, gpu:0) and rank 1 (process 12, gpu:0) are on one GPU ...": the first two of the ranks that are so,
// and what it costs. Empty: none are, or their GPUs are emulated.
std::string shared_gpu(std::span<const Hello* const> ranks);

}  // namespace sidestep::collective
