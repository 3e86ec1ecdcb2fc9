// Host memory to host memory, beside plain memcpy.
#include <atomic>
#include <cstring>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/case.hpp"

namespace sidestep::bench {
namespace {

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
    for (unsigned threads = 1; threads <= 2 * std::thread::hardware_concurrency() && threads <= 64;
         threads *= 2) {
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
    std::vector<Figure> figures;
    for (const Bytes bytes : options.sizes_or({1_GiB})) {
        SIDESTEP_TRY(auto ends, PaintedPair::make(context, Place::host(), Place::host(), bytes,
                                                  MemoryKind::pageable, MemoryKind::pageable));
        // The plain copy writes elsewhere, so that the check sees what the library wrote.
        SIDESTEP_TRY(auto scratch, context.allocate(Place::host(), bytes, MemoryKind::pageable));
        std::memset(scratch.address(), 3, bytes);
        auto* target = static_cast<char*>(scratch.address());
        const auto* source = static_cast<const char*>(ends.from().address());
        const unsigned threads = best_threads(target, source, bytes);
        const Yardstick plain{fmt::format("memcpy, {} threads (the best count)", threads),
                              [&]() -> Result<double> { return plain_copy(target, source, bytes, threads); }};
        std::string path;
        auto figure =
            measure_rate(link_figure(context, Place::host(), Place::host(), bytes), options,
                         [&] { return timed_copy(context, ends.from(), ends.to(), {}, &path); }, {plain});
        if (!figure) return figure.error();
        figure->path = path;
        SIDESTEP_CHECK(ends.verify(context, options, *figure));
        figures.push_back(std::move(*figure));
    }
    return figures;
}

// Microseconds of one small copy, averaged over a batch; the batch is repeated for the spread.
Result<std::vector<Figure>> run_host_small(const Context& context, const Options& options) {
    constexpr Bytes bytes = 4096;
    const int batch = options.smoke ? 10 : 20'000;
    std::vector<char> from(bytes, 1), to(bytes, 2), elsewhere(bytes, 3);
    const Buffer source = Buffer::host(from.data(), bytes), target = Buffer::host(to.data(), bytes);
    Figure figure = link_figure(context, Place::host(), Place::host(), bytes, "one at a time");
    figure.unit = "us";
    figure.more_is_better = false;
    Samples plain;
    for (int round = -1; round < options.samples; ++round) {
        bool failed = false;
        const double seconds = seconds_of([&] {
            for (int i = 0; i < batch; ++i) failed |= !context.copy(source, target).wait().ok();
        });
        if (failed) return Error{ErrorCode::internal, "a 4 KiB host copy failed", "bench", {}};
        const double bare = seconds_of([&] {
            for (int i = 0; i < batch; ++i) {
                std::memcpy(elsewhere.data(), from.data(), bytes);
                asm volatile("" ::: "memory");
            }
        });
        if (round < 0) continue;
        figure.measured.values.push_back(seconds / batch * 1e6);
        plain.values.push_back(bare / batch * 1e6);
    }
    add_yardstick(figure, "memcpy", std::move(plain));
    if (options.verify && from != to)
        return Error{ErrorCode::mismatch, "host copy differs from its source", "bench", {}};
    figure.verified = options.verify;
    return std::vector<Figure>{std::move(figure)};
}

}  // namespace

std::vector<Case> host_cases() {
    return {{"host_large", "Host memory to host memory, large", nothing_missing, run_large},
            {"host_small", "Host memory to host memory, 4 KiB, whole call", nothing_missing, run_host_small}};
}

}  // namespace sidestep::bench
