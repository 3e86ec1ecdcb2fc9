// How long a machine takes to see and a cluster to build and ask. There is no peer in the run: nothing else
// does it.
#include <cstdint>

#include <fmt/format.h>

#include "bench/case.hpp"

namespace sidestep::bench {
namespace {

Figure timed(std::string what) {
    Figure figure;
    figure.what = std::move(what);
    figure.unit = "us";
    figure.more_is_better = false;
    return figure;
}

// Every GPU's class with the GPUs of its own machine, the first network card, and 100 others spread over all.
std::uint64_t classify_all(const Topology& cluster) {
    const int gpus = cluster.gpu_count();
    std::vector<DeviceId> ids;
    for (int i = 0; i < gpus; ++i) ids.push_back(*cluster.find(DeviceKind::gpu, i));
    const auto nic = cluster.find(DeviceKind::nic, 0);
    std::uint64_t sum = 0;  // keeps the calls
    for (int a = 0; a < gpus; ++a) {
        const auto ask = [&](DeviceId other) {
            sum +=
                static_cast<std::uint64_t>(cluster.pair_class(ids[static_cast<std::size_t>(a)], other).kind);
        };
        for (int b = a / 8 * 8; b < std::min(a / 8 * 8 + 8, gpus); ++b) ask(ids[static_cast<std::size_t>(b)]);
        if (nic) ask(*nic);
        for (int k = 1; k <= 100; ++k) ask(ids[static_cast<std::size_t>((a + k * 97LL) % gpus)]);
    }
    return sum;
}

Result<std::vector<Figure>> run_cluster(const Context&, const Options& options) {
    std::vector<Figure> figures;
    for (const int machines : {options.smoke ? 2 : 1250, options.smoke ? 4 : 12500}) {
        const std::string name = fmt::format("dgx-h100*{}", machines);
        Figure build = timed(fmt::format("build {} GPUs ({})", machines * 8, name));
        Figure ask = timed(fmt::format("classify {} pairs of them", machines * 8LL * 109));
        for (int round = 0; round < options.samples; ++round) {
            Result<Topology> cluster = Error{ErrorCode::internal, "not built", "", ""};
            build.measured.values.push_back(seconds_of([&] { cluster = Topology::model(name); }) * 1e6);
            if (!cluster) return cluster.error();
            std::uint64_t sum = 0;
            ask.measured.values.push_back(seconds_of([&] { sum = classify_all(*cluster); }) * 1e6);
            if (sum == 0) return Error{ErrorCode::internal, "no pair has a class", "bench", {}};
        }
        figures.push_back(std::move(build));
        figures.push_back(std::move(ask));
    }
    return figures;
}

Result<std::vector<Figure>> run_live(const Context&, const Options& options) {
    Figure see = timed("see this machine (sysfs, NVML)");
    Figure examine = timed("run every check of the doctor");
    for (int round = 0; round < options.samples; ++round) {
        bool well = true;
        see.measured.values.push_back(seconds_of([&] { well = well && Topology::live().ok(); }) * 1e6);
        examine.measured.values.push_back(seconds_of([&] {
                                              well = well && run_doctor({"live", {}}).ok();
                                          }) *
                                          1e6);
        if (!well) return Error{ErrorCode::internal, "this machine cannot be seen", "bench", {}};
    }
    return std::vector<Figure>{std::move(see), std::move(examine)};
}

}  // namespace

std::vector<Case> topology_cases() {
    return {{"topology_cluster", "Build clusters and classify pairs", nothing_missing, run_cluster},
            {"topology_live", "See this machine, and examine it", nothing_missing, run_live}};
}

}  // namespace sidestep::bench
