// Memory in which bytes wait between two hops.
#pragma once

#include <mutex>
#include <vector>

#include "backend/registry.hpp"
#include <sidestep/allocation.hpp>

namespace sidestep::transfer {

class StagingPool;

// A block of staging memory on loan; goes back to the pool when destroyed. Outlives no pool.
class StagingLease {
public:
    StagingLease() = default;
    StagingLease(StagingPool* pool, Place asked, Allocation block)
        : pool_(pool), asked_(std::move(asked)), block_(std::move(block)) {}
    StagingLease(StagingLease&& other) noexcept;
    StagingLease& operator=(StagingLease&& other) noexcept;
    ~StagingLease();

    const Buffer& buffer() const { return block_.buffer(); }

private:
    StagingPool* pool_ = nullptr;
    Place asked_;
    Allocation block_;
};

// Pinning memory costs far more than copying through it, so blocks are kept and used again. Safe to use
// from several threads.
class StagingPool {
public:
    explicit StagingPool(const backend::Registry& registry) : registry_(registry) {}

    // At least `bytes` bytes of that kind at that place, rounded up to a power of two so that blocks fit
    // again. Fails with out_of_memory, or unsupported where no backend allocates this kind.
    Result<StagingLease> acquire(const Place& place, MemoryKind kind, Bytes bytes);

private:
    friend class StagingLease;
    void give_back(Place asked, Allocation block) noexcept;

    struct Idle {
        Place asked;
        Allocation block;
    };
    // Blocks beyond this total are freed, by the next caller of acquire(): a driver may block whoever frees
    // memory while a stream is held at a gate, and the engine's thread must never be blocked.
    static constexpr Bytes most_idle = Bytes{512} << 20;

    const backend::Registry& registry_;
    std::mutex mutex_;
    std::vector<Idle> idle_;
    Bytes idle_bytes_ = 0;
    std::vector<Allocation> to_free_;
};

// Memory of one kind from the first usable backend that gives it; `automatic` is the fastest kind there.
Result<Allocation> allocate(const backend::Registry& registry, const Place& place, Bytes bytes,
                            MemoryKind kind);

}  // namespace sidestep::transfer
