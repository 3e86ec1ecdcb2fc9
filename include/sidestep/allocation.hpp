// Memory that the library allocated and that frees itself.
#pragma once

#include <functional>
#include <memory>

#include <sidestep/buffer.hpp>
#include <sidestep/memory_kind.hpp>

namespace sidestep {

// Owns memory at a place. Move-only. Freed by the destructor, which may run on any thread and never
// throws; every transfer that uses the memory must have ended by then. Keeps the Context's backends
// alive as long as it lives.
class Allocation {
public:
    Allocation() = default;
    Allocation(Buffer buffer, MemoryKind kind, std::function<void()> release)
        : buffer_(std::move(buffer)), kind_(kind), release_(std::move(release)) {}

    Allocation(Allocation&& other) noexcept { swap(other); }
    Allocation& operator=(Allocation&& other) noexcept {
        Allocation(std::move(other)).swap(*this);
        return *this;
    }
    ~Allocation() {
        if (release_) release_();
    }

    const Buffer& buffer() const { return buffer_; }
    void* address() const { return buffer_.address(); }
    Bytes size() const { return buffer_.size(); }
    const Place& place() const { return buffer_.place(); }
    // What was really allocated; never `automatic`.
    MemoryKind kind() const { return kind_; }
    explicit operator bool() const { return buffer_.address() != nullptr; }

private:
    void swap(Allocation& other) noexcept {
        std::swap(buffer_, other.buffer_);
        std::swap(kind_, other.kind_);
        release_.swap(other.release_);
    }

    Buffer buffer_;
    MemoryKind kind_ = MemoryKind::automatic;
    std::function<void()> release_;
};

}  // namespace sidestep
