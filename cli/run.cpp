// sidestep run -- PROGRAM: existing programs of NCCL and cuFile over Sidestep, and ranks of a job on this host.
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/try.hpp"
#include "ranks.hpp"
#include "report.hpp"
#include "verb.hpp"

extern char** environ;

namespace sidestep::cli {
namespace {

constexpr std::chrono::seconds grace{5};
constexpr int max_ranks = 1024;

// A library of Sidestep's that takes the place of one of NVIDIA's.
struct DropIn {
    const char* name;    // whose calls it answers
    const char* file;    // as programs ask the loader for it
    const char* folder;  // in which it lies, wherever that is
    // A job whose ranks have NCCLs of two makers hangs. cuFile is each process's own matter.
    bool has_to_be_there;
};
constexpr DropIn nccl{"NCCL", "libnccl.so.2", "nccl", true};
constexpr DropIn cufile{"cuFile", "libcufile.so.0", "cufile", false};

struct DropInFlags {
    bool left_out = false;
    std::string library;  // empty: the one beside this command
};

struct RunCommand {
    std::string count;  // empty: one process that starts its ranks itself
    DropInFlags nccl;
    DropInFlags cufile;
    std::optional<std::chrono::milliseconds> timeout;
    bool plain = false;
    std::vector<std::string> misplaced;  // a program without -- before it
};

using Variables = std::map<std::string, std::string>;

Variables own_variables() {
    Variables variables;
    for (char** entry = environ; *entry != nullptr; ++entry)
        if (const char* sign = std::strchr(*entry, '='))
            variables.emplace(std::string(*entry, static_cast<std::size_t>(sign - *entry)), sign + 1);
    return variables;
}

std::vector<std::string> lines_of(const Variables& variables) {
    std::vector<std::string> lines;
    for (const auto& [name, value] : variables) lines.push_back(fmt::format("{}={}", name, value));
    return lines;
}

std::string option_of(const DropIn& drop_in) {
    return fmt::format("--{}-library", drop_in.folder);
}

// In a build tree, installed, or in an unpacked bundle.
Result<std::string> find_library(const DropIn& drop_in) {
    std::error_code error;
    const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
    if (error)
        return Error{ErrorCode::not_found, "where this command lies cannot be seen", "/proc/self/exe",
                     fmt::format("mount /proc, or name the library with {} FILE", option_of(drop_in))};
    std::string tried;
    for (const char* folder :
         {"../shims", "../lib/sidestep", "../lib64/sidestep", "../lib/x86_64-linux-gnu/sidestep",
          "../lib/aarch64-linux-gnu/sidestep", "lib/sidestep", "."}) {
        const auto file = (program.parent_path() / folder / drop_in.folder / drop_in.file).lexically_normal();
        if (std::filesystem::exists(file, error)) return file.string();
        tried += fmt::format("{}{}", tried.empty() ? "" : ", ", file.parent_path().string());
    }
    return Error{ErrorCode::not_found,
                 fmt::format("the library that stands in for {}, {}, is not beside this command",
                             drop_in.name, drop_in.file),
                 tried,
                 fmt::format("name it with {} FILE, or run the program without it: --no-{}",
                             option_of(drop_in), drop_in.folder)};
}

Result<std::string> library_of(const DropIn& drop_in, const DropInFlags& flags) {
    if (flags.library.empty()) return find_library(drop_in);
    std::error_code error;
    const auto file = std::filesystem::absolute(flags.library, error);
    if (error || !std::filesystem::exists(file, error))
        return Error{ErrorCode::not_found, "there is no such file", flags.library, {}};
    // The loader would warn, and run the program without it.
    char first[4] = {};
    std::ifstream(file, std::ios::binary).read(first, sizeof first);
    if (std::string_view(first, sizeof first) != "\177ELF")
        return Error{ErrorCode::invalid_argument, "this file is not a library", flags.library, {}};
    return file.string();
}

// Has the loader take them first: they answer also what a program opens by name. A line says which.
Result<void> set_drop_ins(const RunCommand& command, const Globals& globals, Variables& variables) {
    std::vector<std::string> preloaded;
    std::vector<std::string> said;
    const std::pair<const DropIn&, const DropInFlags&> both[] = {{nccl, command.nccl},
                                                                 {cufile, command.cufile}};
    for (const auto& [drop_in, flags] : both) {
        if (flags.left_out) continue;
        const auto library = library_of(drop_in, flags);
        if (!library && (drop_in.has_to_be_there || !flags.library.empty())) return library.error();
        if (library) preloaded.push_back(*library);
        said.push_back(library ? fmt::format("{}'s calls are Sidestep's: {}", drop_in.name, *library)
                               : fmt::format("{}'s calls stay the program's own: {}", drop_in.name,
                                             library.error().to_string()));
    }
    for (const std::string& line : said)
        if (!globals.quiet) fmt::print(stderr, "sidestep: {}\n", line);
    if (const std::string& before = variables["LD_PRELOAD"]; !before.empty()) preloaded.push_back(before);
    variables["LD_PRELOAD"] = fmt::format("{}", fmt::join(preloaded, ":"));
    if (preloaded.empty()) variables.erase("LD_PRELOAD");
    return {};
}

// Ranks asked for; 0 where the program starts its own.
Result<int> count_of(const RunCommand& command, const Globals& globals) {
    if (command.count.empty()) return 0;
    int count = 0;
    const std::string& text = command.count;
    const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), count);
    const bool all = text == "gpus";
    if (!all && (wrong != std::errc{} || end != text.data() + text.size() || count < 1 || count > max_ranks))
        return Error{ErrorCode::invalid_argument, fmt::format("'{}' is not a number of ranks", text), "-n",
                     fmt::format("write it as -n 4 (1 to {}), or -n gpus for one a GPU", max_ranks)};
    SIDESTEP_TRY(const auto topology, Topology::open(machine_of(globals)));
    const int gpus = topology.gpu_count();
    if (all && gpus > 0) return gpus;
    const char* const no_gpu =
        "sidestep doctor says why it has none; --machine dgx-h100 is a machine with eight emulated ones";
    if (all || count > gpus)
        return Error{ErrorCode::not_found,
                     all ? std::string("this machine has no GPU")
                         : fmt::format("{} ranks need as many GPUs; this machine has {}", count, gpus),
                     "-n", gpus == 0 ? no_gpu : ""};
    return count;
}

