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

// One copy, or a batch of them, that several threads share: each takes the next block, or the next few
// copies, until none is left. The flight ends when every byte has arrived.
class CopyJob {
public:
    CopyJob(void* to, const void* from, Bytes bytes, backend::Flight& flight)
        : to_(static_cast<char*>(to)),
          from_(static_cast<const char*>(from)),
          bytes_(bytes),
          left_(bytes),
          flight_(flight) {}
    // `bytes` is what the spans have together, above 0.
    CopyJob(std::vector<CopySpan> spans, Bytes bytes, backend::Flight& flight)
        : to_(nullptr),
          from_(nullptr),
          bytes_(bytes),
          spans_(std::move(spans)),
          left_(bytes),
          flight_(flight) {}

private:
    friend class CopyPool;
    // Copies blocks until the last one has been taken.
    void help(Bytes around_caches_from);
    void help_spans();
    void arrived(Bytes bytes);

    char* const to_;
    const char* const from_;
    const Bytes bytes_;
    const std::vector<CopySpan> spans_;  // of a batch
    std::atomic<Bytes> cursor_{0};       // where the next block begins; of a batch: the next span
    std::atomic<Bytes> left_;            // bytes that have not arrived
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
