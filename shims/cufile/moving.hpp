// One read or write, from its arguments to its answer: what cuFileRead and cuFileWrite do, and what batches and streams do with
// each of their entries.
#pragma once

#include <memory>

#include <sidestep/buffer.hpp>
#include "shims/cufile/calls.hpp"
#include "shims/cufile/files.hpp"

namespace sidestep::cufile {

// As callers give it.
struct Request {
    CUfileHandle_t handle = nullptr;
    const void* base = nullptr;
    std::size_t size = 0;
    off_t file_offset = 0;
    off_t base_offset = 0;
    CallKind kind = CallKind::read;
};

// Looked at and found good.
struct Prepared {
    std::shared_ptr<const File> file;  // stays open, though its handle is given back meanwhile
    Buffer memory;
    Bytes offset = 0;  // in the file
    CallKind kind = CallKind::read;
};

// Refused: nothing was begun. Opens the driver where nobody has; any thread.
Refusal prepare(const Request& request, Prepared& prepared);

// How a read or write ended: `bytes` is less than what was asked for at the end of the file alone.
struct Moved {
    Bytes bytes = 0;
    Refusal refused;
};

// Moves the bytes, waits for the last of them, and counts the call. Any thread, and any number at a time.
Moved move(const Prepared& prepared);

// Both. What was refused is counted too.
Moved run(const Request& request) noexcept;

// What cuFile answers: the bytes; -errno where the operating system failed; else -code.
ssize_t result_of(const Moved& moved);
// The same as a function that sets errno does: -1 and errno. On success errno is what it was.
ssize_t answer_of(const char* call, const Moved& moved, int errno_before) noexcept;

}  // namespace sidestep::cufile
