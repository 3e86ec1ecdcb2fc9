// The table of verbs.
#pragma once

#include <functional>
#include <utility>

#include <CLI/CLI.hpp>

#include "globals.hpp"
#include "report.hpp"

namespace sidestep::cli {

// What a verb does once the command line has been read: the exit code, or a failure that is printed and
// becomes one.
using Action = std::function<Result<ExitCode>()>;

// An action of a verb that is done or fails.
inline Action done_or_fails(std::function<Result<void>()> run) {
    return [run = std::move(run)]() -> Result<ExitCode> {
        const auto result = run();
        if (!result) return result.error();
        return ExitCode::done;
    };
}

// One verb. `define` declares the verb's arguments on `app` (a child of the whole command's app) and
// returns its action; both references outlive the action, which reads `globals` when it runs.
struct Verb {
    const char* name;
    const char* summary;
    Action (*define)(CLI::App& app, const Globals& globals);
};

// One file each.
Action define_copy(CLI::App& app, const Globals& globals);
Action define_route(CLI::App& app, const Globals& globals);
Action define_topo(CLI::App& app, const Globals& globals);
Action define_machines(CLI::App& app, const Globals& globals);
Action define_doctor(CLI::App& app, const Globals& globals);
Action define_publish(CLI::App& app, const Globals& globals);
Action define_serve(CLI::App& app, const Globals& globals);
Action define_bench(CLI::App& app, const Globals& globals);
Action define_load(CLI::App& app, const Globals& globals);
Action define_save(CLI::App& app, const Globals& globals);
Action define_repair(CLI::App& app, const Globals& globals);
Action define_inspect(CLI::App& app, const Globals& globals);
Action define_run(CLI::App& app, const Globals& globals);
Action define_ps(CLI::App& app, const Globals& globals);
Action define_cufile(CLI::App& app, const Globals& globals);
Action define_tune(CLI::App& app, const Globals& globals);
Action define_help(CLI::App& app, const Globals& globals);
Action define_completion(CLI::App& app, const Globals& globals);

// In the order `sidestep --help` lists them. A new verb is a line here and its file.
inline constexpr Verb verbs[] = {
    {"copy", "copy bytes between memory, GPUs and files", define_copy},
    {"route", "print the path a copy would take, and the paths refused", define_route},
    {"load", "bring the tensors of a checkpoint to GPUs, and say where the time went", define_load},
    {"inspect", "list the tensors of a checkpoint, without reading their data", define_inspect},
    {"save", "write a checkpoint as safetensors files, in as many as are asked for", define_save},
    {"repair", "end what killed saves and copies left in a folder", define_repair},
    {"run", "run a program of NCCL or cuFile over Sidestep, or ranks of it, a GPU each", define_run},
    {"ps", "list the groups of this user's processes, and who waits for whom", define_ps},
    {"cufile", "what programs do that read and write files by Sidestep's cuFile", define_cufile},
    {"publish", "give memory a name under which other processes copy to and from it", define_publish},
    {"serve", "let other machines reach places of this one", define_serve},
    {"topo", "print the machine: devices and the links between them", define_topo},
    {"machines", "list the machines that can be looked at without having them", define_machines},
    {"doctor", "find out why a fast path is off or slow, and what to type", define_doctor},
    {"bench", "measure this machine: every figure beside what the hardware can do", define_bench},
    {"tune", "measure which algorithm of collectives is quickest at which size here", define_tune},
    {"help", "print the help of a verb", define_help},
    {"completion", "print what a shell needs to complete command lines", define_completion},
};

}  // namespace sidestep::cli
