#include "backends/host/copy_pool.hpp"

#include <algorithm>
#include <cstring>
#include <system_error>

#include <fmt/format.h>

#include "backends/host/block_copy.hpp"
#include "driver/cpus.hpp"

namespace sidestep::backends::host {
namespace {

// Small enough that threads end together, large enough that taking one costs nothing.
constexpr Bytes block = 1_MiB;

constexpr std::size_t max_jobs = 1 << 16;

// Copies of a batch that a thread takes at a time.
constexpr std::size_t spans_at_a_time = 16;

}  // namespace

void CopyJob::help_spans() {
    for (;;) {
        const std::size_t at = cursor_.fetch_add(spans_at_a_time, std::memory_order_relaxed);
        if (at >= spans_.size()) return;
        Bytes bytes = 0;
        for (std::size_t i = at; i < std::min(at + spans_at_a_time, spans_.size()); ++i) {
            std::memcpy(spans_[i].to, spans_[i].from, spans_[i].bytes);
            bytes += spans_[i].bytes;
        }
        left_.fetch_sub(bytes, std::memory_order_acq_rel);
    }
}

void CopyJob::help(Bytes around_caches_from) {
    if (!spans_.empty()) return help_spans();
    for (;;) {
        const Bytes at = cursor_.fetch_add(block, std::memory_order_relaxed);
        if (at >= bytes_) return;
        const Bytes bytes = std::min(block, bytes_ - at);
        if (bytes_ >= around_caches_from) {
            copy_around_caches(to_ + at, from_ + at, bytes);
        } else {
            std::memcpy(to_ + at, from_ + at, bytes);
        }
        left_.fetch_sub(bytes, std::memory_order_acq_rel);
    }
}

CopyPool::CopyPool(int threads, std::vector<int> cpus, Bytes around_caches_from)
    : max_threads_(threads),
      cpus_(std::move(cpus)),
      around_caches_from_(around_caches_from > 0 ? around_caches_from : cache_share(threads)) {}

CopyPool::~CopyPool() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

// With the mutex held. Fewer threads than wished for will do.
bool CopyPool::start_threads() {
    while (static_cast<int>(threads_.size()) < max_threads_) {
        try {
            threads_.emplace_back([this] { work(); });
        } catch (const std::system_error&) {
            break;
        }
    }
    return !threads_.empty();
}

Result<void> CopyPool::submit(std::shared_ptr<CopyJob> job) {
    const bool shared = job->bytes_ > block;
    {
        const std::lock_guard lock(mutex_);
        if (jobs_.size() >= max_jobs) {
            return Error{ErrorCode::out_of_memory,
                         fmt::format("{} host copies are waiting already", max_jobs), "host backend",
                         "wait for some of them before starting more"};
        }
        if (threads_.empty() && !start_threads()) {
            return Error{ErrorCode::out_of_memory, "the system gives no thread for a host copy",
                         "host backend", "raise the limit on processes (ulimit -u)"};
        }
        jobs_.push_back(std::move(job));
    }
    shared ? wake_.notify_all() : wake_.notify_one();
    return {};
}

void CopyPool::work() {
    driver::pin_this_thread(cpus_);
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
        if (jobs_.empty()) return;  // stopping, and nothing left to do
        const std::shared_ptr<CopyJob> job = jobs_.front();
        lock.unlock();
        job->help(around_caches_from_);
        lock.lock();
        // No block is left to take. The first to notice makes room for the next job.
        if (!jobs_.empty() && jobs_.front() == job) jobs_.pop_front();
    }
}

}  // namespace sidestep::backends::host
