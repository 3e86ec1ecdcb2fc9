// Files and block devices.
#pragma once

#include <memory>
#include <optional>

#include "backend/backend.hpp"
#include "base/environment.hpp"
#include "driver/file_io_engine.hpp"
#include "driver/page_cache.hpp"

namespace sidestep::backends::file {

struct FileOptions {
    // automatic: io_uring, or where the kernel refuses it threads, which Support says.
    base::FileIo io = base::FileIo::automatic;
    // How to ask what the page cache holds; nothing: the best way there is.
    std::optional<driver::CacheProbe> cache_probe = {};
    // Whether whole-file targets that live in memory (tmpfs) are written through a map; nothing: where that
    // is quicker.
    std::optional<bool> maps = {};
};

// Moves bytes between files or block devices and host memory. `engine`: for tests of what devices do wrong.
std::unique_ptr<backend::Backend> create(FileOptions options,
                                         std::unique_ptr<driver::FileIoEngine> engine = nullptr);

}  // namespace sidestep::backends::file
