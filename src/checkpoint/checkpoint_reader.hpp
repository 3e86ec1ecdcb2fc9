// The headers of the files that a path leads to.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <sidestep/checkpoint.hpp>

#include "checkpoint/files_reader.hpp"

namespace sidestep::checkpoint {

// What is known of the files together. Tensors in the order of the files and, within one, of their offsets;
// names may still appear twice.
struct Headers {
    std::string index;  // the path of the one that names the files; empty: none
    std::vector<TensorInfo> tensors;
    std::vector<CheckpointFile> files;
    std::vector<std::pair<std::string, std::string>> metadata;
    std::vector<std::string> notes;
};

// Checkpoint::open says what `path` may be.
Result<Headers> read_headers(const std::string& path, const CheckpointOptions& options,
                             const FarFilesPtr& far = nullptr);

// The same for several paths, each of one file.
Result<Headers> read_headers(const std::vector<std::string>& paths, const CheckpointOptions& options,
                             const FarFilesPtr& far = nullptr);

}  // namespace sidestep::checkpoint
