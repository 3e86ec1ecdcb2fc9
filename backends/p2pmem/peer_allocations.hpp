// The peer-to-peer memory that this backend gave out and that is not freed yet.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <sidestep/allocation.hpp>
#include "driver/p2pmem.hpp"

namespace sidestep::backends::p2pmem {

// Thread-safe. Held by every Allocation, so it outlives the backend.
class PeerAllocations : public std::enable_shared_from_this<PeerAllocations> {
public:
    struct Known {
        std::string bus_id;
        Bytes size = 0;              // in whole pages
        std::uint64_t identity = 0;  // never given twice
    };

    // Takes the map over. The Allocation has the requested size.
    Allocation give(driver::PeerMap map, const Place& place, Bytes bytes);

    // The allocation that holds all of [address, address + bytes).
    std::optional<Known> find(const void* address, Bytes bytes) const;

private:
    mutable std::mutex mutex_;
    std::map<std::uintptr_t, Known> by_address_;
    std::uint64_t next_ = 1;
};

}  // namespace sidestep::backends::p2pmem
