#include "progress.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

namespace sidestep::cli {
namespace {

int terminal_columns() {
    winsize size{};
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
    return size.ws_col;
}

void write_terminal(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
}

}  // namespace

std::string progress_line(Bytes done, Bytes total, double seconds, int columns, std::string_view last) {
    const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0;
    const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
    std::string text =
        fmt::format(" {:3.0f} %  {} of {}", share * 100, format_bytes(done), format_bytes(total));
    if (done > 0) text += "  " + format_rate(rate / 1e9);
    if (total > 0 && done >= total)
        text.append("  ").append(last);
    else if (rate > 0)
        text += "  " + format_seconds(static_cast<double>(total - done) / rate) + " left";
    // One column stays free: some terminals wrap when the last one is written.
    const int bar = std::min(40, columns - static_cast<int>(text.size()) - 3);
    if (bar >= 8) {
        const int full = static_cast<int>(share * bar);
        text = fmt::format("[{:#<{}}{:-<{}}]{}", "", full, "", bar - full, text);
    }
    if (columns > 1) text.resize(std::min(text.size(), static_cast<std::size_t>(columns - 1)));
    return text;
}

Progress::Progress(bool wanted, const char* last)
    : last_(last), enabled_(wanted && isatty(STDERR_FILENO) == 1), begun_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
    if (drawn_) write_terminal("\r\033[K");
}

void Progress::update(Bytes done, Bytes total) {
    if (!enabled_ || total == 0) return;
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begun_;
    // The rate is that of the copy: verifying does not lower it.
    if (done >= total && !seconds_) seconds_ = passed.count();
    const double seconds = done >= total ? *seconds_ : passed.count();
    // The old line's rest is wiped, not padded: the window may have been resized.
    write_terminal(fmt::format("\r{}\033[K", progress_line(done, total, seconds, terminal_columns(), last_)));
    drawn_ = true;
}

void Progress::update(const std::string& words) {
    if (!enabled_) return;
    const auto columns = static_cast<std::size_t>(std::max(terminal_columns() - 1, 0));
    write_terminal(fmt::format("\r{}\033[K", words.substr(0, columns)));
    drawn_ = true;
}

}  // namespace sidestep::cli
