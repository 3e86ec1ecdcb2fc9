#include "backends/verbs/memory.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "backend/network.hpp"
#include "base/try.hpp"

namespace sidestep::backends::verbs {

unsigned access_flags() {
    unsigned flags =
        static_cast<unsigned>(IBV_ACCESS_LOCAL_WRITE) | static_cast<unsigned>(IBV_ACCESS_REMOTE_WRITE);
#ifdef IBV_ACCESS_OPTIONAL_RANGE
    flags |= static_cast<unsigned>(IBV_ACCESS_RELAXED_ORDERING);
#endif
    return flags;
}

Result<std::shared_ptr<void>> PreparedMemory::reserve(Bytes size) {
    const Bytes before = pinned_.fetch_add(size);
    std::shared_ptr<void> room(nullptr,
                               [self = shared_from_this(), size](void*) { self->pinned_.fetch_sub(size); });
    if (size > most_ || before > most_ - size)
        return Error{
            ErrorCode::out_of_memory,
            fmt::format("{} bytes more would be pinned for the network card, beside {} of at most {}", size,
                        before, most_),
            "verbs", "let go of memory that is attached, or use smaller parts of it"};
    return room;
}

std::shared_ptr<const void> PreparedMemory::keep(std::shared_ptr<const Prepared> part,
                                                 std::shared_ptr<void> room) {
    {
        std::lock_guard lock(mutex_);
        all_.emplace(part->begin, part);
        sizes_.emplace(part->size, part->begin);
    }
    // Whoever looks for it no longer finds it; it goes with the last that is on its way.
    return {part.get(), [self = shared_from_this(), held = part, kept = std::move(room)](const void*) {
                std::lock_guard lock(self->mutex_);
                const auto [first, last] = self->all_.equal_range(held->begin);
                const auto found =
                    std::find_if(first, last, [&](const auto& one) { return one.second == held; });
                if (found != last) self->all_.erase(found);
                const auto [least, most] = self->sizes_.equal_range(held->size);
                const auto size_of =
                    std::find_if(least, most, [&](const auto& one) { return one.second == held->begin; });
                if (size_of != most) self->sizes_.erase(size_of);
            }};
}

Result<std::shared_ptr<const void>> PreparedMemory::add(void* address, Bytes size, int distance) {
    if (size == 0) return std::shared_ptr<const void>();
    SIDESTEP_TRY(auto room, reserve(size));
    SIDESTEP_TRY(auto region, driver::VerbsRegion::host(context_, address, size, access_flags()));
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    return keep(std::make_shared<const Prepared>(begin, size, distance, std::move(region)), std::move(room));
}

Result<std::shared_ptr<const void>> PreparedMemory::add_device(void* address, Bytes size, int distance) {
    SIDESTEP_TRY(auto region, driver::VerbsRegion::host(context_, address, size, access_flags()));
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    return keep(std::make_shared<const Prepared>(begin, size, distance, std::move(region)), nullptr);
}

Result<std::shared_ptr<const void>> PreparedMemory::add_dma_buf(int fd, std::uint64_t offset, Bytes size,
                                                                std::uint64_t iova, int distance) {
    SIDESTEP_TRY(auto region, driver::VerbsRegion::dma_buf(context_, fd, offset, size, iova, access_flags()));
    return keep(std::make_shared<const Prepared>(iova, size, distance, std::move(region)), nullptr);
}

std::shared_ptr<const Prepared> PreparedMemory::find(const void* address, Bytes size) const {
    const std::uint64_t at = reinterpret_cast<std::uintptr_t>(address);
    std::lock_guard lock(mutex_);
    const Bytes longest = sizes_.empty() ? 0 : sizes_.rbegin()->first;
    for (auto next = all_.upper_bound(at); next != all_.begin();) {
        --next;
        if (next->second->holds(at, size)) return next->second;
        if (at - next->first >= longest) break;
    }
    return nullptr;
}

Result<std::unique_ptr<Bounce>> Bounce::make(const driver::SharedVerbsContext& context) {
    constexpr std::size_t page = 4096;
    Memory memory(static_cast<unsigned char*>(std::aligned_alloc(page, backend::max_push)), &std::free);
    if (memory == nullptr)
        return Error{
            ErrorCode::out_of_memory, "there is no memory for a buffer of the network card", "verbs", {}};
    SIDESTEP_TRY(auto region,
                 driver::VerbsRegion::host(context, memory.get(), backend::max_push, access_flags()));
    return std::make_unique<Bounce>(std::move(memory), std::move(region));
}

}  // namespace sidestep::backends::verbs
