// Threads that copy.
#pragma once

#include <vector>

#include <sidestep/units.hpp>
#include "backend/flight.hpp"
#include "base/workers.hpp"

namespace sidestep::backends::host {

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
