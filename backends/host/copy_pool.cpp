#include "backends/host/copy_pool.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "driver/cpus.hpp"
#include "driver/store_fence.hpp"

namespace sidestep::backends::host {
namespace {

constexpr std::size_t cache_line = 64;  // bytes of a cache line
constexpr std::size_t step = 4 * cache_line;

#if defined(__x86_64__)

// Several of a kind, since what the processor can do is known when the program runs. Four loads before the stores.
__attribute__((target("avx512f"))) void stream_avx512(char* to, const char* from, std::size_t bytes) {
    __m512i some[4];
    for (std::size_t at = 0; at < bytes; at += sizeof some) {
        for (std::size_t i = 0; i < 4; ++i) some[i] = _mm512_loadu_si512(from + at + i * cache_line);
        for (std::size_t i = 0; i < 4; ++i)
            _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at + i * cache_line), some[i]);
    }
}

// Eight pages side by side, two lines of each in turn: Intel's memory controllers like many open pages, AMD's do not
// (docs/lab-book.md, "What constants stand on").
__attribute__((target("avx512f"))) void stream_avx512_pages(char* to, const char* from, std::size_t bytes) {
    constexpr std::size_t page = 4096;
    constexpr std::size_t group = 8 * page;
    const std::size_t grouped = bytes / group * group;
    for (std::size_t begin = 0; begin < grouped; begin += group) {
        for (std::size_t in_page = 0; in_page < page; in_page += 2 * cache_line) {
            for (std::size_t at = begin + in_page; at < begin + group; at += page) {
                const __m512i a = _mm512_loadu_si512(from + at);
                const __m512i b = _mm512_loadu_si512(from + at + cache_line);
                _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), a);
                _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at + cache_line), b);
            }
        }
    }
    stream_avx512(to + grouped, from + grouped, bytes - grouped);
}

__attribute__((target("avx2"))) void stream_avx2(char* to, const char* from, std::size_t bytes) {
    __m256i some[4];
    for (std::size_t at = 0; at < bytes; at += sizeof some) {
        const auto* source = reinterpret_cast<const __m256i*>(from + at);
        for (std::size_t i = 0; i < 4; ++i) some[i] = _mm256_loadu_si256(source + i);
        for (std::size_t i = 0; i < 4; ++i)
            _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at) + i, some[i]);
    }
}

#endif

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

std::vector<Streamer> streamers() {
    std::vector<Streamer> all;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) {
        all = {stream_avx512, stream_avx512_pages};
        if (__builtin_cpu_is("intel")) std::swap(all[0], all[1]);
    }
    if (__builtin_cpu_supports("avx2")) all.push_back(stream_avx2);
#endif
    all.push_back([](char* to, const char* from, std::size_t bytes) { std::memcpy(to, from, bytes); });
    return all;
}

void copy_around_caches(void* to, const void* from, std::size_t bytes, Streamer stream) {
    auto* target = static_cast<char*>(to);
    const auto* source = static_cast<const char*>(from);
    const std::size_t head =
        std::min(bytes, (cache_line - reinterpret_cast<std::uintptr_t>(target) % cache_line) % cache_line);
    const std::size_t body = (bytes - head) / step * step;
    std::memcpy(target, source, head);
    if (body != 0) stream(target + head, source + head, body);
    std::memcpy(target + head + body, source + head + body, bytes - head - body);
    driver::store_fence();
}

void copy_around_caches(void* to, const void* from, std::size_t bytes) {
    static const Streamer stream = streamers().front();
    copy_around_caches(to, from, bytes, stream);
}

std::size_t cache_share(int threads) {
    const long cache = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
    const auto share =
        static_cast<std::size_t>(std::max(cache, 0l)) / static_cast<std::size_t>(std::max(threads, 1));
    return std::clamp<std::size_t>(share, std::size_t{1} << 20, std::size_t{4} << 20);
}

struct CopyPool::Job final : backend::Withdrawable {
    Job(backend::Flight& of, std::vector<CopySpan> copies, std::size_t at_once, bool past_caches, Bytes bytes)
        : flight(of), spans(std::move(copies)), at_a_time(at_once), around_caches(past_caches), left(bytes) {}

    bool withdraw() override {
        withdrawn.store(true);
        Bytes bytes = 0;
        for (std::size_t at = next.exchange(spans.size()); at < spans.size(); ++at) bytes += spans[at].bytes;
        return bytes > 0 && left.fetch_sub(bytes, std::memory_order_acq_rel) == bytes;
    }

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
            if (left.fetch_sub(bytes, std::memory_order_acq_rel) == bytes) flight.end(result());
        }
    }

    Result<void> result() const {
        if (!withdrawn.load()) return {};
        return Error{ErrorCode::cancelled, "it was withdrawn", "host backend"};
    }

    backend::Flight& flight;
    const std::vector<CopySpan> spans;
    const std::size_t at_a_time;
    const bool around_caches;
    std::atomic<Bytes> left;  // bytes that have not arrived
    std::atomic<std::size_t> next{0};
    std::atomic<bool> withdrawn{false};
};

CopyPool::CopyPool(int threads, std::vector<int> cpus, Bytes around_caches_from)
    : max_threads_(static_cast<std::size_t>(threads)),
      around_caches_from_(around_caches_from > 0 ? around_caches_from : cache_share(threads)),
      workers_({max_threads_}, "host backend", [cpus = std::move(cpus)] { driver::pin_this_thread(cpus); }) {}

Result<void> CopyPool::copy(std::vector<CopySpan> spans, Bytes bytes, backend::Flight& flight) {
    const bool alone = spans.size() == 1;
    if (alone) spans = blocks_of(spans.front());
    const std::shared_ptr<Job> job(new Job(flight, std::move(spans), alone ? 1 : spans_at_a_time,
                                           alone && bytes >= around_caches_from_, bytes));
    flight.queued(job);
    // As many as find something to do.
    const std::size_t helpers = std::min<std::size_t>((bytes + block - 1) / block, max_threads_);
    return workers_.add(std::vector<base::Workers::Task>(helpers, [job] { job->help(); }));
}

}  // namespace sidestep::backends::host
