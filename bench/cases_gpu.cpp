// Copies with a GPU at one end or both, one at a time, beside what the driver does by itself.
#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/case.hpp"
#include "bench/raw_cuda.hpp"

namespace sidestep::bench {
namespace {

// One pair of places: the library's whole copies, on one lane, beside the driver's back-to-back ones.
Result<Figure> pair_figure(const Context& context, const Place& from, const Place& to, Bytes bytes,
                           const Options& options, Prefer prefer, const std::string& words) {
    CopyOptions how;
    how.prefer = prefer;
    how.lanes = 1;
    SIDESTEP_TRY(auto ends, PaintedPair::make(context, from, to, bytes));
    std::string path;
    auto figure = measure_rate(link_figure(context, from, to, bytes, words), options,
                               [&] { return timed_copy(context, ends.from(), ends.to(), how, &path); });
    if (!figure) return figure;
    figure->path = path;
    SIDESTEP_CHECK(ends.verify(context, options, *figure));
    if (!no_raw_cuda(context).empty()) return figure;
    auto raw = raw::copy_rates({{raw::number_of(from), raw::number_of(to)}}, bytes, options.samples);
    if (!raw) return raw.error();
    add_yardstick(*figure, "driver's copy engine, 16 in a row", std::move(*raw));
    return figure;
}

Result<std::vector<Figure>> run_host_link(const Context& context, const Options& options) {
    std::vector<Figure> figures;
    for (const int gpu : gpus_of(context, options))
        for (const bool up : {true, false})
            for (const Bytes bytes : options.sizes_or({large(context)})) {
                const Place from = up ? Place::host() : Place::gpu(gpu),
                            to = up ? Place::gpu(gpu) : Place::host();
                if (!options.wants(from, to)) continue;
                SIDESTEP_TRY(auto figure,
                             pair_figure(context, from, to, bytes, options, Prefer::automatic, ""));
                figures.push_back(std::move(figure));
            }
    return figures;
}

Result<std::vector<Figure>> run_pairs(const Context& context, const Options& options, Prefer prefer,
                                      const std::string& words) {
    std::vector<Figure> figures;
    for (const auto& [from, to] : pairs_of(context, options))
        for (const Bytes bytes : options.sizes_or({large(context)})) {
            SIDESTEP_TRY(auto figure, pair_figure(context, from, to, bytes, options, prefer, words));
            figures.push_back(std::move(figure));
        }
    return figures;
}

Result<std::vector<Figure>> run_peer_engine(const Context& context, const Options& options) {
    return run_pairs(context, options, Prefer::copy_engine, "");
}

Result<std::vector<Figure>> run_peer_kernel(const Context& context, const Options& options) {
    return run_pairs(context, options, Prefer::kernel, "kernel");
}

// The rate of whole copies of one size, small ones repeated until a sample is long enough for the clock.
Result<Figure> size_figure(const Context& context, const Place& from, const Place& to, Bytes bytes,
                           const Options& options) {
    SIDESTEP_TRY(auto ends, PaintedPair::make(context, from, to, bytes));
    const Bytes copies = options.smoke ? 1 : std::clamp<Bytes>(64_MiB / std::max<Bytes>(bytes, 1), 1, 200);
    std::string path;
    Figure plain = link_figure(context, from, to, bytes);
    limit_by_lanes(plain, context, from, to);
    auto figure = measure_rate(std::move(plain), options, [&]() -> Result<double> {
        double seconds = 0;
        for (Bytes i = 0; i < copies; ++i) {
            const auto one = timed_copy(context, ends.from(), ends.to(), {}, i == 0 ? &path : nullptr);
            if (!one) return one;
            seconds += *one;
        }
        return seconds / static_cast<double>(copies);
    });
    if (!figure) return figure;
    figure->path = path;
    SIDESTEP_CHECK(ends.verify(context, options, *figure));
    return figure;
}

// What copy() makes of each size when nothing else is asked for.
Result<std::vector<Figure>> run_sizes(const Context& context, const Options& options) {
    std::vector<Bytes> own;
    for (Bytes bytes = 4_KiB; bytes <= large(context); bytes *= 4) own.push_back(bytes);
    std::vector<std::pair<Place, Place>> ends;
    const std::vector<int> gpus = gpus_of(context, options);
    if (options.from && options.to) {
        ends.emplace_back(*options.from, *options.to);
    } else if (!gpus.empty()) {
        ends.emplace_back(Place::host(), Place::gpu(gpus[0]));
        ends.emplace_back(Place::gpu(gpus[0]), Place::host());
        if (gpus.size() > 1) ends.emplace_back(Place::gpu(gpus[0]), Place::gpu(gpus[1]));
    }
    std::vector<Figure> figures;
    for (const auto& [from, to] : ends)
        for (const Bytes bytes : options.wants(from, to) ? options.sizes_or(own) : std::vector<Bytes>{}) {
            SIDESTEP_TRY(auto figure, size_figure(context, from, to, bytes, options));
            figures.push_back(std::move(figure));
        }
    return figures;
}

Figure microseconds(const std::string& what, Bytes bytes) {
    Figure figure;
    figure.what = what;
    figure.from = "host";
    figure.to = "gpu:0";
    figure.bytes = bytes;
    figure.unit = "us";
    figure.more_is_better = false;
    return figure;
}

// Microseconds the caller spends to submit one copy, and until it is seen to have ended.
Result<std::vector<Figure>> run_submit(const Context& context, const Options& options) {
    constexpr Bytes bytes = 4096;
    const int batch = options.smoke ? 10 : 2000;
    const bool with_raw = no_raw_cuda(context).empty();
    SIDESTEP_TRY(auto ends, PaintedPair::make(context, Place::host(), Place::gpu(0), bytes));
    Figure submit = microseconds("host -> gpu:0, submission", bytes);
    Figure whole = microseconds("host -> gpu:0, until seen done", bytes);
    Samples bare_submit, bare_whole;
    for (int round = -1; round < options.samples; ++round) {
        Samples submits, wholes;
        for (int i = 0; i < batch; ++i) {
            std::optional<Transfer> transfer;
            const double submitted =
                seconds_of([&] { transfer.emplace(context.copy(ends.from(), ends.to())); });
            Result<void> ended;
            const double waited = seconds_of([&] {
                if (auto done = transfer->wait(); !done) ended = done.error();
            });
            if (!ended) return ended.error();
            submits.values.push_back(submitted * 1e6);
            wholes.values.push_back((submitted + waited) * 1e6);
        }
        SIDESTEP_TRY(const auto cost, with_raw ? raw::copy_cost(raw::host, 0, bytes, batch) : raw::Cost{});
        if (round < 0) continue;
        submit.measured.values.push_back(submits.median());
        whole.measured.values.push_back(wholes.median());
        if (!with_raw) continue;
        bare_submit.values.push_back(cost.submit_us);
        bare_whole.values.push_back(cost.complete_us);
    }
    add_yardstick(submit, "bare cuMemcpyAsync", bare_submit);
    add_yardstick(whole, "bare call and query", bare_whole);
    for (Figure* figure : {&submit, &whole}) SIDESTEP_CHECK(ends.verify(context, options, *figure));
    return std::vector<Figure>{std::move(submit), std::move(whole)};
}

// Memory that the copy engine cannot reach, staged through a pinned ring.
Result<std::vector<Figure>> run_staged(const Context& context, const Options& options) {
    std::vector<Figure> figures;
    for (const int gpu : gpus_of(context, options))
        for (const bool up : {true, false}) {
            const Place from = up ? Place::host() : Place::gpu(gpu),
                        to = up ? Place::gpu(gpu) : Place::host();
            if (gpu != gpus_of(context, options).front() || !options.wants(from, to)) continue;
            for (const Bytes bytes : options.sizes_or({large(context)})) {
                const MemoryKind pageable = MemoryKind::pageable, automatic = MemoryKind::automatic;
                SIDESTEP_TRY(auto ends, PaintedPair::make(context, from, to, bytes, up ? pageable : automatic,
                                                          up ? automatic : pageable));
                std::string path;
                auto figure = measure_rate(link_figure(context, from, to, bytes, "pageable"), options, [&] {
                    return timed_copy(context, ends.from(), ends.to(), {}, &path);
                });
                if (!figure) return figure.error();
                figure->path = path;
                SIDESTEP_CHECK(ends.verify(context, options, *figure));
                figures.push_back(std::move(*figure));
            }
        }
    return figures;
}

}  // namespace

std::vector<Case> gpu_cases() {
    return {{"host_link", "Pinned host memory and each GPU, each way, one path", no_gpu, run_host_link},
            {"peer_engine", "Every pair of GPUs, copy engine", fewer_than_two_gpus, run_peer_engine},
            {"peer_kernel", "Every pair of GPUs, load/store kernel", fewer_than_two_gpus, run_peer_kernel},
            {"sizes", "What a copy reaches over its size", no_gpu, run_sizes},
            {"gpu_submit", "What a small GPU copy costs the caller", no_gpu, run_submit},
            {"gpu_staged", "Pageable memory and a GPU, each way", no_gpu, run_staged}};
}

}  // namespace sidestep::bench
