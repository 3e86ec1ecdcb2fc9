#include "bench_collective.hpp"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/collective/launch.hpp"
#include "bench/collective/table.hpp"
#include "globals.hpp"

namespace sidestep::cli {
namespace {

using bench::collective::Found;
using bench::collective::Line;
using bench::collective::Plan;

Error bad(std::string message, const char* option) {
    return Error{ErrorCode::invalid_argument, std::move(message), option, {}};
}

Result<std::vector<Bytes>> sizes_of(const CollectiveCommand& command, const bench::Options& options,
                                    bool emulated) {
    const bool given = command.first || command.last || command.factor;
    if (given && !options.sizes.empty())
        return bad("these are either a list or a row of sizes", "--size, -b, -e and -f");
    if (given && options.smoke)
        return bad("the small run has sizes of its own; --size names others", "--smoke");
    if (!options.sizes.empty()) return options.sizes;
    if (options.smoke) return std::vector<Bytes>{Bytes{4} << 10};
    if (command.first == Bytes{0}) return bad("a collective of no bytes has no rate", "-b");
    // Without a size asked for an emulated machine stops where its memory, this machine's, gets slow.
    const Bytes last = command.last.value_or(emulated ? Bytes{1} << 20 : Bytes{1} << 30);
    // No comparison is true of what is not a number.
    const double factor = command.factor.value_or(2);
    if (!(factor > 1)) return bad("this is not a factor", "-f");
    auto sizes = bench::collective::sizes_between(command.first.value_or(8), last, factor);
    if (sizes.empty()) return bad("the first size is above the last", "-b and -e");
    return sizes;
}

// NCCL's library; empty: it is not measured.
Result<std::string> nccl_of(const CollectiveCommand& command, bool emulated) {
    if (command.nccl == "off") return std::string();
    std::error_code error;
    if (command.nccl.find('/') != std::string::npos && !std::filesystem::exists(command.nccl, error))
        return Error{ErrorCode::not_found, "there is no such file", command.nccl, {}};
    if (emulated && !command.nccl.empty())
        return Error{ErrorCode::unsupported, "NCCL cannot run on emulated GPUs", "--nccl", {}};
    if (emulated) return std::string();
    return command.nccl.empty() ? std::string("libnccl.so.2") : command.nccl;
}

Result<Plan> plan_of(const CollectiveCommand& command, const Context& context,
                     const bench::Options& options) {
    Plan plan;
    for (const std::string& words : command.operations) {
        SIDESTEP_TRY(const auto operations, bench::collective::parse_operations(words));
        plan.operations.insert(plan.operations.end(), operations.begin(), operations.end());
    }
    SIDESTEP_TRY(const auto types, bench::collective::parse_types(command.types));
    SIDESTEP_TRY(const auto reductions, bench::collective::parse_reductions(command.reductions));
    plan.types = types;
    plan.reductions = reductions;
    const bool emulated = context.topology().emulated();
    SIDESTEP_TRY(const auto sizes, sizes_of(command, options, emulated));
    plan.sizes = sizes;
    if (command.mode == "graph") plan.modes = {bench::collective::Mode::graph};
    // Emulated GPUs have no graphs.
    if (command.mode == "stream" || emulated) plan.modes = {bench::collective::Mode::stream};
    if (command.mode == "graph" && emulated)
        return Error{ErrorCode::unsupported, "emulated GPUs have no CUDA graphs", "--mode graph", {}};
    plan.root = command.root;
    plan.iterations = options.smoke ? 2 : command.iterations;
    plan.launches = options.smoke ? 1 : command.launches;
    plan.samples = options.smoke ? 1 : command.samples;
    plan.warmup = command.warmup;
    plan.verify = options.verify;
    plan.zero_sm = command.zero_sm;
    SIDESTEP_TRY(const auto nccl, nccl_of(command, emulated));
    plan.nccl = nccl;
    return plan;
}

void add_cases(bench::Report& report, const Context& context, const std::vector<int>& gpus, const Plan& plan,
               const Found& found, const std::string& how) {
    for (const Collective operation : plan.operations) {
        std::vector<Line> lines;
        std::copy_if(found.lines.begin(), found.lines.end(), std::back_inserter(lines),
                     [&](const Line& line) { return line.call.operation == operation; });
        bench::CaseResult result;
        result.key = fmt::format("collective_{}", to_string(operation));
        result.description = fmt::format("{} over {} GPUs, {}", to_string(operation), gpus.size(), how);
        result.figures = bench::collective::figures_of(context, gpus, lines);
        if (const std::int64_t wrong = bench::collective::wrong_of(lines); wrong > 0)
            result.failed = fmt::format("{} elements are wrong", wrong);
        for (const Line& line : lines)
            if (!line.missing.empty())
                result.notes.push_back(
                    fmt::format("{}, {}: {}", line.engine, to_string(operation), line.missing));
        for (std::string& line : bench::collective::left_out(plan, operation, static_cast<int>(gpus.size())))
            result.notes.push_back(std::move(line));
        std::sort(result.notes.begin(), result.notes.end());
        result.notes.erase(std::unique(result.notes.begin(), result.notes.end()), result.notes.end());
        report.cases.push_back(std::move(result));
    }
    // Each operation has them again.
    for (const std::string& note : found.notes)
        if (std::find(report.notes.begin(), report.notes.end(), note) == report.notes.end())
            report.notes.push_back(note);
}

void define_sizes(CLI::App& app, CollectiveCommand& command) {
    add_bytes(
        app, "-b,--begin", [&command](Bytes size) { command.first = size; }, "the first size (default: 8)");
    add_bytes(
        app, "-e,--end", [&command](Bytes size) { command.last = size; },
        "the last size (default: 1GiB; 1MiB on emulated GPUs)");
    app.add_option("-f,--factor", command.factor, "each size is so many times the one before (default: 2)")
        ->type_name("N")
        ->check(CLI::Range(1.01, 1e6).description(""));
}

}  // namespace

void define_collective(CLI::App& bench, CollectiveCommand& command) {
    command.app = bench.add_subcommand("collective", "the table of nccl-tests, with NCCL's figures beside");
    CLI::App& app = *command.app;
    app.fallthrough();
    app.add_option("OPERATION", command.operations,
                   "all_reduce, broadcast, reduce, all_gather, reduce_scatter, all_to_all, all_to_all_v, "
                   "gather, scatter, "
                   "send_recv, barrier (default: all)")
        ->type_name("");
    define_sizes(app, command);
    app.add_option(
           "-d,--type", command.types,
           "int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, f8e4m3, f8e5m2, or all "
           "(default: float)")
        ->type_name("TYPE,...");
    app.add_option("-o,--op", command.reductions, "sum, prod, min, max, avg, mulsum, or all (default: sum)")
        ->type_name("OP,...");
    app.add_option("-r,--root", command.root, "the root's rank (default: 0)")
        ->type_name("RANK")
        ->check(CLI::Range(0, 15).description(""));
    app.add_option("-n,--iterations", command.iterations, "operations of a sample (default: 20)")
        ->type_name("N")
        ->check(CLI::Range(1, 100'000).description(""));
    app.add_option("-G,--launches", command.launches,
                   "launches of their graph in a sample, up to 1 MiB (default: 10)")
        ->type_name("N")
        ->check(CLI::Range(1, 100'000).description(""));
    app.add_option("-w,--warmup", command.warmup, "samples before those that count (default: 1)")
        ->type_name("N")
        ->check(CLI::Range(0, 10'000).description(""));
    app.add_option("--samples", command.samples, "samples of each time up to 1 MiB (default: 100)")
        ->type_name("N")
        ->check(CLI::Range(1, 10'000).description(""));
    app.add_option("--mode", command.mode, "on a stream, in a CUDA graph, or both (default: both)")
        ->type_name("stream|graph|both")
        ->check(CLI::IsMember({"stream", "graph", "both"}).description(""));
    app.add_flag("--threads", command.threads, "one process with a thread a GPU, not a process a GPU");
    app.add_flag("--zero-sm", command.zero_sm,
                 "measure groups of the policy zero_sm too: copy engines alone");
    app.add_option("--nccl", command.nccl,
                   "NCCL's library, or off (default: the libnccl.so.2 that the loader finds)")
        ->type_name("FILE|off");
    app.add_option("--job", command.job)->group("");
}

Result<void> measure_collectives(const CollectiveCommand& command, const std::string& machine,
                                 const Context& context, const bench::Options& options,
                                 const CollectiveWatch& watch, bench::Report& report) {
    if (const std::string missing = bench::fewer_than_two_gpus(context); !missing.empty())
        return Error{ErrorCode::unsupported,
                     fmt::format("collectives need two GPUs: {}", missing),
                     "bench collective",
                     {}};
    const std::vector<int> gpus = bench::gpus_of(context, options);
    if (gpus.size() < 2 || gpus.size() > 16)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("a group has 2 to 16 GPUs, not {}", gpus.size()), "--gpu",
                     "choose some: --gpu 0,1,2,3"};
    SIDESTEP_TRY(const auto plan, plan_of(command, context, options));
    const int ranks = static_cast<int>(gpus.size());
    if (plan.root >= ranks) return bad(fmt::format("there is no rank {} of {}", plan.root, ranks), "--root");
    if (bench::collective::calls_of(plan, ranks).empty())
        return bad(fmt::format("no size holds an element for each of {} ranks", ranks), "bench collective");
    const std::string how = command.threads ? "one process, a thread a GPU" : "a process a GPU";
    Plan one = plan;
    for (const Collective operation : plan.operations) {
        one.operations = {operation};
        bench::collective::Table table(ranks, plan.root, how);
        Result<void> shown;
        std::atomic<bool> broken{false};  // the output
        const bench::collective::Watch rows{[&](const std::vector<Line>& lines) {
                                                if (shown) shown = watch.show(table.rows(lines));
                                                broken = !shown;
                                            },
                                            [&] { return broken || watch.stop(); }};
        SIDESTEP_CHECK(watch.begin(fmt::format("{}: {} ranks start", to_string(operation), ranks)));
        Result<Found> found = Found{};
        if (!bench::collective::calls_of(one, ranks).empty())
            found = command.threads ? bench::collective::run_in_threads(context, gpus, one, rows)
                                    : bench::collective::run_in_processes(machine, gpus, one, rows);
        if (!shown) return shown;
        if (!found) return found.error();
        add_cases(report, context, gpus, one, *found, how);
        std::string text = table.end();
        for (const std::string& note : report.cases.back().notes) text += fmt::format("note: {}\n", note);
        if (shown = watch.show(text); !shown) return shown;
        if (watch.stop()) break;
    }
    return {};
}

}  // namespace sidestep::cli
