// A file in memory (tmpfs) that is written through a map of it.
#pragma once

#include <string>
#include <utility>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>
#include "driver/fd.hpp"

namespace sidestep::driver {

// Writers of one file take turns in the kernel, and those who copy into a map of it do not. Touching a page
// that cannot be had ends a process with SIGBUS, so only copy_into_map() writes to it, which asks for the
// pages first.
class TargetMap {
public:
    // Maps the first `bytes` bytes of a file that is open for reading and writing and has as many, holes or
    // not. Above 0 bytes. Refuses with ErrorCode::unsupported where it is shorter, and where the kernel
    // cannot be asked for pages without that signal (before Linux 5.14).
    static Result<TargetMap> create(const Fd& fd, Bytes bytes, const std::string& path);

    TargetMap(TargetMap&& other) noexcept
        : address_(std::exchange(other.address_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    TargetMap& operator=(TargetMap&&) = delete;
    ~TargetMap();

    // Where a range of the file lies; null where it reaches beyond what is mapped.
    char* at(Bytes offset, Bytes size) const {
        return offset <= bytes_ && size <= bytes_ - offset ? static_cast<char*>(address_) + offset : nullptr;
    }

private:
    TargetMap(void* address, Bytes bytes) : address_(address), bytes_(bytes) {}

    void* address_ = nullptr;
    Bytes bytes_ = 0;
};

// Copies into a part of a TargetMap. False, with nothing copied, where its pages cannot be had: the file
// system is full, another process has shortened the file, or a page cannot be read back from swap. Any
// thread.
bool copy_into_map(void* target, const void* source, Bytes size);

}  // namespace sidestep::driver
