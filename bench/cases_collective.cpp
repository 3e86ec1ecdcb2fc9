// Collectives over all GPUs: every operation at a few sizes. `sidestep bench collective` measures more of
// them.

#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/case.hpp"
#include "bench/collective/launch.hpp"
#include "bench/collective/table.hpp"

namespace sidestep::bench {
namespace {

constexpr std::size_t max_ranks = 16;  // of a group on one machine

// Enough to show the small, the middle and the large algorithms.
std::vector<Bytes> own_sizes(const Context& context) {
    if (context.topology().emulated()) return {1_KiB, 1_MiB};
    return {1_KiB, 32_KiB, 512_KiB, 8_MiB, 128_MiB, 512_MiB};
}

collective::Plan plan_of(const Context& context, const Options& options, Collective operation) {
    collective::Plan plan;
    plan.operations = {operation};
    plan.sizes = options.sizes_or(own_sizes(context));
    plan.verify = options.verify;
    if (context.topology().emulated())
        plan.modes = {collective::Mode::stream};
    else if (!options.smoke)
        plan.nccl = "libnccl.so.2";
    if (options.smoke) {
        plan.iterations = 2;
        plan.samples = 1;
    } else if (context.topology().emulated()) {
        plan.iterations = 5;
        plan.samples = options.samples;
    }
    return plan;
}

Result<std::vector<Figure>> run_operation(const Context& context, const Options& options,
                                          Collective operation) {
    std::vector<int> gpus = gpus_of(context, options);
    if (gpus.size() > max_ranks) gpus.resize(max_ranks);
    if (gpus.size() < 2) return std::vector<Figure>{};
    const collective::Plan plan = plan_of(context, options, operation);
    // Small runs stay in this process, but for one operation, so that both ways are seen to work.
    const bool threads =
        (options.smoke && operation != Collective::all_reduce) || !collective::no_processes().empty();
    const Topology& topology = context.topology();
    SIDESTEP_TRY(const auto found, threads ? collective::run_in_threads(context, gpus, plan)
                                           : collective::run_in_processes(
                                                 topology.emulated() ? topology.name() : "live", gpus, plan));
    if (const std::int64_t wrong = collective::wrong_of(found.lines); wrong > 0)
        return Error{ErrorCode::mismatch,
                     fmt::format("{} elements are wrong", wrong),
                     std::string(to_string(operation)),
                     {}};
    auto figures = collective::figures_of(context, gpus, found.lines);
    for (Figure& figure : figures) {
        figure.path +=
            fmt::format("; {} ranks, {}", gpus.size(), threads ? "a thread each" : "a process each");
        for (const std::string& note : found.notes) figure.path += fmt::format("; {}", note);
    }
    return figures;
}

}  // namespace

std::vector<Case> collective_cases() {
    std::vector<Case> cases;
    for (const Collective operation :
         {Collective::all_reduce, Collective::broadcast, Collective::reduce, Collective::all_gather,
          Collective::reduce_scatter, Collective::all_to_all, Collective::all_to_all_v, Collective::gather,
          Collective::scatter, Collective::send_recv, Collective::barrier})
        cases.push_back({fmt::format("collective_{}", to_string(operation)),
                         fmt::format("{} over all GPUs, beside NCCL where it is there", to_string(operation)),
                         fewer_than_two_gpus, [operation](const Context& context, const Options& options) {
                             return run_operation(context, options, operation);
                         }});
    return cases;
}

}  // namespace sidestep::bench
