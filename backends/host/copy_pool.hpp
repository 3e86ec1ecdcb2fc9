// Threads that copy, and how one of them copies a block.
#pragma once

#include <cstddef>
#include <vector>

#include <sidestep/units.hpp>
#include "backend/flight.hpp"
#include "base/workers.hpp"

namespace sidestep::backends::host {

// As memcpy, but the stores go around the caches: for copies so large that the target would push out
// what is of use, and be pushed out before anybody reads it. The bytes are visible to other threads
// after the usual release and acquire. Plain memcpy on processors without AVX2.
void copy_around_caches(void* to, const void* from, std::size_t bytes);

// The inner loop of such a copy: `to` is aligned to 64 bytes, `bytes` a multiple of 256.
using Streamer = void (*)(char* to, const char* from, std::size_t bytes);

// The loops that this processor can run, the one that copy_around_caches() uses first. For tests, which try them all.
std::vector<Streamer> streamers();
void copy_around_caches(void* to, const void* from, std::size_t bytes, Streamer stream);

// From which size of a whole copy on copy_around_caches is worth it, when `threads` threads share it:
// one thread's share of the last cache, kept within 1 and 4 MiB.
std::size_t cache_share(int threads);

// One of many copies.
struct CopySpan {
    void* to;
    const void* from;
    Bytes bytes;
};

// Threads that copy, first come first served: each takes the next few parts until none is left. Ends when all copies have.
// Any thread may call.
class CopyPool {
public:
    // Up to `threads` threads, on the processors `cpus` (empty: on any). A copy of `around_caches_from` bytes
    // and more goes around the caches, a batch never; 0 for cache_share().
    CopyPool(int threads, std::vector<int> cpus, Bytes around_caches_from = 0);

    // One copy, or a batch. `bytes` is what the spans have together, above 0. The flight ends when every byte has arrived. Never
    // waits for a copy. Fails as base::Workers::add does.
    Result<void> copy(std::vector<CopySpan> spans, Bytes bytes, backend::Flight& flight);

private:
    struct Job;

    const std::size_t max_threads_;
    const Bytes around_caches_from_;
    base::Workers workers_;
};

}  // namespace sidestep::backends::host
