// What a load moves: from a checkpoint and options to files, their ranges, and the memory of each place.
// Reads nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/placement.hpp"

namespace sidestep::checkpoint {

struct LoadPlan {
    std::shared_ptr<const LoadPlacement> placement;
    std::vector<transfer::SpreadFile> files;  // only those with something to read; without their identity
    std::vector<std::size_t> file_numbers;    // of `files`, in Checkpoint::files()
    Bytes file_bytes = 0;                     // read from all files
    Bytes bytes = 0;                          // that arrive in all memories
    std::vector<std::string> notes;

    const LayoutPlan& layout() const { return placement->plan(); }
};

// `block`: reads whole blocks of that size, for checksums; 0: does not. Fails with invalid_argument, naming
// place, rule or tensor, for options that make no sense with this checkpoint.
Result<LoadPlan> plan_load(const Checkpoint& checkpoint, const LoadOptions& options, Bytes block);

}  // namespace sidestep::checkpoint
