// A file that one process at a time holds.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include <sidestep/result.hpp>
#include "driver/fd.hpp"

namespace sidestep::driver {

// Held as long as it lives, and gone with the process (flock(2)). Only who may write the folder gets that far: the file has
// mode 0600, so that who can only read it keeps nobody out. Removed at the end.
class LockFile {
public:
    // Waits so long for one that is held. io_error names who holds it, permission_denied whose the file is.
    static Result<std::unique_ptr<LockFile>> take(const std::string& path, std::chrono::milliseconds wait);

    LockFile(const LockFile&) = delete;
    LockFile& operator=(const LockFile&) = delete;
    ~LockFile();

private:
    LockFile(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
    const std::string path_;
    const Fd fd_;
};

}  // namespace sidestep::driver
