// Thousands of small copies with one call, beside the driver's one call each.
#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/case.hpp"
#include "bench/raw_cuda_batch.hpp"

namespace sidestep::bench {
namespace {

std::size_t copies_of(const Options& options) {
    return options.smoke ? 100 : 10'000;
}

// The rate of one batch, from the call until wait() returns, and the same in copies a second.
Result<void> add_batch(const Context& context, const Place& from, const Place& to, Bytes bytes,
                       const Options& options, std::vector<Figure>& figures) {
    const std::size_t count = copies_of(options);
    SIDESTEP_TRY(auto ends, PaintedPair::make(context, from, to, bytes * count));
    std::vector<BatchItem> items;
    for (std::size_t i = 0; i < count; ++i)
        items.push_back({ends.from().slice(i * bytes, bytes), ends.to().slice(i * bytes, bytes)});
    std::string path;
    const auto once = [&]() -> Result<double> {
        std::optional<Result<Receipt>> receipt;
        const double seconds = seconds_of([&] { receipt = context.copy_batch(items).wait(); });
        if (!*receipt) return receipt->error();
        if (path.empty()) path = words_of(**receipt);
        return seconds;
    };
    const std::string words = fmt::format("{} x {}", count, format_bytes(bytes));
    SIDESTEP_TRY(auto rate,
                 measure_rate(link_figure(context, from, to, bytes * count, words), options, once));
    rate.path = path;
    SIDESTEP_CHECK(ends.verify(context, options, rate));
    if (no_raw_cuda(context).empty()) {
        auto loop =
            raw::loop_rates({raw::number_of(from), raw::number_of(to)}, bytes, count, options.samples);
        if (!loop) return loop.error();
        const bool peers = from.is_gpu() && to.is_gpu();
        add_yardstick(rate, peers ? "a loop of cuMemcpyPeerAsync" : "a loop of cuMemcpyAsync",
                      std::move(*loop));
    }
    Figure copies = rate;
    copies.what += ", copies a second";
    copies.unit = "M/s";
    copies.bytes = 0;
    copies.limit = 0;
    copies.limit_source.clear();
    const auto to_copies = [bytes](Samples& samples) {
        for (double& value : samples.values) value = value * 1e9 / static_cast<double>(bytes) / 1e6;
    };
    to_copies(copies.measured);
    for (Peer& peer : copies.peers) to_copies(peer.samples);
    figures.push_back(std::move(rate));
    figures.push_back(std::move(copies));
    return {};
}

// The first two GPUs both ways, or the pairs that were asked for; then the first GPU and the host.
Result<std::vector<Figure>> run_gpu_small(const Context& context, const Options& options) {
    std::vector<std::pair<Place, Place>> ways = pairs_of(context, options);
    const bool asked = !options.gpus.empty() || options.from || options.to;
    if (!asked && ways.size() > 1) ways = {{Place::gpu(0), Place::gpu(1)}, {Place::gpu(1), Place::gpu(0)}};
    for (const int gpu : gpus_of(context, options)) {
        for (const bool up : {true, false}) {
            const Place from = up ? Place::host() : Place::gpu(gpu);
            const Place to = up ? Place::gpu(gpu) : Place::host();
            if (options.wants(from, to)) ways.emplace_back(from, to);
        }
        if (!asked) break;
    }
    std::vector<Figure> figures;
    for (const auto& [from, to] : ways)
        for (const Bytes bytes : options.sizes_or({4_KiB}))
            SIDESTEP_CHECK(add_batch(context, from, to, bytes, options, figures));
    return figures;
}

}  // namespace

std::vector<Case> small_cases() {
    return {{"small_copies", "10,000 copies of 4 KiB with one call, between two GPUs and with the host",
             no_gpu, run_gpu_small}};
}

}  // namespace sidestep::bench
