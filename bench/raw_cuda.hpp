// What the CUDA driver does by itself, without the library: the yardstick for the library's own figures, and
// what only kernels can measure.
//
// Opens libcuda.so.1 on its own, since a benchmark sees the public interface only. GPUs are numbered in
// the order of their PCI addresses, as the library does where CUDA_VISIBLE_DEVICES hides none.
#pragma once

#include <string>
#include <vector>

#include <sidestep/place.hpp>
#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

#include "bench/report.hpp"

namespace sidestep::bench::raw {

// The place of a copy's end that is not a GPU: host memory pinned by the driver.
constexpr int host = -1;
inline int number_of(const Place& place) {
    return place.is_gpu() ? place.index() : host;
}

// Whether there is a driver and a GPU; else why not.
Result<void> available();

// "13.0", or empty without a driver.
std::string cuda_version();

// One of several copies that run at once.
struct Leg {
    int from = host;  // GPU numbers, or `host`
    int to = host;
};

// GB/s of the copy engines over all legs together: each sample is 16 copies of `bytes` bytes back to back on
// a stream for each leg. One leg is timed by events, as nvbandwidth does; several by the host's clock. Peer
// access is enabled first.
Result<Samples> copy_rates(const std::vector<Leg>& legs, Bytes bytes, int samples);

struct Cost {
    double submit_us = 0;    // of the cuMemcpyAsync call alone
    double complete_us = 0;  // from the call until a poll of the stream finds it done
};

// What one copy of `bytes` bytes costs the caller, median over `copies` of them.
Result<Cost> copy_cost(int from, int to, Bytes bytes, int copies = 2000);

// Nanoseconds of one load by a kernel's only thread on `gpu`, each address taken from the load before: a ring
// of `ring` bytes in the memory of `owner` (a GPU or `host`), a node in each 128 bytes, in shuffled order.
Result<Samples> chase_latency(int gpu, int owner, Bytes ring, int steps, int samples);

// Nanoseconds from a store by one GPU until the other has seen it: half a round trip of 8-byte flags, each in
// the memory of the GPU that waits for it. The kernels give up after 2 s: ErrorCode::timed_out.
Result<Samples> flag_latency(int first, int second, int rounds, int samples);

struct Adds {
    Samples rate;        // 10^6 additions a second by `gpu` alone
    Samples latency_ns;  // of one addition whose result the next one needs
    bool exact = false;  // the sum was right after `gpu` and `owner` had added at the same time
};

// Native 64-bit additions by kernels of `gpu` to `counters` counters in the memory of `owner`.
Result<Adds> atomic_adds(int gpu, int owner, unsigned counters, int samples, bool smoke);

}  // namespace sidestep::bench::raw
