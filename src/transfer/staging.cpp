#include "transfer/staging.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/rounding.hpp"
#include "base/try.hpp"
#include "transfer/ends.hpp"

namespace sidestep::transfer {
namespace {

// What `automatic` tries, in order.
std::vector<MemoryKind> kinds_to_try(const Place& place, MemoryKind kind) {
    if (kind != MemoryKind::automatic) return {kind};
    if (place.is_gpu()) return {MemoryKind::device};
    if (place.is_p2pmem()) return {MemoryKind::p2pmem};
    return {MemoryKind::pinned, MemoryKind::pageable};
}

Bytes bytes_of(const std::vector<std::shared_ptr<Slab>>& slabs) {
    Bytes bytes = 0;
    for (const auto& slab : slabs) bytes += slab->buffer().size();
    return bytes;
}

// No machine has as much. A larger request fails in the allocation itself.
constexpr Bytes max_sensible = Bytes{1} << 60;

}  // namespace

Result<Allocation> allocate(const backend::Registry& registry, const Place& place, Bytes bytes,
                            MemoryKind kind) {
    if (!place.node().empty())
        for (backend::Backend* backend : registry.usable())
            if (backend->reaches_nodes() && backend->allocator() != nullptr)
                return backend->allocator()->allocate(place, bytes, kind);
    for (MemoryKind wanted : kinds_to_try(place, kind))
        for (backend::Allocator* allocator : registry.with(&backend::Backend::allocator))
            if (allocator->allocates(place.kind()).has(wanted))
                return allocator->allocate(place, bytes, wanted);

    Error error{ErrorCode::unsupported,
                fmt::format("no backend allocates {} memory at {}", to_string(kind), place.to_string()),
                "allocate"};
    if (!place.is_host()) error.hint = why_out_of_reach(registry, place);
    return error;
}

Result<SlotRing> SlotRing::create(StagingPool& pool, const Place& place, MemoryKind kind, std::size_t slots,
                                  Bytes slot, backend::Backend* writer, backend::Backend* reader) {
    Result<SlotRing> made{SlotRing{}};
    SlotRing& ring = *made;
    ring.slots = slots;
    ring.slot = slot;
    SIDESTEP_TRY(ring.lease, pool.acquire(place, kind, slots * slot));
    const Buffer all = ring.lease.buffer().slice(0, slots * slot);
    backend::AttachOptions options;
    options.access = backend::Access::write;
    if (writer != nullptr) {
        SIDESTEP_TRY(ring.written, writer->attach(all, options));
    }
    options.access = backend::Access::read;
    if (reader != nullptr) {
        SIDESTEP_TRY(ring.read, reader->attach(all, options));
    }
    for (std::size_t number = slots; number-- > 0;) ring.free.push_back(number);
    return made;
}

Result<StagingLease> StagingPool::acquire(const Place& place, MemoryKind kind, Bytes bytes) {
    free_unused();
    if (bytes > max_sensible) return allocate(registry_, place, bytes, kind).error();
    if (place.is_gpu())
        return own_block(place, kind, base::round_up(std::max<Bytes>(bytes, 1), Slab::smallest_piece));
    const Bytes size = std::max(std::bit_ceil(bytes), Slab::smallest_piece);
    if (kind != MemoryKind::pinned) return own_block(place, kind, size);
    if (auto piece = take_piece(place, size)) return std::move(*piece);
    {
        std::lock_guard growing(growing_);
        do {
            if (auto piece = take_piece(place, size)) return std::move(*piece);
        } while (grow(place, size));
    }
    return own_block(place, kind, size);
}

Result<StagingLease> StagingPool::own_block(const Place& place, MemoryKind kind, Bytes size) {
    Relay* relay = nullptr;
    {
        std::lock_guard lock(mutex_);
        if (place.is_gpu()) relay = &relays_[place.index()];
        const Bytes room = relay != nullptr ? relay->room() : size;
        if (size > room)
            return Error{ErrorCode::out_of_memory,
                         fmt::format("{} of {}'s memory were asked for as a relay, {} of its {} are left",
                                     format_bytes(size), place.to_string(), format_bytes(room),
                                     format_bytes(relay->limit)),
                         place.to_string(),
                         "raise the bound: Context::set_relay_memory, SIDESTEP_RELAY_MEMORY"};
        if (auto block = take_idle(place, kind, size, std::min(2 * size, room)))
            return lease_of(place, std::move(*block));
        if (relay != nullptr) {
            drop_idle(place.index(), room - size);
            relay->leased += size;
        }
    }
    if (relay != nullptr) free_unused();  // what had to make room
    auto block = allocate(registry_, place, size, kind);
    std::lock_guard lock(mutex_);
    if (relay != nullptr) relay->leased -= size;
    if (!block) return block.error();
    return lease_of(place, std::move(*block));
}

StagingLease StagingPool::lease_of(const Place& asked, Allocation block) {
    if (asked.is_gpu()) relays_[asked.index()].leased += block.size();
    auto lent = std::make_shared<Allocation>(std::move(block));
    return StagingLease(lent->buffer(), lent->kind(), [this, asked, lent] {
        std::lock_guard lock(mutex_);
        give_back(asked, std::move(*lent));
    });
}

std::optional<StagingLease> StagingPool::take_piece(const Place& place, Bytes size) {
    std::lock_guard lock(mutex_);
    for (const auto& slab : slabs_[place]) {
        const auto offset = slab->take(size);
        if (!offset) continue;
        return StagingLease(slab->buffer().slice(*offset, size), MemoryKind::pinned,
                            [this, slab, offset = *offset, size] {
                                std::lock_guard giving(mutex_);
                                slab->give_back(offset, size);
                            });
    }
    return std::nullopt;
}

// Adds a slab in which `size` bytes fit; false where the bound, or the machine, leaves none.
bool StagingPool::grow(const Place& place, Bytes size) {
    Bytes bytes = 0;
    {
        std::lock_guard lock(mutex_);
        const Bytes there = bytes_of(slabs_[place]);
        const Bytes room = pinned_bound_ - std::min(pinned_bound_, there);
        bytes = std::max(size, std::clamp(std::bit_floor(there), first_slab, largest_slab));
        bytes = std::min(bytes, std::bit_floor(room));
        if (bytes < size) return false;
    }
    auto memory = allocate(registry_, place, bytes, MemoryKind::pinned);
    if (!memory) {
        base::log(base::LogLevel::info,
                  fmt::format("no slab for the pinned pool: {}", memory.error().to_string()));
        return false;
    }
    auto slab = std::make_shared<Slab>(std::move(*memory));
    std::lock_guard lock(mutex_);
    slabs_[place].push_back(std::move(slab));
    base::log(base::LogLevel::info,
              fmt::format("the pinned pool of {} has {} of at most {}", place.to_string(),
                          format_bytes(bytes_of(slabs_[place])), format_bytes(pinned_bound_)));
    return true;
}

void StagingPool::give_back(const Place& asked, Allocation block) {
    if (asked.is_gpu()) relays_[asked.index()].leased -= block.size();
    idle_.push_back({asked, std::move(block)});
    if (asked.is_gpu()) drop_idle(asked.index(), relays_[asked.index()].room());
    drop_idle(std::nullopt, max_idle);
}

void StagingPool::set_pinned_bound(Bytes bytes) {
    std::lock_guard lock(mutex_);
    pinned_bound_ = bytes;
}

Bytes StagingPool::pinned_bytes() const {
    std::lock_guard lock(mutex_);
    Bytes bytes = 0;
    for (const auto& [place, slabs] : slabs_) bytes += bytes_of(slabs);
    return bytes;
}

void StagingPool::set_relay_limit(int gpu, Bytes bytes) {
    {
        std::lock_guard lock(mutex_);
        Relay& relay = relays_[gpu];
        relay.limit = bytes;
        relay_changes_.fetch_add(1, std::memory_order_release);
        drop_idle(gpu, relay.room());
    }
    free_unused();
}

Bytes StagingPool::relay_limit(int gpu) const {
    std::lock_guard lock(mutex_);
    return relays_[gpu].limit;
}

std::map<int, Bytes> StagingPool::relay_limits() const {
    std::map<int, Bytes> limits;
    std::lock_guard lock(mutex_);
    for (const auto& [gpu, relay] : relays_) limits.emplace(gpu, relay.limit);
    return limits;
}

void StagingPool::free_unused() {
    std::vector<Allocation> freed;  // outside the lock: unpinning is slow
    std::lock_guard lock(mutex_);
    freed.swap(to_free_);
}

std::optional<Allocation> StagingPool::take_idle(const Place& place, MemoryKind kind, Bytes min, Bytes max) {
    const auto fit = std::find_if(idle_.begin(), idle_.end(), [&](const Idle& idle) {
        const Bytes size = idle.block.size();
        return size >= min && size <= max && idle.block.kind() == kind && idle.asked == place;
    });
    if (fit == idle_.end()) return std::nullopt;
    Allocation block = std::move(fit->block);
    idle_.erase(fit);
    return block;
}

// The oldest first, whose sizes are no longer in use, until no more than `max` bytes of the GPU, or of all places, lie idle.
void StagingPool::drop_idle(std::optional<int> gpu, Bytes max) {
    const auto meant = [gpu](const Idle& idle) {
        return !gpu || (idle.asked.is_gpu() && idle.asked.index() == *gpu);
    };
    Bytes bytes = 0;
    for (const Idle& idle : idle_) bytes += meant(idle) ? idle.block.size() : 0;
    std::erase_if(idle_, [&](Idle& idle) {
        if (bytes <= max || !meant(idle)) return false;
        bytes -= idle.block.size();
        to_free_.push_back(std::move(idle.block));
        return true;
    });
}

}  // namespace sidestep::transfer
