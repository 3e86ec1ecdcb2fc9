// Several copies at once: both directions of a link, and all GPUs from and to the host.
#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/case.hpp"
#include "bench/raw_cuda.hpp"

namespace sidestep::bench {
namespace {

using Ends = std::pair<Place, Place>;

// Each link of the walks with the direction it is crossed in, and how many of the legs do.
using Crossings = std::map<std::pair<std::uint32_t, bool>, int>;

template <typename Call>
void each_crossing(const Topology& topology, DeviceId from, const Path& path, const Call& call) {
    for (const std::uint32_t link : path.links) {
        const bool forward = topology.links()[link].a == from;
        from = forward ? topology.links()[link].b : topology.links()[link].a;
        call(std::pair{link, forward});
    }
}

// What the links let all legs carry together, in GB/s: each leg gets the rate of its path, or less where legs
// share a link in one direction. 0 where that is not known.
double together(const Topology& topology, const std::vector<Ends>& legs) {
    Crossings crossings;
    for (const auto& [from, to] : legs) {
        const auto a = topology.find(from), b = topology.find(to);
        const auto path = a && b ? topology.path(*a, *b) : std::nullopt;
        if (!path) return 0;
        each_crossing(topology, *a, *path, [&](const auto& crossing) { ++crossings[crossing]; });
    }
    double sum = 0;
    for (const auto& [from, to] : legs) {
        const DeviceId a = *topology.find(from), b = *topology.find(to);
        const Path path = *topology.path(a, b);
        const double alone = topology.pair(a, b).gb_per_s;
        double rate = alone;
        each_crossing(topology, a, path, [&](const auto& crossing) {
            // GPUs spread over all NVSwitches: the walk names one of them, the path's rate counts all.
            if (path.all_nvlink || path.gb_per_s <= 0) return;
            const double raw = topology.links()[crossing.first].gb_per_s;
            rate = std::min(rate, raw * alone / path.gb_per_s / crossings[crossing]);
        });
        sum += rate;
    }
    return sum;
}

// Wall seconds until all copies have ended.
Result<double> timed_together(const Context& context, const std::vector<PaintedPair>& pairs) {
    CopyOptions how;
    how.lanes = 1;
    const auto start = std::chrono::steady_clock::now();
    std::vector<Transfer> transfers;
    for (const PaintedPair& pair : pairs) transfers.push_back(context.copy(pair.from(), pair.to(), how));
    for (Transfer& transfer : transfers) SIDESTEP_CHECK(transfer.wait());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The rate of several copies of `bytes` bytes together.
Result<Figure> together_figure(const Context& context, const std::vector<Ends>& legs, Bytes bytes,
                               std::string what, const Options& options) {
    std::vector<PaintedPair> pairs;
    for (const auto& [from, to] : legs) {
        SIDESTEP_TRY(auto pair, PaintedPair::make(context, from, to, bytes));
        pairs.push_back(std::move(pair));
    }
    Figure blank;
    blank.what = std::move(what);
    blank.bytes = bytes * legs.size();
    blank.unit = "GB/s";
    const Topology& topology = context.topology();
    if (!topology.emulated()) blank.limit = together(topology, legs);
    if (blank.limit > 0) blank.limit_source = fmt::format("links: of {} paths together", legs.size());
    auto figure = measure_rate(std::move(blank), options, [&] { return timed_together(context, pairs); });
    if (!figure) return figure;
    for (const PaintedPair& pair : pairs) SIDESTEP_CHECK(pair.verify(context, options, *figure));
    if (!no_raw_cuda(context).empty()) return figure;
    std::vector<raw::Leg> raw_legs;
    for (const auto& [from, to] : legs) raw_legs.push_back({raw::number_of(from), raw::number_of(to)});
    pairs.clear();  // their memory is needed once more
    SIDESTEP_TRY(auto raw, raw::copy_rates(raw_legs, bytes, options.samples));
    add_yardstick(*figure, "driver's copy engines, 16 in a row each", std::move(raw));
    return figure;
}

Result<std::vector<Figure>> run_host_both_ways(const Context& context, const Options& options) {
    std::vector<Figure> figures;
    for (const int gpu : gpus_of(context, options))
        for (const Bytes bytes : options.sizes_or({large(context)})) {
            const Place device = Place::gpu(gpu);
            if (!options.wants(Place::host(), device) && !options.wants(device, Place::host())) continue;
            auto figure = together_figure(context, {{Place::host(), device}, {device, Place::host()}}, bytes,
                                          fmt::format("host <-> gpu:{}, sum of both ways", gpu), options);
            if (!figure) return figure.error();
            figure->from = "host";
            figure->to = device.to_string();
            figures.push_back(std::move(*figure));
        }
    return figures;
}

Result<std::vector<Figure>> run_peer_both_ways(const Context& context, const Options& options) {
    std::vector<Figure> figures;
    for (const auto& [from, to] : pairs_of(context, options))
        for (const Bytes bytes : options.sizes_or({large(context)})) {
            if (from.index() > to.index() && options.wants(to, from)) continue;  // once a pair
            auto figure = together_figure(
                context, {{from, to}, {to, from}}, bytes,
                fmt::format("{} <-> {}, sum of both ways", from.to_string(), to.to_string()), options);
            if (!figure) return figure.error();
            figure->from = from.to_string();
            figure->to = to.to_string();
            figures.push_back(std::move(*figure));
        }
    return figures;
}

Result<std::vector<Figure>> run_all_gpus(const Context& context, const Options& options) {
    std::vector<Figure> figures;
    for (const bool up : {true, false}) {
        std::vector<Ends> legs;
        for (const int gpu : gpus_of(context, options)) {
            const Ends ends =
                up ? Ends{Place::host(), Place::gpu(gpu)} : Ends{Place::gpu(gpu), Place::host()};
            if (options.wants(ends.first, ends.second)) legs.push_back(ends);
        }
        for (const Bytes bytes : legs.empty() ? std::vector<Bytes>{} : options.sizes_or({large(context)})) {
            SIDESTEP_TRY(auto figure,
                         together_figure(context, legs, bytes,
                                         up ? fmt::format("host -> {} GPUs at once", legs.size())
                                            : fmt::format("{} GPUs at once -> host", legs.size()),
                                         options));
            figures.push_back(std::move(figure));
        }
    }
    return figures;
}

}  // namespace

std::vector<Case> both_ways_cases() {
    return {
        {"host_both_ways", "Pinned host memory and each GPU, both ways at once", no_gpu, run_host_both_ways},
        {"peer_both_ways", "Every pair of GPUs, both ways at once", fewer_than_two_gpus, run_peer_both_ways},
        {"all_gpus", "The host and all GPUs at once", no_gpu, run_all_gpus}};
}

}  // namespace sidestep::bench
