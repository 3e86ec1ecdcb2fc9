// Memory in which bytes wait between two hops.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <sidestep/allocation.hpp>
#include "backend/registry.hpp"
#include "transfer/slab.hpp"

namespace sidestep::transfer {

// Staging memory on loan; goes back to the pool when destroyed, on any thread, and is destroyed before the pool. It
// owns what it lends, a slab together with the pool: a lease that is never destroyed, since a device may still write
// there, keeps the memory whatever becomes of the pool.
using StagingLease = Allocation;

// Pinning memory costs far more than copying through it, so what was pinned is kept and used again. Safe to
// use from several threads.
//
// Pinned host memory comes from slabs: each is pinned with one call and stays so while the pool lives. A further one has as
// much as its node has by then. Whatever fits no slab gets a block of its own.
//
// Memory of GPUs (relays) is bounded for each GPU, counting leased and idle blocks.
//
// The engine's thread gives back but never frees: a driver may block whoever frees memory while a stream is
// held at a gate. So what is to be freed waits for the next caller of acquire(), set_relay_limit() or
// free_unused().
class StagingPool {
public:
    static constexpr Bytes default_relay_limit = Bytes{64} << 20;

    // Without slabs until set_pinned_bound() says how much of them there may be.
    explicit StagingPool(const backend::Registry& registry) : registry_(registry) {}

    // At least `bytes` bytes of that kind at that place. Fails with out_of_memory (of a GPU also where its
    // relay limit leaves too little, naming it), or unsupported where no backend allocates this kind. May
    // block.
    Result<StagingLease> acquire(const Place& place, MemoryKind kind, Bytes bytes);

    // Upper bound of the slabs of one NUMA node; 0: no slabs. Slabs that are there stay.
    void set_pinned_bound(Bytes bytes);
    // What all slabs have together.
    Bytes pinned_bytes() const;

    // Upper bound of a GPU's memory that this pool holds. Leases beyond a lowered limit stay until they are
    // given back; idle blocks beyond it are freed now. May block.
    void set_relay_limit(int gpu, Bytes bytes);
    Bytes relay_limit(int gpu) const;
    // Of GPUs that were asked about, the others have the default; and how often one was set.
    std::map<int, Bytes> relay_limits() const;
    unsigned relay_changes() const { return relay_changes_.load(std::memory_order_acquire); }

    // Frees what was given back and may not be kept. May block; never called by the engine's thread.
    void free_unused();

private:
    struct Idle {
        Place asked;
        Allocation block;
    };
    struct Relay {
        Bytes limit = default_relay_limit;
        Bytes leased = 0;
        Bytes room() const { return limit - std::min(limit, leased); }
    };
    static constexpr Bytes first_slab = Bytes{32} << 20;
    static constexpr Bytes largest_slab = Bytes{256} << 20;
    // Idle blocks of their own beyond this total, over all places, are freed.
    static constexpr Bytes max_idle = Bytes{512} << 20;

    Result<StagingLease> own_block(const Place& place, MemoryKind kind, Bytes size);
    std::optional<StagingLease> take_piece(const Place& place, Bytes size);
    bool grow(const Place& place, Bytes size);

    // With the mutex held.
    StagingLease lease_of(const Place& asked, Allocation block);
    void give_back(const Place& asked, Allocation block);
    std::optional<Allocation> take_idle(const Place& place, MemoryKind kind, Bytes min, Bytes max);
    void drop_idle(std::optional<int> gpu, Bytes max);

    const backend::Registry& registry_;
    std::mutex growing_;        // held while a slab is pinned, so that callers in the meantime share it
    mutable std::mutex mutex_;  // guards what follows
    Bytes pinned_bound_ = 0;
    std::map<Place, std::vector<std::shared_ptr<Slab>>> slabs_;  // by node
    std::atomic<unsigned> relay_changes_{0};
    mutable std::map<int, Relay> relays_;  // by GPU; whichever is asked for is there
    std::vector<Idle> idle_;               // given back last: last
    std::vector<Allocation> to_free_;
};

// Staging memory cut into slots of one size. Must not be in use when it is destroyed.
struct SlotRing {
    // `writer` and `reader` attach it; null: somebody else does.
    static Result<SlotRing> create(StagingPool& pool, const Place& place, MemoryKind kind, std::size_t slots,
                                   Bytes slot, backend::Backend* writer = nullptr,
                                   backend::Backend* reader = nullptr);
    // Only while one is free.
    std::size_t take() {
        const std::size_t taken = free.back();
        free.pop_back();
        return taken;
    }
    const char* at(std::size_t number) const {
        return static_cast<const char*>(lease.buffer().address()) + number * slot;
    }

    StagingLease lease;
    std::size_t slots = 0;
    Bytes slot = 0;  // bytes of one
    std::vector<std::size_t> free;
    std::unique_ptr<backend::Registration> written;
    std::unique_ptr<backend::Registration> read;
};

// Memory of one kind from the first usable backend that gives it; `automatic` is the fastest kind there.
Result<Allocation> allocate(const backend::Registry& registry, const Place& place, Bytes bytes,
                            MemoryKind kind);

}  // namespace sidestep::transfer
