// What a file buffer refers to, and whether it can be what it claims.
#pragma once

#include "backend/backend.hpp"
#include "driver/files.hpp"

namespace sidestep::backends::file {

// Nothing where no file is there but one can be made: a whole-file target. Fails where the path is
// neither a regular file nor a block device, where it leads nowhere and its folder is missing or a range
// was asked for, and where a range begins beyond the end.
Result<std::optional<driver::FileFacts>> inspect(const Buffer& buffer);

// The error for a file that is not there.
Error missing(const std::string& path);

// Whether a range that is to be read lies within the file. ErrorCode::end_of_file names its size.
Result<void> check_read_range(const Buffer& buffer, const driver::FileFacts& facts);

// Whether a range can be written in place. A regular file may grow, but only from its end on, so that no
// holes come about by accident; a block device cannot (ErrorCode::no_space).
Result<void> check_write_range(const Buffer& buffer, Bytes bytes, const driver::FileFacts& facts);

}  // namespace sidestep::backends::file
