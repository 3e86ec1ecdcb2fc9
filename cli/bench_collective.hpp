// sidestep bench collective: nccl-tests' table of this library's collectives, with NCCL's beside them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <sidestep/sidestep.hpp>

#include "bench/case.hpp"

namespace sidestep::cli {

struct CollectiveCommand {
    CLI::App* app = nullptr;
    std::vector<std::string> operations{"all"};
    std::optional<Bytes> first, last;
    std::optional<double> factor;
    std::string types = "float";
    std::string reductions = "sum";
    std::string mode = "both";
    std::string nccl;  // "off": not measured; empty: where the loader finds it
    int root = 0;
    int iterations = 20;
    int launches = 10;
    int warmup = 1;
    int samples = 100;
    bool threads = false;
    bool zero_sm = false;
    std::string job;  // of a process that this command started
};

void define_collective(CLI::App& bench, CollectiveCommand& command);

// What hears of a run while it goes on.
struct CollectiveWatch {
    std::function<Result<void>(const std::string&)> show;   // the table, a row at a time
    std::function<Result<void>(const std::string&)> begin;  // words, before each operation
    std::function<bool()> stop;  // asked often: whether to end with what was measured
};

// Measures, and adds a case for each operation to the report. `options` say which GPUs, whether
// results are looked at, and whether it is a small run; `machine` is what --machine named.
Result<void> measure_collectives(const CollectiveCommand& command, const std::string& machine,
                                 const Context& context, const bench::Options& options,
                                 const CollectiveWatch& watch, bench::Report& report);

}  // namespace sidestep::cli
