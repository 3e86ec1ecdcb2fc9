// Opening and reading the files of a checkpoint.
#pragma once

#include <string>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>
#include "driver/fd.hpp"
#include "driver/files.hpp"

namespace sidestep::checkpoint {

struct OpenFile {
    driver::Fd fd;
    driver::FileFacts facts;
    std::string path;
};

// ErrorCode::not_found where there is none, ErrorCode::invalid_argument where it is not a regular file. Does not
// wait for a pipe's other end.
Result<OpenFile> open_regular(const std::string& path);

// `size` bytes from `offset` on. ErrorCode::end_of_file where the file ends before.
Result<std::string> read_text(const OpenFile& file, Bytes offset, Bytes size);

// All of a file of at most `max` bytes. `what` stands in errors: "the index".
Result<std::string> read_whole(const std::string& path, Bytes max, const std::string& what);

}  // namespace sidestep::checkpoint
