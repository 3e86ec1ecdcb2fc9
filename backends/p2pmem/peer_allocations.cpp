#include "backends/p2pmem/peer_allocations.hpp"

namespace sidestep::backends::p2pmem {

Allocation PeerAllocations::give(driver::PeerMap map, const Place& place, Bytes bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(map.address());
    const Buffer buffer = Buffer::memory(place, map.address(), bytes);
    {
        const std::lock_guard lock(mutex_);
        by_address_[begin] = {place.path(), map.length(), next_++};
    }
    auto held = std::make_shared<std::optional<driver::PeerMap>>(std::move(map));
    return Allocation(buffer, MemoryKind::p2pmem, [self = shared_from_this(), held, begin] {
        {
            // Forgotten first: the address may be given out again as soon as it is unmapped.
            const std::lock_guard lock(self->mutex_);
            self->by_address_.erase(begin);
        }
        held->reset();
    });
}

std::optional<PeerAllocations::Known> PeerAllocations::find(const void* address, Bytes bytes) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    const std::lock_guard lock(mutex_);
    auto next = by_address_.upper_bound(begin);
    if (next == by_address_.begin()) return std::nullopt;
    const auto& [first, known] = *--next;
    const Bytes offset = begin - first;
    if (offset > known.size || bytes > known.size - offset) return std::nullopt;
    return known;
}

}  // namespace sidestep::backends::p2pmem
