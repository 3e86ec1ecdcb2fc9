// Threads that copy.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

namespace sidestep::backends::host {

// One of many copies.
struct CopySpan {
    void* to;
    const void* from;
    Bytes bytes;
};

// One copy, or a batch of them, that several threads share: each takes the next block, or the next few
// copies, until none is left.
class CopyJob {
public:
    CopyJob(void* to, const void* from, Bytes bytes)
        : to_(static_cast<char*>(to)), from_(static_cast<const char*>(from)), bytes_(bytes), left_(bytes) {}
    // `bytes` is what the spans have together, above 0.
    CopyJob(std::vector<CopySpan> spans, Bytes bytes)
        : to_(nullptr), from_(nullptr), bytes_(bytes), spans_(std::move(spans)), left_(bytes) {}

    // Whether every byte has arrived. Never blocks.
    bool done() const { return left_.load(std::memory_order_acquire) == 0; }

private:
    friend class CopyPool;
    // Copies blocks until the last one has been taken.
    void help(Bytes around_caches_from);
    void help_spans();

    char* const to_;
    const char* const from_;
    const Bytes bytes_;
    const std::vector<CopySpan> spans_;  // of a batch
    std::atomic<Bytes> cursor_{0};       // where the next block begins; of a batch: the next span
    std::atomic<Bytes> left_;            // bytes that have not arrived
};

// A bounded queue of jobs and the threads that work on them, first come first served. The threads start
// with the first job, stay for the pool's life and end with it; jobs still queued are finished first.
// Any thread may submit.
class CopyPool {
public:
    // Up to `threads` threads, on the processors `cpus` (empty: on any). Copies of `around_caches_from` bytes
    // and more go around the caches; 0 for cache_share().
    CopyPool(int threads, std::vector<int> cpus, Bytes around_caches_from = 0);
    ~CopyPool();

    // Never waits for a job. ErrorCode::out_of_memory where the queue is full or no thread can start.
    Result<void> submit(std::shared_ptr<CopyJob> job);

private:
    bool start_threads();
    void work();

    const int max_threads_;
    const std::vector<int> cpus_;
    const Bytes around_caches_from_;

    std::mutex mutex_;  // guards what follows
    std::condition_variable wake_;
    std::deque<std::shared_ptr<CopyJob>> jobs_;
    std::vector<std::thread> threads_;
    bool stopping_ = false;
};

}  // namespace sidestep::backends::host
