// One rank of a group that a launcher started.
#pragma once

#include <string>

namespace sidestep::multiprocess {

// Finds its place by what the launcher told it, checks all_reduce, and writes "rank 2 of 4 on gpu:2: right",
// or what was wrong, into the file rank2 of the folder. Rank `victim` (-1: none) kills itself after that; the
// others go on, and write what that ended with. The exit code of the process.
int run_launched(const std::string& folder, int victim);

}  // namespace sidestep::multiprocess
