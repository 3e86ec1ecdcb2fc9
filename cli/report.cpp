#include "report.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include <nlohmann/json.hpp>

namespace sidestep::cli {
namespace {

// A line on standard error.
void tell(std::string_view name, Style style, std::string_view text, Color color) {
    const std::string line =
        painted(name, has_color(color, STDERR_FILENO) ? style : Style::plain) + " " + one_line(text) + "\n";
    std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

// Messages that list several reasons have a line each; on a terminal the error stays one line. Other
// control characters of file names do not reach the terminal either.
std::string one_line(std::string_view text) {
    std::string line;
    for (const char c : text) {
        if (c == '\n') {
            if (!line.empty() && line.back() != ';') line += ';';
        } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
            line += '?';
        } else {
            if (!line.empty() && line.back() == ';' && c != ' ') line += ' ';
            line += c;
        }
    }
    while (!line.empty() && (line.back() == ';' || line.back() == ' ')) line.pop_back();
    return line;
}

ExitCode exit_code(ErrorCode code) {
    switch (code) {
        case ErrorCode::invalid_argument:
        case ErrorCode::not_found:
            return ExitCode::usage;
        case ErrorCode::path_unavailable:
            return ExitCode::path_unavailable;
        case ErrorCode::cancelled:
            return ExitCode::interrupted;
        default:
            return ExitCode::failed;
    }
}

void report(const Error& error, bool json, Color color) {
    if (!json) return tell("sidestep:", Style::red, error.to_string(), color);
    const nlohmann::ordered_json object = {{"error",
                                            {{"code", to_string(error.code)},
                                             {"message", error.message},
                                             {"where", error.where},
                                             {"hint", error.hint}}}};
    // The exit code still tells where this cannot be written.
    (void)print(document(object)).ok();
}

std::string document(const nlohmann::ordered_json& json) {
    return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Result<void> print(std::string_view text) {
    const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
    if (written && std::fflush(stdout) == 0) return {};
    return Error{ErrorCode::io_error,
                 "the output cannot be written: " + std::generic_category().message(errno),
                 "standard output",
                 {}};
}

std::string in_words(const std::vector<std::string>& paths) {
    if (paths.size() == 1) return paths.front();
    return paths.front() + " and " + std::to_string(paths.size() - 1) + " more";
}

void print_note(std::string_view text, Color color) {
    tell("sidestep: note:", Style::yellow, text, color);
}

Result<void> write_file(const std::string& path, std::string_view text) {
    const auto failed = [&path] {
        const int number = errno;
        const bool absent = number == ENOENT || number == ENOTDIR || number == EISDIR;
        return Error{absent             ? ErrorCode::not_found
                     : number == EACCES ? ErrorCode::permission_denied
                     : number == ENOSPC ? ErrorCode::no_space
                                        : ErrorCode::io_error,
                     "the file cannot be written: " + std::generic_category().message(number), path, ""};
    };
    std::FILE* file = std::fopen(path.c_str(), "wb");
    if (file == nullptr) return failed();
    const bool whole =
        std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
    if (!whole) {
        const Error error = failed();
        std::fclose(file);
        return error;
    }
    if (std::fclose(file) != 0) return failed();
    return {};
}

}  // namespace sidestep::cli
