// Memory that a Context gives, locks, and lends to copies.
#include <fmt/format.h>

#include "base/owner_process.hpp"
#include "base/try.hpp"
#include "context/impl.hpp"
#include "transfer/ends.hpp"

namespace sidestep {
namespace {

// Memory that the Context's caches have to forget before it is freed.
Allocation watched(const std::shared_ptr<context::Pins>& pinned,
                   const std::shared_ptr<transfer::Registrations>& attached, Allocation memory) {
    const Buffer buffer = memory.buffer();
    const MemoryKind kind = memory.kind();
    const bool here = buffer.place().node().empty();
    if (here && buffer.place().is_host() && kind == MemoryKind::pageable) pinned->allocated(buffer);
    auto freed = [held = base::make_shared_here<Allocation>(std::move(memory)), pins = std::weak_ptr(pinned),
                  registrations = std::weak_ptr(attached), owner = base::OwnerProcess(), here]() mutable {
        if (owner.forked()) return;
        if (const auto there = registrations.lock()) there->forget(held->buffer());
        if (const auto there = here ? pins.lock() : nullptr) there->freeing(held->buffer());
        held.reset();
    };
    return Allocation(buffer, kind, std::move(freed));
}

}  // namespace

Result<Allocation> Context::allocate(const Place& place, Bytes bytes, MemoryKind kind) const {
    SIDESTEP_CHECK(impl_->engine->check_process());
    SIDESTEP_CHECK(transfer::check_place(impl_->topology, place));
    if (place.is_file())
        return Error{
            ErrorCode::invalid_argument, "memory is allocated at a host or gpu place", place.to_string(), {}};
    if (bytes == 0)
        return Error{ErrorCode::invalid_argument, "an allocation needs a size", place.to_string(), {}};
    SIDESTEP_TRY(Allocation memory, transfer::allocate(impl_->registry, place, bytes, kind));
    return watched(impl_->pins, impl_->engine->machine().registrations, std::move(memory));
}

Result<Pinned> Context::pin(const Buffer& buffer) const {
    SIDESTEP_CHECK(impl_->engine->check_process());
    SIDESTEP_CHECK(transfer::check_here(impl_->topology, buffer.place()));
    return impl_->pins->pin(impl_->registry, buffer);
}

Result<void> Context::set_relay_memory(const Place& gpu, Bytes bytes) const {
    SIDESTEP_CHECK(transfer::check_here(impl_->topology, gpu));
    if (!gpu.is_gpu())
        return Error{ErrorCode::invalid_argument, "only a GPU lends memory as a relay", gpu.to_string(), {}};
    impl_->engine->machine().pool.set_relay_limit(gpu.index(), bytes);
    return {};
}

}  // namespace sidestep
