// Pages of anonymous memory that return themselves.
#pragma once

#include <utility>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

namespace sidestep::driver {

class MemoryMap {
public:
    // `bytes` bytes (at least one page) of zeroed memory that no page stands behind yet. From 2 MiB on it
    // is aligned to 2 MiB and asks for huge pages. With `numa_node` >= 0 its pages come from that node
    // only; the caller has checked that the node is there. Not counted against the kernel's
    // overcommit limit: the caller looks at what is free (memory_limits.hpp).
    static Result<MemoryMap> anonymous(Bytes bytes, int numa_node = -1);

    MemoryMap() = default;
    MemoryMap(MemoryMap&& other) noexcept
        : address_(std::exchange(other.address_, nullptr)), length_(std::exchange(other.length_, 0)) {}
    MemoryMap& operator=(MemoryMap&& other) noexcept {
        std::swap(address_, other.address_);
        std::swap(length_, other.length_);
        return *this;
    }
    ~MemoryMap();

    void* address() const { return address_; }

private:
    void* address_ = nullptr;
    Bytes length_ = 0;
};

}  // namespace sidestep::driver
