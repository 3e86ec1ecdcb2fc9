// sidestep bench net: copies to a node that serves, or between two, and what to compare them with.
#pragma once

#include <functional>
#include <string>

#include <CLI/CLI.hpp>
#include <sidestep/sidestep.hpp>

#include "bench/case.hpp"

namespace sidestep::cli {

struct NetCommand {
    CLI::App* app = nullptr;
    std::string node;
    std::string other;  // empty: this machine
};

void define_net(CLI::App& bench, NetCommand& command);

// Measures, says each line of the table as it is there, and puts the cases into the report; `keep` is called with it after
// each figure.
Result<void> measure_network(const NetCommand& command, const Context& context, const bench::Options& options,
                             const std::function<Result<void>(const std::string&)>& say,
                             const std::function<void(const bench::Report&)>& keep, bench::Report& report);

}  // namespace sidestep::cli