// What every process of the job gets.
Result<Variables> shared_variables(const RunCommand& command, const Globals& globals) {
    Variables variables = own_variables();
    SIDESTEP_CHECK(set_drop_ins(command, globals, variables));
    if (!globals.machine.empty()) variables["SIDESTEP_MACHINE"] = globals.machine;
    if (command.timeout)
        variables["SIDESTEP_GROUP_TIMEOUT"] =
            fmt::format("{}", static_cast<double>(command.timeout->count()) / 1000);
    return variables;
}

// Those by which a program finds its rank: the library's own, and torchrun's, which PyTorch reads.
Result<std::vector<std::vector<std::string>>> rank_environments(Variables variables, int count) {
    SIDESTEP_TRY(const auto id, GroupId::create());
    variables["SIDESTEP_GROUP_ID"] = id.to_string();
    variables["SIDESTEP_RANKS"] = variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] =
        fmt::format("{}", count);
    if (variables["MASTER_ADDR"].empty() || variables["MASTER_PORT"].empty()) {
        const int port = free_port();
        if (port == 0)
            return Error{ErrorCode::io_error, "no TCP port of 127.0.0.1 is free", "MASTER_PORT",
                         "set MASTER_ADDR and MASTER_PORT yourself"};
        variables["MASTER_ADDR"] = "127.0.0.1";
        variables["MASTER_PORT"] = fmt::format("{}", port);
    }
    std::vector<std::vector<std::string>> all;
    for (int rank = 0; rank < count; ++rank) {
        variables["SIDESTEP_RANK"] = variables["RANK"] = variables["LOCAL_RANK"] = fmt::format("{}", rank);
        all.push_back(lines_of(variables));
    }
    return all;
}

Result<ExitCode> run_program(const RunCommand& command, const Globals& globals) {
    if (globals.program.empty() || !command.misplaced.empty())
        return Error{ErrorCode::invalid_argument, "put the program after --", "run",
                     "as in: sidestep run -n 4 -- python3 train.py --steps 10"};
    // The ranks would say so, after they have started.
    if (command.timeout && *command.timeout > longest_limit)
        return refused_option("timeout", fmt::format("{} ms", command.timeout->count()));
    SIDESTEP_TRY(const auto count, count_of(command, globals));
    // The program would stumble over it at its first call, or never say so.
    if (!globals.machine.empty()) SIDESTEP_CHECK(Topology::open(globals.machine));
    SIDESTEP_TRY(const auto variables, shared_variables(command, globals));
    if (count == 0) return become(globals.program, lines_of(variables));
    SIDESTEP_TRY(const auto environments, rank_environments(variables, count));
    if (count == 1) return become(globals.program, environments.front());
    SIDESTEP_TRY(auto ranks, Ranks::start(globals.program, environments, !command.plain));
    const JobEnd end = ranks.run(grace);
    if (!end.said.empty()) fmt::print(stderr, "sidestep: {}\n", end.said);
    return static_cast<ExitCode>(end.code);
}

void add_drop_in(CLI::App& app, const DropIn& drop_in, DropInFlags& flags) {
    CLI::Option* none = app.add_flag(fmt::format("--no-{}", drop_in.folder), flags.left_out,
                                     fmt::format("leave the program its own {}", drop_in.name));
    app.add_option(option_of(drop_in), flags.library,
                   fmt::format("the library that stands in for {} (default: the one beside this command)",
                               drop_in.name))
        ->type_name("FILE")
        ->excludes(none);
}

}  // namespace

Action define_run(CLI::App& app, const Globals& globals) {
    auto command = std::make_shared<RunCommand>();
    app.add_option("PROGRAM", command->misplaced,
                   "the program and its arguments, behind --; NCCL's and cuFile's calls in it are Sidestep's")
        ->type_name("");
    app.add_option(
           "-n", command->count,
           "start N of it, a rank and a GPU each; gpus: one a GPU (default: one process, which starts its "
           "ranks itself)")
        ->type_name("N|gpus");
    add_drop_in(app, nccl, command->nccl);
    add_drop_in(app, cufile, command->cufile);
    add_duration(
        app, "--timeout", [command](std::chrono::milliseconds time) { command->timeout = time; },
        "longest wait of a rank for another one, such as 60 or 10m; 0: none (default: 60 s; none under "
        "NCCL's "
        "name)");
    app.add_flag("--plain", command->plain, "print the ranks' lines as they are, without [RANK] before them");
    return [command, &globals] { return run_program(*command, globals); };
}

}  // namespace sidestep::cli
