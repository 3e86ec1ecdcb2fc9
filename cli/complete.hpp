// What may stand where the cursor is.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "globals.hpp"

namespace sidestep::cli {

// One candidate for the last of `words` (a command line without the program) a line, with a tab and what it is where
// that is known. ":program N" alone: the words from the N-th on (0: the first) are another program's.
std::string candidates(const CLI::App& program, const std::vector<std::string>& words,
                       const Globals& globals);

}  // namespace sidestep::cli
