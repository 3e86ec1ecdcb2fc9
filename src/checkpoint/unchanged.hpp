// Whether a file of a checkpoint is still the one that was opened.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sidestep/checkpoint.hpp>

namespace sidestep::checkpoint {

// What the file is known by to the backends (driver::FileFacts::identity). Errors are those of
// Checkpoint::check_file; `since` stands in them: "when it was opened".
Result<std::uint64_t> check_unchanged(const Checkpoint& checkpoint, std::size_t file, const char* since);

}  // namespace sidestep::checkpoint
