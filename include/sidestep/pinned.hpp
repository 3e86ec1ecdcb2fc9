// Host memory that stays page-locked.
#pragma once

#include <memory>

#include <sidestep/buffer.hpp>

namespace sidestep {

// Keeps a range of ordinary host memory page-locked for GPUs (Context::pin). A value: copies share it. The
// memory stays with its owner, who frees it only after the last copy of this value is gone. With that copy
// the range is unlocked, which may block; memory of Context::allocate may stay locked (docs/memory.md).
class Pinned {
public:
    Pinned() = default;
    Pinned(Buffer buffer, std::shared_ptr<void> lock) : buffer_(std::move(buffer)), lock_(std::move(lock)) {}

    const Buffer& buffer() const { return buffer_; }
    explicit operator bool() const { return lock_ != nullptr; }

private:
    Buffer buffer_;
    std::shared_ptr<void> lock_;
};

}  // namespace sidestep
