// How long one load, one flag and one addition take: by kernels of the benchmark's own, without the library.
#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/case.hpp"
#include "bench/raw_cuda.hpp"

namespace sidestep::bench {
namespace {

// Small enough for the caches of the GPU that owns it, as in nvbandwidth's latency tests, and large enough
// for its memory.
constexpr Bytes cached_ring = 2_MiB;
constexpr Bytes memory_ring = 512_MiB;

std::string no_two_raw_gpus(const Context& context) {
    std::string missing = no_raw_cuda(context);
    return missing.empty() ? fewer_than_two_gpus(context) : missing;
}

Figure nanoseconds(std::string what, const Place& from, const Place& to) {
    Figure figure;
    figure.what = std::move(what);
    figure.from = from.to_string();
    figure.to = to.to_string();
    figure.unit = "ns";
    figure.more_is_better = false;
    return figure;
}

// One load by `gpu` from memory of `owner` (a GPU or the host).
Result<Figure> chase(int gpu, const Place& owner, Bytes ring, const std::string& words,
                     const Options& options) {
    Figure figure =
        nanoseconds(fmt::format("gpu:{} reads {}{}", gpu, owner.to_string(), words), Place::gpu(gpu), owner);
    SIDESTEP_TRY(auto latency, raw::chase_latency(gpu, owner.is_gpu() ? owner.index() : raw::host,
                                                  options.smoke ? 64_KiB : ring, options.smoke ? 100 : 50'000,
                                                  options.samples));
    figure.measured = std::move(latency);
    return figure;
}

Result<std::vector<Figure>> run_chase(const Context& context, const Options& options) {
    std::vector<Figure> figures;
    const auto add = [&](Result<Figure> figure) {
        if (figure) figures.push_back(std::move(*figure));
        return figure.ok() ? Result<void>() : Result<void>(figure.error());
    };
    for (const int gpu : gpus_of(context, options)) {
        const Place own = Place::gpu(gpu);
        if (options.wants(own, own)) {
            SIDESTEP_CHECK(add(chase(gpu, own, cached_ring, ", cached", options)));
            SIDESTEP_CHECK(add(chase(gpu, own, memory_ring, ", memory", options)));
        }
        if (!options.wants(own, Place::host())) continue;
        SIDESTEP_CHECK(add(chase(gpu, Place::host(), cached_ring, "", options)));
    }
    for (const auto& [reader, owner] : pairs_of(context, options)) {
        if (!context.topology().peer_access(reader.index(), owner.index()).allowed) continue;
        SIDESTEP_CHECK(add(chase(reader.index(), owner, cached_ring, "", options)));
    }
    return figures;
}

Result<std::vector<Figure>> run_flags(const Context& context, const Options& options) {
    std::vector<Figure> figures;
    for (const auto& [first, second] : pairs_of(context, options)) {
        const int a = first.index(), b = second.index();
        if (a > b && options.wants(second, first)) continue;  // once a pair
        if (!context.topology().peer_access(a, b).allowed || !context.topology().peer_access(b, a).allowed)
            continue;
        Figure figure = nanoseconds(fmt::format("{} <-> {}, one way", first.to_string(), second.to_string()),
                                    first, second);
        SIDESTEP_TRY(auto latency, raw::flag_latency(a, b, options.smoke ? 10 : 5'000, options.samples));
        figure.measured = std::move(latency);
        auto load = chase(a, second, cached_ring, "", options);
        if (!load) return load.error();
        add_yardstick(figure, "pointer chase, one load", std::move(load->measured));
        figures.push_back(std::move(figure));
    }
    return figures;
}

// Additions to few counters contend for each; to many they are limited by the link.
Result<std::vector<Figure>> run_atomics(const Context& context, const Options& options) {
    std::vector<Figure> figures;
    for (const auto& [adder, owner] : pairs_of(context, options)) {
        if (!context.topology().peer_access(adder.index(), owner.index()).atomics) continue;
        const std::string ends = fmt::format("{} adds in {}", adder.to_string(), owner.to_string());
        for (const unsigned counters : {1u, 65'536u}) {
            SIDESTEP_TRY(auto adds, raw::atomic_adds(adder.index(), owner.index(), counters, options.samples,
                                                     options.smoke));
            if (!adds.exact)
                return Error{ErrorCode::mismatch,
                             fmt::format("{}: additions of both GPUs at once were lost", ends), "atomics",
                             "do not use native atomics over this path"};
            Figure figure = nanoseconds(
                fmt::format("{}, {} counter{}", ends, counters, counters == 1 ? "" : "s"), adder, owner);
            figure.unit = "M/s";
            figure.more_is_better = true;
            figure.measured = std::move(adds.rate);
            figure.verified = true;
            figures.push_back(std::move(figure));
            if (counters != 1) continue;
            Figure one = nanoseconds(fmt::format("{}, fetch and add", ends), adder, owner);
            one.measured = std::move(adds.latency_ns);
            one.verified = true;
            figures.push_back(std::move(one));
        }
    }
    return figures;
}

}  // namespace

std::vector<Case> latency_cases() {
    return {
        {"latency_load", "One load by a kernel: own memory, a peer's, the host's", no_raw_cuda, run_chase},
        {"latency_flag", "8-byte flags between kernels of two GPUs, half a round trip", no_two_raw_gpus,
         run_flags},
        {"atomics", "Additions by kernels to another GPU's memory", no_two_raw_gpus, run_atomics}};
}

}  // namespace sidestep::bench
