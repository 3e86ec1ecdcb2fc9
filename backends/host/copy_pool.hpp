// Threads that copy.
#pragma once

#include <atomic>
#include <memory>
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

// Copies that several threads share: each takes the next few until none is left. The flight ends when every byte has
// arrived.
class CopyJob {
public:
    // One copy, cut into blocks.
    CopyJob(const CopySpan& copy, backend::Flight& flight);
    // A batch. `bytes` is what the spans have together, above 0.
    CopyJob(std::vector<CopySpan> spans, Bytes bytes, backend::Flight& flight);

private:
    friend class CopyPool;
    // Copies until the last span has been taken.
    void help(Bytes around_caches_from);

    std::vector<CopySpan> spans_;
    const std::size_t at_a_time_;
    const Bytes one_copy_;  // its bytes; 0: of a batch, which goes through the caches
    std::size_t helpers_;   // threads that find something to do
    std::atomic<std::size_t> next_{0};
    std::atomic<Bytes> left_;  // bytes that have not arrived
    backend::Flight& flight_;
};

// Threads that work on jobs, first come first served. Ends when all jobs have. Any thread may submit.
class CopyPool {
public:
    // Up to `threads` threads, on the processors `cpus` (empty: on any). Copies of `around_caches_from` bytes
    // and more go around the caches; 0 for cache_share().
    CopyPool(int threads, std::vector<int> cpus, Bytes around_caches_from = 0);

    // Never waits for a job. Fails as base::Workers::add does.
    Result<void> submit(std::shared_ptr<CopyJob> job);

private:
    const int max_threads_;
    const Bytes around_caches_from_;
    base::Workers workers_;
};

}  // namespace sidestep::backends::host
