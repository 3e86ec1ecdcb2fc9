// Which files of a folder are its checkpoint.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <sidestep/result.hpp>
#include "checkpoint/files_reader.hpp"

namespace sidestep::checkpoint {

struct FolderFiles {
    std::string index;  // to be read; empty: there is none, and `paths` are
    // A file that holds a whole model by its name, beside the index; empty: there is none.
    std::string single;
    std::vector<std::string> paths;  // all safetensors, or all GGUF and parts of one model by their names
};

// ErrorCode::not_found where there is neither safetensors nor GGUF, or a part is lacking by the names of the
// others. docs/checkpoint.md has the order in which files are looked for.
Result<FolderFiles> files_of_folder(const std::string& folder, const FarFilesPtr& far);

inline constexpr std::string_view safetensors_ending = ".safetensors";
inline constexpr std::string_view gguf_ending = ".gguf";

std::string beside(const std::string& folder, const std::string& name);

}  // namespace sidestep::checkpoint
