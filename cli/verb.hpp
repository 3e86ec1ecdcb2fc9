// The table of verbs.
#pragma once

#include <functional>

#include <CLI/CLI.hpp>

#include "globals.hpp"

namespace sidestep::cli {

// What a verb does once the command line has been read. A failure is printed and becomes the exit code.
using Action = std::function<Result<void>()>;

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
Action define_help(CLI::App& app, const Globals& globals);
Action define_completion(CLI::App& app, const Globals& globals);

// In the order `sidestep --help` lists them. A new verb is a line here and its file.
inline constexpr Verb verbs[] = {
    {"copy", "copy bytes between memory, GPUs and files", define_copy},
    {"route", "print the path a copy would take, and the paths refused", define_route},
    {"topo", "print the machine: devices and the links between them", define_topo},
    {"help", "print the help of a verb", define_help},
    {"completion", "print what a shell needs to complete command lines", define_completion},
};

}  // namespace sidestep::cli
