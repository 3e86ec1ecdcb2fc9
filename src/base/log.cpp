#include "base/log.hpp"

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace sidestep::base {
namespace {

LogLevel parse_level(const char* text) {
    const std::string_view level = text != nullptr ? text : "warn";
    if (level == "error") return LogLevel::error;
    if (level == "info") return LogLevel::info;
    if (level == "debug") return LogLevel::debug;
    return LogLevel::warn;
}

constexpr const char* names[] = {"error", "warn", "info", "debug"};

}  // namespace

bool logs(LogLevel level) noexcept {
    static const LogLevel wanted = parse_level(std::getenv("SIDESTEP_LOG"));
    return level <= wanted;
}

void log(LogLevel level, std::string_view text) noexcept {
    if (!logs(level)) return;
    try {
        std::string line = "sidestep: ";
        line.append(names[static_cast<int>(level)]).append(": ").append(text).append("\n");
        // A log line that cannot be written has nowhere else to go.
        [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
    } catch (...) {  // out of memory while reporting: stay silent rather than end the process
    }
}

}  // namespace sidestep::base
