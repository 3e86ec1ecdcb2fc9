#include "report.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include <nlohmann/json.hpp>

#include "driver/replaced_file.hpp"

namespace sidestep::cli {
namespace {

// A line on standard error.
void tell(std::string_view name, Style style, std::string_view text, Color color) {
    const std::string line =
        painted(name, has_color(color, STDERR_FILENO) ? style : Style::plain) + " " + one_line(text) + "\n";
    std::fwrite(line.data(), 1, line.size(), stderr);
}

// Whether standard output has something already: it is one for the process, as this is.
std::atomic<bool>& begun() {
    static std::atomic<bool> one{false};
    return one;
}

Error not_written(const std::string& path, int number) {
    const bool absent = number == ENOENT || number == ENOTDIR || number == EISDIR;
    return Error{absent             ? ErrorCode::not_found
                 : number == EACCES ? ErrorCode::permission_denied
                 : number == ENOSPC ? ErrorCode::no_space
                                    : ErrorCode::io_error,
                 "the file cannot be written: " + std::generic_category().message(number), path, ""};
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
    if (!json || begun()) return tell("sidestep:", Style::red, error.to_string(), color);
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
    flockfile(stdout);
    begun() = true;
    const bool written =
        std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
    const int number = errno;
    funlockfile(stdout);
    if (written) return {};
    return Error{ErrorCode::io_error,
                 "the output cannot be written: " + std::generic_category().message(number),
                 "standard output",
                 {}};
}

void report_interrupt(bool json) {
    // Where another thread is printing, its document stands there. The lock is kept, so that none follows.
    if (!json || ftrylockfile(stdout) != 0 || begun()) return;
    report(Error{ErrorCode::cancelled, "interrupted", {}, {}}, true, Color::never);
}

std::string in_words(const std::vector<std::string>& paths) {
    if (paths.size() == 1) return paths.front();
    return paths.front() + " and " + std::to_string(paths.size() - 1) + " more";
}

void print_note(std::string_view text, Color color) {
    tell("sidestep: note:", Style::yellow, text, color);
}

Result<void> can_be_written(const std::string& path) {
    if (path.empty()) return {};
    struct stat status {};
    const bool there = ::stat(path.c_str(), &status) == 0;
    if (there && S_ISDIR(status.st_mode)) return not_written(path, EISDIR);
    if (!there && errno != ENOENT) return not_written(path, errno);
    const std::string folder = path.substr(0, path.find_last_of('/') + 1) + ".";
    const int asked = there ? W_OK : W_OK | X_OK;
    if (::faccessat(AT_FDCWD, there ? path.c_str() : folder.c_str(), asked, AT_EACCESS) != 0)
        return not_written(path, errno);
    return {};
}

Result<void> write_file(const std::string& path, std::string_view text) {
    struct stat status {};
    const bool special = ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
    auto aside = special ? Result<driver::ReplacedFile>(Error{}) : driver::ReplacedFile::begin(path);
    if (!aside && aside.error().code == ErrorCode::no_space) return aside.error();
    // What is no file, and a file in a folder that takes no new one.
    const driver::Fd in_place(aside ? -1
                                    : ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    const int file = aside ? aside->fd().get() : in_place.get();
    if (file < 0) return not_written(path, errno);
    while (!text.empty()) {
        const ssize_t put = ::write(file, text.data(), text.size());
        if (put < 0 && errno != EINTR) return not_written(path, errno);
        if (put > 0) text.remove_prefix(static_cast<std::size_t>(put));
    }
    // A network file system may say only where a descriptor is closed that there was no space.
    if (const int again = ::dup(file); again < 0 || ::close(again) != 0) return not_written(path, errno);
    return aside ? aside->commit(false) : Result<void>();
}

}  // namespace sidestep::cli
