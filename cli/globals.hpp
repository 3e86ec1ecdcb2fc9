// The options that every verb takes, and those that copy and route share.
#pragma once

#include <chrono>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <sidestep/sidestep.hpp>

#include "paint.hpp"

namespace sidestep::cli {

// What stands before or after the verb.
struct Globals {
    std::string machine;  // empty: the library chooses (SIDESTEP_MACHINE, else the live machine)
    // Parts of `machine` once all options have been read.
    std::string as;
    std::vector<std::string> faults;
    std::string nodes;     // as ContextOptions::nodes
    std::string key_file;  // as ContextOptions::key_file
    bool encrypt = false;  // as ContextOptions::network_encryption
    bool json = false;
    Color color = Color::automatic;
    bool quiet = false;
    bool verify = false;
    std::string require = "any";
    // Of `run`: what stands behind --.
    std::vector<std::string> program;
};

// Further options that copies and loads share.
struct LimitFlags {
    Bytes chunk = 0;
    std::optional<Bytes> max_staging;
    std::chrono::milliseconds deadline{0};
    bool direct_io = false;

    template <typename Options>
    void set(const Globals& globals, Options& options) const {
        options.verify = globals.verify;
        options.deadline = deadline;
        if (max_staging) options.max_staging = *max_staging;
        options.chunk = chunk;
        if (direct_io) options.page_cache = PageCache::bypass;
    }
};

// And a copy and its route.
struct CopyFlags {
    std::optional<Bytes> size;  // of memory sources
    std::string prefer;         // empty: whatever the prices say
    int lanes = 0;              // 0: all that make it quicker
    LimitFlags limits;
    bool sync = false;
};

// So many bytes take a tenth of a second on a slow machine, where fresh memory is filled and copied.
constexpr Bytes takes_a_while = Bytes{16} << 20;

// Bytes a memory source holds when nobody says how many: enough for a steady rate, small enough to
// be ready at once.
constexpr Bytes default_size = Bytes{256} << 20;

// An option of a number of bytes, "4KiB"; `store` is called with what was read.
CLI::Option* add_bytes(CLI::App& app, const char* name, std::function<void(Bytes)> store, const char* text);
// An option of a time, "30s".
void add_duration(CLI::App& app, const char* name, std::function<void(std::chrono::milliseconds)> store,
                  const char* text);
// With `one` the verb would not follow `others`: they are refused beside it.
void stands_alone(CLI::App& app, const char* one, std::initializer_list<const char*> others);
void add_globals(CLI::App& app, Globals& globals);
void add_limit_flags(CLI::App& app, LimitFlags& flags);
void add_copy_flags(CLI::App& app, CopyFlags& flags);
CopyOptions copy_options(const Globals& globals, const CopyFlags& flags);

// The machine that --machine names, or SIDESTEP_MACHINE, or "live": what a process gets that this one starts.
std::string machine_of(const Globals& globals);

// Opens the machine that --machine names.
Result<Context> open_context(const Globals& globals);

// Says on standard error where a file lacks NVLinks that a built-in machine could lend, unless told to be quiet.
void note_lenders(const Context& context, const Globals& globals);

// Says on standard output what is about to be done, in one line, so that nobody waits before an empty pipe. Not with
// --json, which is one document, nor with --quiet, nor where the bytes are so few that it is done at once.
Result<void> print_plan(const Globals& globals, std::string_view text, Bytes bytes = Buffer::whole);

// For standard output: the help with its headings in bold, and a report with the words that matter in colour, where
// there is colour.
std::string painted_help(std::string_view text, const Globals& globals);
std::string painted_report(std::string_view text, const Globals& globals);

// Reads "500ms", "30s", "2m", "1h" and, as seconds, a bare number; to the millisecond above. Fails with
// ErrorCode::invalid_argument on anything else.
Result<std::chrono::milliseconds> parse_duration(std::string_view text);

}  // namespace sidestep::cli
