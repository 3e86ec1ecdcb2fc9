// Host memory to host memory, beside plain memcpy.
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "bench/case.hpp"

namespace sidestep::bench {
namespace {

std::string nothing_missing(const Context&) { return {}; }

// A plain multi-threaded memcpy: each thread copies one contiguous share. Threads are started per copy, as
// a program without a pool would, and their start is left out of the time.
double plain_copy(char* to, const char* from, Bytes bytes, unsigned threads) {
    std::vector<std::thread> workers;
    std::atomic<unsigned> ready{0};
    std::atomic<bool> go{false};
    for (unsigned i = 0; i < threads; ++i)
        workers.emplace_back([&, i] {
            const Bytes begin = bytes * i / threads, end = bytes * (i + 1) / threads;
            ++ready;
            while (!go) std::this_thread::yield();
            std::memcpy(to + begin, from + begin, end - begin);
        });
    while (ready != threads) std::this_thread::yield();
    return seconds_of([&] {
        go = true;
        for (auto& worker : workers) worker.join();
    });
}

// The number of threads with which plain memcpy is quickest here.
unsigned best_threads(char* to, const char* from, Bytes bytes) {
    unsigned best = 1;
    double best_seconds = 1e9;
    for (unsigned threads = 1; threads <= 2 * std::thread::hardware_concurrency() && threads <= 64; threads *= 2) {
        for (int repeat = 0; repeat < 3; ++repeat) {
            const double seconds = plain_copy(to, from, bytes, threads);
            if (seconds < best_seconds) {
                best_seconds = seconds;
                best = threads;
            }
        }
    }
    return best;
}

Result<std::vector<Figure>> run_large(const Context& context, const Options& options) {
    const Bytes bytes = options.smoke ? 8_MiB : options.bytes;
    auto from = context.allocate(Place::host(), bytes, MemoryKind::pageable);
    if (!from) return from.error();
    auto to = context.allocate(Place::host(), bytes, MemoryKind::pageable);
    if (!to) return to.error();
    std::memset(from->address(), 1, bytes);
    std::memset(to->address(), 2, bytes);
    auto* target = static_cast<char*>(to->address());
    const auto* source = static_cast<const char*>(from->address());
    const unsigned threads = best_threads(target, source, bytes);
    auto figure = rate_figure(
        "host -> host, " + format_bytes(bytes), bytes, options,
        [&] { return timed_copy(context, from->buffer(), to->buffer()); },
        "memcpy, " + std::to_string(threads) + " threads (the best count)",
        [&] { return plain_copy(target, source, bytes, threads); });
    if (!figure) return figure.error();
    if (std::memcmp(target, source, bytes) != 0)
        return Error{ErrorCode::mismatch, "host copy differs from its source", "bench", {}};
    return std::vector<Figure>{std::move(*figure)};
}

// Microseconds of one small copy, averaged over a batch; the batch is repeated for the spread.
Result<std::vector<Figure>> run_small(const Context& context, const Options& options) {
    constexpr Bytes bytes = 4096;
    const int batch = options.smoke ? 10 : 20'000;
    std::vector<char> from(bytes, 1), to(bytes, 2);
    const Buffer source = Buffer::host(from.data(), bytes), target = Buffer::host(to.data(), bytes);
    Figure figure{"host -> host, 4 KiB, one at a time", "us", {}, {}, "memcpy"};
    for (int round = -1; round < options.samples; ++round) {
        bool failed = false;
        const double seconds = seconds_of([&] {
            for (int i = 0; i < batch; ++i) failed |= !context.copy(source, target).wait().ok();
        });
        if (failed) return Error{ErrorCode::internal, "a 4 KiB host copy failed", "bench", {}};
        const double plain = seconds_of([&] {
            for (int i = 0; i < batch; ++i) {
                std::memcpy(to.data(), from.data(), bytes);
                asm volatile("" ::: "memory");
            }
        });
        if (round < 0) continue;
        figure.measured.values.push_back(seconds / batch * 1e6);
        figure.peer.values.push_back(plain / batch * 1e6);
    }
    return std::vector<Figure>{std::move(figure)};
}

}  // namespace

std::vector<Case> host_cases() {
    return {{"host_large", "Host memory to host memory, large", nothing_missing, run_large},
            {"host_small", "Host memory to host memory, 4 KiB, whole call", nothing_missing, run_small}};
}

}  // namespace sidestep::bench
