// One copy over several paths at once, beside the best single path.
#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/case.hpp"

namespace sidestep::bench {
namespace {

Result<Figure> lanes_figure(const Context& context, const PaintedPair& pair, Bytes bytes, int lanes,
                            const Options& options) {
    const Buffer from = pair.from().slice(0, bytes);
    const Buffer to = pair.to().slice(0, bytes);
    CopyOptions how;
    how.lanes = lanes;
    Figure figure =
        link_figure(context, from.place(), to.place(), bytes, lanes == 1 ? "one lane" : "all lanes");
    if (lanes != 1) limit_by_lanes(figure, context, from.place(), to.place());
    std::string path;
    auto measured =
        measure_rate(std::move(figure), options, [&] { return timed_copy(context, from, to, how, &path); });
    if (measured) measured->path = path;
    return measured;
}

Result<std::vector<Figure>> run_lanes(const Context& context, const Options& options) {
    const std::vector<Bytes> sizes =
        options.sizes_or({4_KiB, 64_KiB, 1_MiB, 4_MiB, 8_MiB, 16_MiB, 32_MiB, 64_MiB, 256_MiB, 1_GiB, 8_GiB});
    const Bytes largest = *std::max_element(sizes.begin(), sizes.end());
    std::vector<Figure> figures;
    const std::vector<int> gpus = gpus_of(context, options);
    const Place device = Place::gpu(gpus.empty() ? 0 : gpus.front());
    for (const bool up : {true, false}) {
        const Place source = up ? Place::host() : device, target = up ? device : Place::host();
        if (!options.wants(source, target)) continue;
        SIDESTEP_TRY(const auto pair, PaintedPair::make(context, source, target, largest));
        for (const Bytes bytes : sizes)
            for (const int lanes : {1, 0}) {
                SIDESTEP_TRY(auto figure, lanes_figure(context, pair, bytes, lanes, options));
                if (bytes == largest) SIDESTEP_CHECK(pair.verify(context, options, figure));
                figures.push_back(std::move(figure));
            }
    }
    return figures;
}

}  // namespace

std::vector<Case> lane_cases() {
    return {{"lanes", "Host memory and one GPU over one link and over all, by size", fewer_than_two_gpus,
             run_lanes}};
}

}  // namespace sidestep::bench
