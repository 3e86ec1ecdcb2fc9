// Memory that several processes map.
#pragma once

#include <utility>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>
#include "driver/fd.hpp"

namespace sidestep::driver {

// Moves the bytes of private, anonymous pages into pages that other processes can map too, at the same
// address, and answers the descriptor that they map. Private pages are the rule since on most machines only
// they are huge. Reading may go on meanwhile; what somebody writes before the call has returned can be lost,
// and what was page-locked for a device is no longer what the device sees. `address` and `length` are whole
// pages; with `numa_node` >= 0 the new pages come from that node.
Result<Fd> share_pages(void* address, Bytes length, int numa_node);

// Zeros with pages behind them, which share_pages() has nothing to do with.
Result<Fd> make_shared_memory(Bytes length);

// A mapping of what either answered, by this process or another one.
class SharedMap {
public:
    // All of it, to read and to write. Fails where the descriptor is no such memory, or has fewer than
    // `bytes` bytes: touching it can then never end in SIGBUS. The descriptor may be closed after.
    static Result<SharedMap> open(int descriptor, Bytes bytes);

    SharedMap(SharedMap&& other) noexcept
        : address_(std::exchange(other.address_, nullptr)), length_(std::exchange(other.length_, 0)) {}
    SharedMap& operator=(SharedMap&& other) noexcept {
        std::swap(address_, other.address_);
        std::swap(length_, other.length_);
        return *this;
    }
    ~SharedMap();

    void* address() const { return address_; }
    Bytes length() const { return length_; }
    // The caller unmaps it from now on.
    void* release() { return std::exchange(address_, nullptr); }

private:
    SharedMap(void* address, Bytes length) : address_(address), length_(length) {}
    void* address_;
    Bytes length_;
};

}  // namespace sidestep::driver
