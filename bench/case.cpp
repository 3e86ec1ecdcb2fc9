#include "bench/case.hpp"

#include <chrono>

namespace sidestep::bench {

double Samples::median() const {
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    const std::size_t middle = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

Result<double> timed_copy(const Context& context, const Buffer& from, const Buffer& to,
                          const CopyOptions& options) {
    const auto start = std::chrono::steady_clock::now();
    auto done = context.copy(from, to, options).wait();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!done) return done.error();
    return seconds;
}

Result<Figure> rate_figure(std::string what, Bytes bytes, const Options& options,
                           const std::function<Result<double>()>& once, std::string peer_name,
                           const std::function<double()>& peer) {
    Figure figure{std::move(what), "GB/s", {}, {}, std::move(peer_name)};
    for (int round = -1; round < options.samples; ++round) {
        const auto seconds = once();
        if (!seconds) return seconds.error();
        const double peer_seconds = peer ? peer() : 0;
        if (round < 0) continue;  // warm-up
        figure.measured.values.push_back(static_cast<double>(bytes) / *seconds / 1e9);
        if (peer) figure.peer.values.push_back(static_cast<double>(bytes) / peer_seconds / 1e9);
    }
    return figure;
}

}  // namespace sidestep::bench
