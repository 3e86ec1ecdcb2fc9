// What the CUDA driver does by itself, without the library: the yardstick for the library's own figures.
//
// Opens libcuda.so.1 on its own, since a benchmark sees the public interface only. GPUs are numbered in
// the order of their PCI addresses, as the library does where CUDA_VISIBLE_DEVICES hides none.
#pragma once

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

namespace sidestep::bench::raw {

// The place of a copy's end that is not a GPU: host memory pinned by the driver.
constexpr int host = -1;

struct Rate {
    double gb_per_s = 0;  // median of the samples
    double least = 0;
    double most = 0;
};

// Whether there is a driver and a GPU; else why not.
Result<void> available();

// The copy engine's rate from `from` to `to` (GPU numbers or `host`): each sample is 16 copies of `bytes`
// bytes back to back on one stream, timed by events, as nvbandwidth does. Peer access is enabled first.
Result<Rate> copy_rate(int from, int to, Bytes bytes, int samples = 9);

struct Cost {
    double submit_us = 0;    // of the cuMemcpyAsync call alone
    double complete_us = 0;  // from the call until a poll of the stream finds it done
};

// What one copy of `bytes` bytes costs the caller, median over `copies` of them.
Result<Cost> copy_cost(int from, int to, Bytes bytes, int copies = 2000);

}  // namespace sidestep::bench::raw
