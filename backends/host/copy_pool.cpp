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

CopyJob::CopyJob(const CopySpan& copy, backend::Flight& flight)
    : at_a_time_(1), one_copy_(copy.bytes), left_(copy.bytes), flight_(flight) {
    for (Bytes at = 0; at < copy.bytes; at += block)
        spans_.push_back({static_cast<char*>(copy.to) + at, static_cast<const char*>(copy.from) + at,
                          std::min(block, copy.bytes - at)});
    helpers_ = spans_.size();
}

CopyJob::CopyJob(std::vector<CopySpan> spans, Bytes bytes, backend::Flight& flight)
    : spans_(std::move(spans)),
      at_a_time_(spans_at_a_time),
      one_copy_(0),
      helpers_((bytes + block - 1) / block),
      left_(bytes),
      flight_(flight) {}

void CopyJob::help(Bytes around_caches_from) {
    for (std::size_t at = next_.fetch_add(at_a_time_); at < spans_.size(); at = next_.fetch_add(at_a_time_)) {
        Bytes bytes = 0;
        for (std::size_t i = at; i < std::min(at + at_a_time_, spans_.size()); ++i) {
            const auto& [to, from, size] = spans_[i];
            one_copy_ >= around_caches_from ? copy_around_caches(to, from, size)
                                            : static_cast<void>(std::memcpy(to, from, size));
            bytes += size;
        }
        if (left_.fetch_sub(bytes, std::memory_order_acq_rel) == bytes) flight_.end({});
    }
}

CopyPool::CopyPool(int threads, std::vector<int> cpus, Bytes around_caches_from)
    : max_threads_(threads),
      around_caches_from_(around_caches_from > 0 ? around_caches_from : cache_share(threads)),
      workers_({static_cast<std::size_t>(threads)}, "host backend",
               [cpus = std::move(cpus)] { driver::pin_this_thread(cpus); }) {}

Result<void> CopyPool::submit(std::shared_ptr<CopyJob> job) {
    const auto helpers = std::min(job->helpers_, static_cast<std::size_t>(max_threads_));
    std::vector<base::Workers::Task> tasks(
        helpers, [job = std::move(job), around = around_caches_from_] { job->help(around); });
    return workers_.add(std::move(tasks));
}

}  // namespace sidestep::backends::host
