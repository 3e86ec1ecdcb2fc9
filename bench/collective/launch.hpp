// Ranks of a run of the collective benchmark: a process each, or a thread each in this process.
#pragma once

#include <string>
#include <vector>

#include "bench/collective/rank.hpp"

namespace sidestep::bench::collective {

// Empty where this program is the command, which starts itself; else why ranks cannot have processes of their
// own.
std::string no_processes();

// The merged lines of one rank on each of `gpus`. `machine` is what the processes open: a name that Context
// takes.
Result<Found> run_in_processes(const std::string& machine, const std::vector<int>& gpus, const Plan& plan);
Result<Found> run_in_threads(const Context& context, const std::vector<int>& gpus, const Plan& plan);

// The part of one of those processes: `job` is the text that it was started with. What it has to print.
Result<std::string> run_job(const Context& context, const std::string& job);

}  // namespace sidestep::bench::collective
