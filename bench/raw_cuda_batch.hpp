// Many small copies by the driver, one call each.
#pragma once

#include "bench/raw_cuda.hpp"

namespace sidestep::bench::raw {

// GB/s of `count` copies of `bytes` bytes each, one call after the other on one stream, on the host's clock
// from the first call until a poll finds the last one done: cuMemcpyPeerAsync (which cudaMemcpyPeerAsync
// comes to) between two GPUs with peer access enabled, cuMemcpyAsync between a GPU and `host`.
Result<Samples> loop_rates(const Leg& leg, Bytes bytes, std::size_t count, int samples);

}  // namespace sidestep::bench::raw
