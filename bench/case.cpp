#include "bench/case.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/raw_cuda.hpp"

namespace sidestep::bench {
namespace {

constexpr Bytes max_in_smoke = 1_MiB;

bool contains(const std::vector<int>& list, int value) {
    return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

std::vector<Bytes> Options::sizes_or(std::vector<Bytes> own) const {
    if (!sizes.empty()) return sizes;
    if (!smoke || own.empty()) return own;
    return {std::min(max_in_smoke, *std::min_element(own.begin(), own.end()))};
}

bool Options::wants_gpu(int gpu) const {
    return gpus.empty() || contains(gpus, gpu);
}

bool Options::wants(const Place& source, const Place& target) const {
    if ((from && *from != source) || (to && *to != target)) return false;
    return (!source.is_gpu() || wants_gpu(source.index())) && (!target.is_gpu() || wants_gpu(target.index()));
}

std::vector<Case> all_cases() {
    std::vector<Case> all;
    for (const auto& group : {host_cases(), gpu_cases(), both_ways_cases(), lane_cases(), small_cases(),
                              latency_cases(), ipc_cases(), file_cases(), checkpoint_cases(), object_cases(),
                              collective_cases(), topology_cases()})
        all.insert(all.end(), group.begin(), group.end());
    return all;
}

std::string nothing_missing(const Context&) {
    return {};
}

std::string no_gpu(const Context& context) {
    if (context.topology().gpu_count() == 0) return "this machine has no GPU";
    if (context.topology().emulated()) return {};
    for (const BackendStatus& status : context.backends())
        if (status.name == "cuda" && !status.usable) return status.reason;
    return {};
}

std::string fewer_than_two_gpus(const Context& context) {
    std::string missing = no_gpu(context);
    if (missing.empty() && context.topology().gpu_count() < 2) missing = "this machine has one GPU";
    return missing;
}

std::string no_raw_cuda(const Context& context) {
    if (context.topology().emulated())
        return "the GPUs are emulated, and kernels of the benchmark need real ones";
    std::string missing = no_gpu(context);
    if (!missing.empty()) return missing;
    const auto raw = raw::available();
    return raw ? std::string() : raw.error().to_string();
}

std::vector<int> gpus_of(const Context& context, const Options& options) {
    std::vector<int> gpus;
    for (const Device& device : context.topology().devices())
        if (device.kind == DeviceKind::gpu && options.wants_gpu(device.index)) gpus.push_back(device.index);
    std::sort(gpus.begin(), gpus.end());
    return gpus;
}

std::vector<std::pair<Place, Place>> pairs_of(const Context& context, const Options& options) {
    std::vector<std::pair<Place, Place>> pairs;
    for (const int from : gpus_of(context, options))
        for (const int to : gpus_of(context, options))
            if (from != to && options.wants(Place::gpu(from), Place::gpu(to)))
                pairs.emplace_back(Place::gpu(from), Place::gpu(to));
    return pairs;
}

Figure link_figure(const Context& context, const Place& from, const Place& to, Bytes bytes,
                   const std::string& words) {
    Figure figure;
    figure.from = from.to_string();
    figure.to = to.to_string();
    figure.what = fmt::format("{} -> {}", figure.from, figure.to);
    if (!words.empty()) figure.what += fmt::format(", {}", words);
    figure.bytes = bytes;
    figure.unit = "GB/s";
    const Topology& topology = context.topology();
    const auto a = topology.find(from), b = topology.find(to);
    if (topology.emulated() || !a || !b || *a == *b) return figure;
    const Pair pair = topology.pair(*a, *b);
    figure.limit = pair.gb_per_s;
    if (pair.gb_per_s > 0) figure.limit_source = fmt::format("link: {}", pair.words);
    return figure;
}

void add_yardstick(Figure& figure, std::string name, Samples samples) {
    if (samples.empty()) return;
    if (figure.limit <= 0) {
        figure.limit = samples.median();
        figure.limit_source = fmt::format("raw loop, same run: {}", name);
    }
    figure.peers.push_back({std::move(name), std::move(samples)});
}

void limit_by_lanes(Figure& figure, const Context& context, const Place& from, const Place& to) {
    constexpr Bytes large = 8_GiB;  // a size at which every lane that pays is taken
    const auto all = context.topology().emulated() ? Result<Route>(Route{}) : context.route(from, to, large);
    if (!all || all->lanes.size() < 2) return;
    double sum = 0;
    for (const Lane& lane : all->lanes) {
        double rate = lane.hops[0].gb_per_s;
        for (const Hop& hop : lane.hops) rate = std::min(rate, hop.gb_per_s);
        sum += rate;
    }
    figure.limit = sum;
    figure.limit_source = "links of all lanes";
}

Result<Figure> measure_rate(Figure figure, const Options& options,
                            const std::function<Result<double>()>& once,
                            const std::vector<Yardstick>& yardsticks) {
    const auto rate = [&figure](double seconds) {
        return static_cast<double>(figure.bytes) / std::max(seconds, 1e-9) / 1e9;
    };
    std::vector<Samples> raw(yardsticks.size());
    for (int round = -1; round < std::max(options.samples, 1); ++round) {
        SIDESTEP_TRY(const auto seconds, once());
        if (round >= 0) figure.measured.values.push_back(rate(seconds));
        for (std::size_t i = 0; i < yardsticks.size(); ++i) {
            SIDESTEP_TRY(const auto plain, yardsticks[i].seconds());
            if (round >= 0) raw[i].values.push_back(rate(plain));
        }
    }
    for (std::size_t i = 0; i < yardsticks.size(); ++i)
        add_yardstick(figure, yardsticks[i].name, std::move(raw[i]));
    return figure;
}

Result<std::vector<Yardstick>> thread_yardsticks(raw::FileLoop loop, char* memory, const char* how) {
    const auto threads = raw::best_file_threads(loop, memory);
    if (!threads && threads.error().code == ErrorCode::unsupported) return std::vector<Yardstick>{};
    if (!threads) return threads.error();
    loop.threads = *threads;
    return std::vector<Yardstick>{{fmt::format("{}, {} threads (the best count)", how, *threads),
                                   [loop, memory] { return raw::file_seconds(loop, memory); }}};
}

Bytes large(const Context& context) {
    return context.topology().emulated() ? 64_MiB : 1_GiB;
}

std::string words_of(const Receipt& receipt) {
    std::string words;
    for (const Lane& lane : receipt.route ? receipt.route->lanes : std::vector<Lane>{}) {
        if (!words.empty()) words += "; ";
        for (const Hop& hop : lane.hops) {
            if (&hop == &lane.hops.front()) words += hop.from.is_file() ? "file" : hop.from.to_string();
            words += fmt::format(" -> {} ({})", hop.to.is_file() ? "file" : hop.to.to_string(), hop.engine);
        }
    }
    for (const std::string& note : receipt.notes) words += fmt::format("; note: {}", note);
    return words;
}

Result<double> timed_copy(const Context& context, const Buffer& from, const Buffer& to,
                          const CopyOptions& options, std::string* path) {
    const auto start = std::chrono::steady_clock::now();
    const auto done = context.copy(from, to, options).wait();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!done) return done.error();
    if (path) *path = words_of(*done);
    return seconds;
}

}  // namespace sidestep::bench
