#include "globals.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <functional>

#include <fmt/format.h>
#include <unistd.h>

#include "report.hpp"

namespace sidestep::cli {
namespace {

// What the library calls an option of that name: --max-staging is max_staging.
std::string library_name(std::string_view name) {
    std::string option(name.substr(name.find_first_not_of('-')));
    std::replace(option.begin(), option.end(), '-', '_');
    return option;
}

// An option whose text `parse` reads; its Error becomes CLI11's, with the range that the library gives the option.
template <typename T>
CLI::Option* add_parsed(CLI::App& app, const char* name, Result<T> (*parse)(std::string_view),
                        std::function<void(T)> store, const char* text) {
    return app.add_option_function<std::string>(
        name,
        [=](const std::string& value) {
            auto parsed = parse(value);
            if (parsed) return store(*parsed);
            const std::string range = refused_option(library_name(name), value).hint;
            throw CLI::ValidationError(name,
                                       parsed.error().to_string() + (range.empty() ? "" : "; ") + range);
        },
        text);
}

// "all" is 0.
Result<int> parse_lanes(std::string_view text) {
    int lanes = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), lanes);
    if (text == "all" || (error == std::errc{} && end == text.data() + text.size())) return lanes;
    return Error{ErrorCode::invalid_argument, fmt::format("'{}' is neither all nor a number", text), {}, {}};
}

}  // namespace

CLI::Option* add_bytes(CLI::App& app, const char* name, std::function<void(Bytes)> store, const char* text) {
    return add_parsed<Bytes>(app, name, parse_bytes, std::move(store), text)->type_name("SIZE");
}

void stands_alone(CLI::App& app, const char* one, std::initializer_list<const char*> others) {
    for (const char* other : others) app.get_option(one)->excludes(app.get_option(other));
}

void add_duration(CLI::App& app, const char* name, std::function<void(std::chrono::milliseconds)> store,
                  const char* text) {
    add_parsed<std::chrono::milliseconds>(app, name, parse_duration, std::move(store), text)
        ->type_name("TIME");
}

void add_globals(CLI::App& app, Globals& globals) {
    app.add_option("--machine", globals.machine,
                   "live, a built-in machine or a cluster of it (dgx-h100*4), a topology file or a recorded "
                   "folder (default: SIDESTEP_MACHINE, else live)")
        ->type_name("NAME|FILE");
    app.add_option("--as", globals.as,
                   "the built-in machine that lends NVLinks and names to an NCCL file that lacks them")
        ->type_name("MODEL");
    app.add_option("--fault", globals.faults,
                   "something that is wrong with a built-in machine: acs, no-driver, fabric-down, nic-rate, "
                   "gpu:3.width=8, ... (a wrong one lists them all); may be given several times")
        ->type_name("FAULT")
        ->allow_extra_args(false);
    app.parse_complete_callback([&globals] {
        if (!globals.as.empty()) globals.machine = machine_of(globals) + "!as=" + globals.as;
        for (const std::string& fault : globals.faults) globals.machine = machine_of(globals) + "!" + fault;
    });
    app.add_option(
           "--nodes", globals.nodes,
           "where other machines listen: NAME=HOST:PORT,..., a file of such lines, or "
           "etcd://HOST:PORT/PREFIX (default: SIDESTEP_NODES; a name that the resolver knows needs none)")
        ->type_name("NAME=ADDR,...|FILE");
    app.add_option("--key-file", globals.key_file,
                   "the key by which machines know each other (default: SIDESTEP_KEY_FILE, else "
                   "~/.config/sidestep/key)")
        ->type_name("FILE");
    app.add_flag("--encrypt", globals.encrypt,
                 "bytes to and from other machines are encrypted, or the machines do not talk (default: "
                 "SIDESTEP_NETWORK_ENCRYPTION)");
    app.add_flag("--json", globals.json, "print JSON on standard output, errors too");
    // main() reads it before all else; here it is described and checked.
    app.add_option_function<std::string>(
           "--color", [](const std::string&) {},
           "colour: on terminals (NO_COLOR is respected), always or never")
        ->type_name("auto|always|never")
        ->check(CLI::IsMember({"auto", "always", "never"}).description(""));
    app.add_option("--require", globals.require,
                   "any path; direct: one hop or exit code 3; host: through host memory")
        ->type_name("any|direct|host")
        ->check(CLI::IsMember({"any", "direct", "host"}).description(""));
    app.add_flag("--verify", globals.verify, "after a copy, read both ends and compare them");
    app.add_flag("--quiet", globals.quiet, "no progress bar, no result line, no notes; only errors");
}

