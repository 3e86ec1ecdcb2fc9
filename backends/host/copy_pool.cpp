#include "backends/host/copy_pool.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <utility>

#include "backends/host/block_copy.hpp"
#include "driver/cpus.hpp"

namespace sidestep::backends::host {
namespace {

// Small enough that threads end together, large enough that taking one costs nothing.
constexpr Bytes block = 1_MiB;

// Copies of a batch that a thread takes at a time.
constexpr std::size_t spans_at_a_time = 16;

std::vector<CopySpan> blocks_of(const CopySpan& copy) {
    std::vector<CopySpan> blocks;
    for (Bytes at = 0; at < copy.bytes; at += block)
        blocks.push_back({static_cast<char*>(copy.to) + at, static_cast<const char*>(copy.from) + at,
                          std::min(block, copy.bytes - at)});
    return blocks;
}

}  // namespace

struct CopyPool::Job {
    // Copies until the last span has been taken.
    void help() {
        for (std::size_t at = next.fetch_add(at_a_time); at < spans.size(); at = next.fetch_add(at_a_time)) {
            Bytes bytes = 0;
            for (std::size_t i = at; i < std::min(at + at_a_time, spans.size()); ++i) {
                const auto& [to, from, size] = spans[i];
                around_caches ? copy_around_caches(to, from, size)
                              : static_cast<void>(std::memcpy(to, from, size));
                bytes += size;
            }
            if (left.fetch_sub(bytes, std::memory_order_acq_rel) == bytes) flight.end({});
        }
    }

    backend::Flight& flight;
    const std::vector<CopySpan> spans;
    const std::size_t at_a_time;
    const bool around_caches;
    std::atomic<Bytes> left;  // bytes that have not arrived
    std::atomic<std::size_t> next{0};
};

CopyPool::CopyPool(int threads, std::vector<int> cpus, Bytes around_caches_from)
    : max_threads_(static_cast<std::size_t>(threads)),
      around_caches_from_(around_caches_from > 0 ? around_caches_from : cache_share(threads)),
      workers_({max_threads_}, "host backend", [cpus = std::move(cpus)] { driver::pin_this_thread(cpus); }) {}

Result<void> CopyPool::copy(std::vector<CopySpan> spans, Bytes bytes, backend::Flight& flight) {
    const bool alone = spans.size() == 1;
    if (alone) spans = blocks_of(spans.front());
    const std::shared_ptr<Job> job(new Job{flight, std::move(spans), alone ? 1 : spans_at_a_time,
                                           alone && bytes >= around_caches_from_, bytes});
    // As many as find something to do.
    const std::size_t helpers = std::min<std::size_t>((bytes + block - 1) / block, max_threads_);
    return workers_.add(std::vector<base::Workers::Task>(helpers, [job] { job->help(); }));
}

}  // namespace sidestep::backends::host
