// One at a time at a folder, among threads and processes.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <sidestep/result.hpp>
#include "driver/fd.hpp"

namespace sidestep::driver {

// Held as long as it lives, and gone with the process (flock(2)). A child of fork() does not keep it.
class FolderLock {
public:
    // Null where another one holds it. Never waits. Where a file system has no such locks there is one that
    // keeps nobody out.
    static Result<std::unique_ptr<FolderLock>> try_take(const std::string& folder);

    FolderLock(const FolderLock&) = delete;
    FolderLock& operator=(const FolderLock&) = delete;
    ~FolderLock();

private:
    explicit FolderLock(Fd folder) : folder_(std::move(folder)) {}
    Fd folder_;
};

}  // namespace sidestep::driver
