#include "transfer/staging.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

namespace sidestep::transfer {
namespace {

// What `automatic` tries, in order.
std::vector<MemoryKind> kinds_to_try(const Place& place, MemoryKind kind) {
    if (kind != MemoryKind::automatic) return {kind};
    if (place.is_gpu()) return {MemoryKind::device};
    return {MemoryKind::pinned, MemoryKind::pageable};
}

}  // namespace

Result<Allocation> allocate(const backend::Registry& registry, const Place& place, Bytes bytes,
                            MemoryKind kind) {
    for (MemoryKind wanted : kinds_to_try(place, kind))
        for (backend::Backend* backend : registry.usable())
            if (backend->allocates(place.kind()).has(wanted)) return backend->allocate(place, bytes, wanted);

    Error error{ErrorCode::unsupported,
                fmt::format("no backend allocates {} memory at {}", to_string(kind), place.to_string()),
                "allocate", {}};
    for (const backend::Offer& offer : registry.offers())
        if (!offer.support.usable && place.is_gpu() && error.hint.empty() && offer.name != "file")
            error.hint = fmt::format("{}: {}", offer.name, offer.support.reason);
    return error;
}

StagingLease::StagingLease(StagingLease&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      asked_(std::move(other.asked_)),
      block_(std::move(other.block_)) {}

StagingLease& StagingLease::operator=(StagingLease&& other) noexcept {
    if (this == &other) return *this;
    if (pool_ != nullptr) pool_->give_back(std::move(asked_), std::move(block_));
    pool_ = std::exchange(other.pool_, nullptr);
    asked_ = std::move(other.asked_);
    block_ = std::move(other.block_);
    return *this;
}

StagingLease::~StagingLease() {
    if (pool_ != nullptr) pool_->give_back(std::move(asked_), std::move(block_));
}

Result<StagingLease> StagingPool::acquire(const Place& place, MemoryKind kind, Bytes bytes) {
    const Bytes size = std::max<Bytes>(std::bit_ceil(bytes), Bytes{64} << 10);
    std::vector<Allocation> freed;  // outside the lock: unpinning is slow
    {
        std::lock_guard lock(mutex_);
        freed.swap(to_free_);
        const auto fit = std::find_if(idle_.begin(), idle_.end(), [&](const Idle& idle) {
            return idle.block.size() == size && idle.block.kind() == kind && idle.asked == place;
        });
        if (fit != idle_.end()) {
            StagingLease lease(this, std::move(fit->asked), std::move(fit->block));
            idle_.erase(fit);
            idle_bytes_ -= size;
            return lease;
        }
    }
    auto block = allocate(registry_, place, size, kind);
    if (!block) return block.error();
    return StagingLease(this, place, std::move(*block));
}

void StagingPool::give_back(Place asked, Allocation block) noexcept {
    std::lock_guard lock(mutex_);
    if (idle_bytes_ + block.size() > most_idle) {
        to_free_.push_back(std::move(block));
        return;
    }
    idle_bytes_ += block.size();
    idle_.push_back({std::move(asked), std::move(block)});
}

}  // namespace sidestep::transfer
