// What the command says, where it says it, and the number it ends with.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <sidestep/result.hpp>

#include "paint.hpp"

namespace sidestep::cli {

// The command's exit codes, documented in docs/commands.md.
enum class ExitCode : int {
    done = 0,
    failed = 1,            // also: doctor found a failure, topo diff a difference, bench a missed threshold
    usage = 2,             // a place, option, file or machine that does not exist or makes no sense
    path_unavailable = 3,  // the required path
    warnings = 4,          // doctor: nothing fails, something warns
    no_gpu = 5,            // doctor: there is no GPU, or no driver answers for them
    interrupted = 130,     // by SIGINT, SIGTERM or SIGHUP
};

ExitCode exit_code(ErrorCode code);

// Prints the error: one line on standard error, or as JSON on standard output, unless a document stands there already.
void report(const Error& error, bool json, Color color);

// The last word before a signal ends the process, on a thread beside those at work: with --json, where nothing was printed
// yet, the error. Nobody else prints afterwards.
void report_interrupt(bool json);

// Text of messages and names as one line that a terminal may get.
std::string one_line(std::string_view text);

// A document of --json, with its last newline. Names need be no UTF-8: what is none becomes U+FFFD.
std::string document(const nlohmann::ordered_json& json);

// Writes text to standard output and flushes it; fails where it cannot be written (a full disk).
Result<void> print(std::string_view text);

// Whether `write_file` may well succeed: asked before what takes long, without touching the file. Empty: no file.
Result<void> can_be_written(const std::string& path);

// Writes a file, replacing what it held all at once: a full disk leaves the old content. The error says why it cannot be.
Result<void> write_file(const std::string& path, std::string_view text);

// How the paths of one checkpoint are called together: "a.safetensors and 2 more".
std::string in_words(const std::vector<std::string>& paths);

// Prints "sidestep: note: text" on standard error.
void print_note(std::string_view text, Color color);

}  // namespace sidestep::cli
