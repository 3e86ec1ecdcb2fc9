// Folders in which a save or a copy was killed.
#pragma once

#include <string>
#include <vector>

#include <sidestep/api.h>
#include <sidestep/result.hpp>

namespace sidestep {

// Ends what killed saves and copies left in a folder: hidden files of full size that nobody writes any more are removed, and where
// the index reads the files of an earlier checkpoint under second names (docs/load.md), they get the first ones back. Files that
// are being written for two seconds more stay. The index leads to one whole checkpoint all the while. Answers what was done, a sentence each;
// none where nothing was to be done. ErrorCode::io_error where a save is giving files their names there, invalid_argument where
// the index leads to no checkpoint: only another save mends that.
SIDESTEP_API Result<std::vector<std::string>> repair(const std::string& folder);

}  // namespace sidestep
