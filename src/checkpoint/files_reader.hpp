// Opening and reading the files of a checkpoint.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>
#include "driver/fd.hpp"
#include "driver/files.hpp"

namespace sidestep::checkpoint {

// The files of another machine. Asked by several threads.
struct FarFiles {
    std::string node;
    // Nothing where there is no such file.
    std::function<Result<std::optional<driver::FileFacts>>(const std::string& path)> facts;
    std::function<Result<void>(const std::string& path, Bytes offset, void* to, Bytes size)> read;
    // As driver::names_in.
    std::function<Result<std::vector<std::string>>(const std::string& folder)> names;
};
// Null: the files of this machine.
using FarFilesPtr = std::shared_ptr<const FarFiles>;

struct OpenFile {
    driver::Fd fd;
    driver::FileFacts facts;
    std::string path;
    FarFilesPtr far = nullptr;
};

// ErrorCode::not_found where there is none, ErrorCode::invalid_argument where it is not a regular file. Does not
// wait for a pipe's other end.
Result<OpenFile> open_regular(const std::string& path, const FarFilesPtr& far = nullptr);

// As driver::file_facts.
Result<std::optional<driver::FileFacts>> facts_of(const std::string& path, const FarFilesPtr& far);

// `size` bytes from `offset` on. ErrorCode::end_of_file where the file ends before.
Result<std::string> read_text(const OpenFile& file, Bytes offset, Bytes size);

// What an index of shards may have.
inline constexpr Bytes largest_index = Bytes{512} << 20;

// All of a file of at most `max` bytes. `what` stands in errors: "the index".
Result<std::string> read_whole(const std::string& path, Bytes max, const std::string& what,
                               const FarFilesPtr& far = nullptr);

}  // namespace sidestep::checkpoint
