#include "backends/host/copy_pool.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/host/block_copy.hpp"
#include "driver/cpus.hpp"

namespace sidestep::backends::host {
namespace {

// Small enough that threads end together, large enough that taking one costs nothing.
constexpr Bytes block = 1_MiB;

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
        arrived(bytes);
    }
}

void CopyJob::arrived(Bytes bytes) {
    if (left_.fetch_sub(bytes, std::memory_order_acq_rel) == bytes) flight_.end({});
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
        arrived(bytes);
    }
}

CopyPool::CopyPool(int threads, std::vector<int> cpus, Bytes around_caches_from)
    : max_threads_(threads),
      around_caches_from_(around_caches_from > 0 ? around_caches_from : cache_share(threads)),
      workers_({static_cast<std::size_t>(threads)}, "host backend",
               [cpus = std::move(cpus)] { driver::pin_this_thread(cpus); }) {}

// As many threads go at it as there are blocks; each takes the next one until none is left.
Result<void> CopyPool::submit(std::shared_ptr<CopyJob> job) {
    const auto helpers = std::min<Bytes>((job->bytes_ + block - 1) / block, static_cast<Bytes>(max_threads_));
    std::vector<base::Workers::Task> tasks(
        helpers, [job = std::move(job), around = around_caches_from_] { job->help(around); });
    return workers_.add(std::move(tasks));
}

}  // namespace sidestep::backends::host
