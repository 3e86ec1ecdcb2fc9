// Lines to standard error, for what has no Result to travel in.
#pragma once

#include <string_view>

namespace sidestep::base {

enum class LogLevel { error, warn, info, debug };

// Writes "sidestep: warn: text\n" in one write, so that lines of several threads do not mix, if
// SIDESTEP_LOG asks for lines of this weight. Never fails, never throws.
void log(LogLevel level, std::string_view text) noexcept;

// Whether lines of this weight are written, for lines that cost something to make.
bool logs(LogLevel level) noexcept;

}  // namespace sidestep::base