void add_limit_flags(CLI::App& app, LimitFlags& flags) {
    add_bytes(
        app, "--chunk", [&flags](Bytes value) { flags.chunk = value; },
        "bytes moved at a time (default: chosen by the library)");
    add_bytes(
        app, "--max-staging", [&flags](Bytes value) { flags.max_staging = value; },
        "staging memory at once, of a load for each place (default: 256MiB)");
    add_duration(
        app, "--deadline", [&flags](std::chrono::milliseconds value) { flags.deadline = value; },
        "fail when it takes longer, such as 500ms, 30s or 2m (default: none)");
    app.add_flag("--direct-io", flags.direct_io, "read and write files around the page cache");
}

void add_copy_flags(CLI::App& app, CopyFlags& flags) {
    add_bytes(
        app, "--size", [&flags](Bytes value) { flags.size = value; },
        "bytes of a memory source, such as 4KiB or 1.5GiB (default: 256MiB)");
    app.add_option("--prefer", flags.prefer, "the engine that moves GPU memory, where both can")
        ->type_name("copy-engine|kernel")
        ->check(CLI::IsMember({"copy-engine", "kernel"}).description(""));
    add_parsed<int>(
        app, "--lanes", parse_lanes, [&flags](int lanes) { flags.lanes = lanes; },
        "paths at once: 1, at most N, or all that make it quicker (default: all)")
        ->type_name("1|all|N");
    add_limit_flags(app, flags.limits);
    app.add_flag("--sync", flags.sync, "flush a written file to its device before it gets its name");
}

CopyOptions copy_options(const Globals& globals, const CopyFlags& flags) {
    CopyOptions options;
    if (globals.require == "direct") options.require = Require::direct;
    if (globals.require == "host") options.require = Require::host;
    if (flags.prefer == "copy-engine") options.prefer = Prefer::copy_engine;
    if (flags.prefer == "kernel") options.prefer = Prefer::kernel;
    options.lanes = flags.lanes;
    options.sync_file = flags.sync;
    flags.limits.set(globals, options);
    return options;
}

std::string machine_of(const Globals& globals) {
    if (!globals.machine.empty()) return globals.machine;
    const char* named = std::getenv("SIDESTEP_MACHINE");
    return named && *named ? named : "live";
}

Result<Context> open_context(const Globals& globals) {
    ContextOptions options;
    options.machine = globals.machine;
    options.nodes = globals.nodes;
    options.key_file = globals.key_file;
    options.network_encryption = globals.encrypt;
    return Context::open(std::move(options));
}

void note_lenders(const Context& context, const Globals& globals) {
    if (globals.quiet || globals.json) return;
    for (const std::string& note : context.topology().notes())
        if (note.find("--as MODEL") != std::string::npos) print_note(note, globals.color);
}

Result<void> print_plan(const Globals& globals, std::string_view text, Bytes bytes) {
    if (globals.json || globals.quiet || bytes < takes_a_while) return {};
    return print(one_line(text) + "\n");
}

std::string painted_help(std::string_view text, const Globals& globals) {
    return has_color(globals.color, STDOUT_FILENO) ? paint_headings(text) : std::string(text);
}

std::string painted_report(std::string_view text, const Globals& globals) {
    if (globals.json || !has_color(globals.color, STDOUT_FILENO)) return std::string(text);
    const std::string verdicts = paint_words(text,
                                             {{"fail", Style::red},
                                              {"warn", Style::yellow},
                                              {"pass", Style::green},
                                              {"unknown", Style::dim},
                                              {"refused", Style::bold},
                                              {"notes", Style::bold}},
                                             true);
    return paint_words(
        verdicts, {{"NV#", Style::green}, {"PIX", Style::cyan}, {"PXB", Style::cyan}, {"SYS", Style::yellow}},
        false);
}

Result<std::chrono::milliseconds> parse_duration(std::string_view text) {
    const Error bad{ErrorCode::invalid_argument,
                    fmt::format("'{}' is not a time", text),
                    {},
                    "write it as 500ms, 30s, 2m or 1h"};
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{}) return bad;
    const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
    double scale = 1000;
    if (unit == "ms")
        scale = 1;
    else if (unit == "m")
        scale = 60e3;
    else if (unit == "h")
        scale = 3600e3;
    else if (!unit.empty() && unit != "s")
        return bad;
    const double milliseconds = number * scale;
    // Written so that a NaN fails too. What fits into 63 bits is the library's to judge.
    if (!(milliseconds >= 0 && milliseconds < 0x1p63)) return bad;
    return std::chrono::milliseconds(static_cast<long long>(std::ceil(milliseconds)));
}

}  // namespace sidestep::cli
