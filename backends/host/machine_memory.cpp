#include "backends/host/machine_memory.hpp"

#include <fmt/format.h>

#include "base/try.hpp"
#include "driver/memory_limits.hpp"
#include "driver/shared_pages.hpp"

namespace sidestep::backends::host {
namespace {

// Below this a request is not held against what is available: asking costs some 50 us, and so little
// memory brings no machine down.
constexpr Bytes checked_from = 16_MiB;

}  // namespace

MappedMemory::MappedMemory(driver::MemoryMap map, Bytes bytes, int numa_node,
                           std::shared_ptr<MachineMemory> owner)
    : map_(std::move(map)), bytes_(bytes), numa_node_(numa_node), owner_(std::move(owner)) {
    owner_->taken_.fetch_add(bytes_, std::memory_order_relaxed);
    const std::lock_guard lock(owner_->mutex_);
    identity_ = owner_->next_identity_++;
    owner_->live_[reinterpret_cast<std::uintptr_t>(address())] = this;
}

// Forgotten before the pages go, so that memory of another owner is never taken for it.
MappedMemory::~MappedMemory() {
    if (!shared_) owner_->taken_.fetch_sub(bytes_, std::memory_order_relaxed);
    const std::lock_guard lock(owner_->mutex_);
    owner_->live_.erase(reinterpret_cast<std::uintptr_t>(address()));
}

Result<int> MappedMemory::share() {
    const std::lock_guard lock(mutex_);
    if (shared_) return shared_.get();
    SIDESTEP_TRY(shared_, driver::share_pages(map_.address(), map_.length(), numa_node_));
    // Shared pages are no private ones, of which take() asks how many were touched.
    owner_->taken_.fetch_sub(bytes_, std::memory_order_relaxed);
    return shared_.get();
}

Result<std::optional<SharedPages>> MachineMemory::share(const void* address, Bytes bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    SharedPages pages;
    {
        const std::lock_guard lock(mutex_);
        const auto after = live_.upper_bound(begin);
        if (after == live_.begin()) return std::optional<SharedPages>();
        MappedMemory& memory = *std::prev(after)->second;
        pages.offset = begin - std::prev(after)->first;
        if (pages.offset > memory.size() || bytes > memory.size() - pages.offset)
            return std::optional<SharedPages>();
        pages.memory = memory.weak_from_this().lock();  // null while it is on its way out
    }
    if (!pages.memory) return std::optional<SharedPages>();
    pages.identity = pages.memory->identity_;
    SIDESTEP_TRY(pages.descriptor, pages.memory->share());
    return std::optional(std::move(pages));
}

Result<std::shared_ptr<MappedMemory>> MachineMemory::take(Bytes bytes, int numa_node,
                                                          const std::string& what) {
    if (bytes >= checked_from) {
        const auto available = driver::available_memory(numa_node);
        // What was given but never touched is still counted as available. How much that is is not known;
        // it is at least what was given less all that this process has touched.
        const Bytes taken = taken_.load(std::memory_order_relaxed);
        const Bytes touched = driver::resident_private_bytes();
        const Bytes promised = taken - std::min(taken, touched);
        const Bytes free = available ? available->bytes - std::min(available->bytes, promised) : bytes;
        if (bytes > free) {
            return Error{ErrorCode::out_of_memory,
                         fmt::format("{} {} were asked for, {} are available ({}), {} are missing",
                                     format_bytes(bytes), what, format_bytes(free), available->source,
                                     format_bytes(bytes - free)),
                         numa_node >= 0 ? fmt::format("host:{}", numa_node) : "host",
                         "allocate less, or free memory on this machine"};
        }
    }
    SIDESTEP_TRY(driver::MemoryMap map, driver::MemoryMap::anonymous(bytes, numa_node));
    return std::make_shared<MappedMemory>(std::move(map), bytes, numa_node, shared_from_this());
}

}  // namespace sidestep::backends::host
