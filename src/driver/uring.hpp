// File I/O through io_uring.
#pragma once

#include <memory>

#include <sidestep/result.hpp>
#include "driver/file_io_engine.hpp"

namespace sidestep::driver {

// A ring for `depth` requests, whose kernel threads (for copies between memory and page cache) are at
// most `threads` a submitting thread. ErrorCode::unsupported, with what the kernel said and what would
// help, where it gives no ring.
Result<std::unique_ptr<FileIoEngine>> create_uring_engine(unsigned depth, unsigned threads);

}  // namespace sidestep::driver
