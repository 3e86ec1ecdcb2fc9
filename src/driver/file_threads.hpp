// File I/O by threads that call pread and pwrite, for kernels without io_uring.
#pragma once

#include <memory>

#include "driver/file_io_engine.hpp"

namespace sidestep::driver {

// When a request brings a further thread to work.
enum class Wake {
    always,  // requests wait for a device, so each has a thread
    when_behind,  // requests are copies, which keep a processor busy: not while a thread is about to be free for it
};

// The threads start with the first request and end with the engine. With `part` above 0 several threads share
// a read, each taking as many bytes of it at a time; it ends as one call would have, with the bytes before
// the first that could not be moved.
std::unique_ptr<FileIoEngine> create_thread_engine(unsigned depth, unsigned threads, Wake wake = Wake::always,
                                                   Bytes part = 0);

}  // namespace sidestep::driver
