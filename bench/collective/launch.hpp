// Ranks of a run of the collective benchmark: a process each, or a thread each in this process.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/collective/rank.hpp"

namespace sidestep::bench::collective {

// Empty where this program is the command, which starts itself; else why ranks cannot have processes of their
// own.
std::string no_processes();

// What hears of a run while it goes on.
struct Watch {
    RowSink row;                 // merged lines, once every rank has them; by one thread at a time
    std::function<bool()> stop;  // asked often: whether to end now, with the rows that there are
};

// The merged lines of one rank on each of `gpus`. `machine` is what the processes open: a name that Context
// takes.
Result<Found> run_in_processes(const std::string& machine, const std::vector<int>& gpus, const Plan& plan,
                               const Watch& watch = {});
Result<Found> run_in_threads(const Context& context, const std::vector<int>& gpus, const Plan& plan,
                             const Watch& watch = {});

// The part of one of those processes: `job` is the text that it was started with. `print` takes what it has to say to the
// one that started it, a line at a time.
Result<void> run_job(const Context& context, const std::string& job,
                     const std::function<Result<void>(const std::string&)>& print);

}  // namespace sidestep::bench::collective
