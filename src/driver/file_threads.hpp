// File I/O by threads that call pread and pwrite, for kernels without io_uring.
#pragma once

#include <memory>

#include "driver/file_io_engine.hpp"

namespace sidestep::driver {

// The threads start with the first request and end with the engine.
std::unique_ptr<FileIoEngine> create_thread_engine(unsigned depth, unsigned threads);

}  // namespace sidestep::driver
