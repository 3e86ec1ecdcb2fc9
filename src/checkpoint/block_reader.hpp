// Reading whole files of a checkpoint block by block, by several threads.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include <sidestep/checkpoint.hpp>

namespace sidestep::checkpoint {

// One block of manifest.hpp; the last of a file may be shorter. Called by several threads at once; an error
// ends the reading.
using VisitBlock = std::function<Result<void>(std::size_t file, Bytes offset, const void* data, Bytes size)>;

// Reads all bytes of `files` with up to 8 threads, and fails where a file is not the one it was when the
// checkpoint was opened. Of several failures the first in the order of the files is told.
Result<ManifestRun> read_blocks(const std::vector<CheckpointFile>& files, const VisitBlock& visit,
                                const Checkpoint::Progress& progress);

}  // namespace sidestep::checkpoint
