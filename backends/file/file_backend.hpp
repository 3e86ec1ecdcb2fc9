// Files and block devices.
#pragma once

#include <memory>

#include "backend/backend.hpp"
#include "base/environment.hpp"
#include "driver/file_io_engine.hpp"

namespace sidestep::backends::file {

struct FileOptions {
    // automatic: io_uring, or where the kernel refuses it threads, which Support says.
    base::FileIo io = base::FileIo::automatic;
};

// Moves bytes between files or block devices and host memory.
std::unique_ptr<backend::Backend> create(FileOptions options);

// The same over an engine of the caller's, for tests of what devices do wrong.
std::unique_ptr<backend::Backend> create(std::unique_ptr<driver::FileIoEngine> engine);

}  // namespace sidestep::backends::file
