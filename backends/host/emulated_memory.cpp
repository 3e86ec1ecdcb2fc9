#include "backends/host/emulated_memory.hpp"

#include <mutex>

#include <fmt/format.h>

#include "base/rounding.hpp"
#include "base/try.hpp"

namespace sidestep::backends::host {

EmulatedMemory::EmulatedMemory(std::vector<Bytes> gpu_bytes, std::shared_ptr<MachineMemory> machine)
    : machine_(std::move(machine)) {
    for (const Bytes bytes : gpu_bytes) gpus_.push_back({bytes == 0 ? Buffer::whole : bytes, 0});
}

Result<void> EmulatedMemory::reserve(int gpu, Bytes bytes) {
    const std::unique_lock lock(mutex_);
    Gpu& state = gpus_[static_cast<std::size_t>(gpu)];
    const Bytes free = state.total - state.used;
    if (bytes > free) {
        return Error{ErrorCode::out_of_memory,
                     fmt::format("{} of gpu:{}'s memory were asked for, {} of {} are free, {} are missing",
                                 format_bytes(bytes), gpu, format_bytes(free), format_bytes(state.total),
                                 format_bytes(bytes - free)),
                     fmt::format("gpu:{} (emulated)", gpu),
                     "free memory of that GPU, or set SIDESTEP_EMULATED_GPU_MEMORY"};
    }
    state.used += bytes;
    return {};
}

Result<Allocation> EmulatedMemory::allocate(const Place& place, Bytes bytes, MemoryKind kind) {
    const bool on_gpu = place.is_gpu();
    if (on_gpu) SIDESTEP_CHECK(reserve(place.index(), bytes));
    auto memory = machine_->take(
        bytes, -1, on_gpu ? fmt::format("for the emulated gpu:{}", place.index()) : "of pinned host memory");
    if (!memory) {
        const std::unique_lock lock(mutex_);
        if (on_gpu) gpus_[static_cast<std::size_t>(place.index())].used -= bytes;
        return memory.error();
    }
    void* const address = (*memory)->address();
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    {
        const std::unique_lock lock(mutex_);
        ranges_[begin] = {begin + bytes, place, kind, ++last_identity_};
    }
    // The range goes before its memory, so that memory of another owner is never taken for it.
    auto free = [self = shared_from_this(), held = *memory, begin, bytes]() mutable {
        self->release(begin, bytes);
        held.reset();
    };
    return Allocation(Buffer::memory(place, address, bytes), kind, std::move(free));
}

Allocation EmulatedMemory::adopt(const Place& place, MemoryKind kind, std::shared_ptr<const void> held,
                                 void* address, Bytes bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    {
        const std::unique_lock lock(mutex_);
        ranges_[begin] = {begin + bytes, place, kind, ++last_identity_, false, true};
    }
    auto free = [self = shared_from_this(), held = std::move(held), begin, bytes]() mutable {
        self->release(begin, bytes);
        held.reset();
    };
    return Allocation(Buffer::memory(place, address, bytes), kind, std::move(free));
}

void EmulatedMemory::release(std::uintptr_t begin, Bytes bytes) {
    const std::unique_lock lock(mutex_);
    const auto found = ranges_.find(begin);
    if (found == ranges_.end()) return;
    if (found->second.place.is_gpu() && !found->second.adopted)
        gpus_[static_cast<std::size_t>(found->second.place.index())].used -= bytes;
    ranges_.erase(found);
}

Result<std::shared_ptr<void>> EmulatedMemory::pin(const Buffer& buffer) {
    const Bytes page = driver::page_size();
    const auto address = reinterpret_cast<std::uintptr_t>(buffer.address());
    const std::uintptr_t begin = address / page * page;
    const std::uintptr_t end = base::round_up(address + buffer.size(), page);
    const std::unique_lock lock(mutex_);
    const auto next = ranges_.lower_bound(begin);
    if (range_at(begin) != nullptr || (next != ranges_.end() && next->first < end))
        return Error{ErrorCode::invalid_argument, "part of this memory is page-locked already",
                     buffer.to_string(), "lock the whole range at once, or unlock the part first"};
    ranges_[begin] = {end, Place::host(), MemoryKind::pinned, ++last_identity_, true};
    auto let_go = [self = shared_from_this(), begin, end](void*) { self->release(begin, end - begin); };
    return std::shared_ptr<void>(static_cast<void*>(this), std::move(let_go));
}

const EmulatedMemory::Range* EmulatedMemory::range_at(std::uintptr_t address) const {
    auto after = ranges_.upper_bound(address);
    if (after == ranges_.begin()) return nullptr;
    const Range& range = std::prev(after)->second;
    return address < range.end ? &range : nullptr;
}

Result<backend::Description> EmulatedMemory::within(const Range& range, std::uintptr_t begin, Bytes bytes) {
    if (bytes <= range.end - begin)
        return backend::Description{range.place, range.kind, bytes, range.identity};
    // As on a GPU: memory that is pinned in part only is not pinned memory.
    if (range.foreign) return backend::Description{range.place, MemoryKind::pageable, bytes};
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{} bytes reach beyond the {} that were allocated from there on", bytes,
                             range.end - begin),
                 fmt::format("{} {:#x}", range.place.to_string(), begin), "give the size that was allocated"};
}

Result<backend::Description> EmulatedMemory::describe(const Buffer& buffer) const {
    const Place& place = buffer.place();
    if (place.is_gpu() && (place.index() < 0 || place.index() >= static_cast<int>(gpus_.size()))) {
        return Error{ErrorCode::not_found,
                     fmt::format("there is no {}: this machine has {} GPUs", place.to_string(), gpus_.size()),
                     place.to_string(),
                     {}};
    }
    if (buffer.size() == 0) {
        return backend::Description{place, place.is_gpu() ? MemoryKind::device : MemoryKind::pageable, 0};
    }
    const auto begin = reinterpret_cast<std::uintptr_t>(buffer.address());
    const std::shared_lock lock(mutex_);
    const Range* range = range_at(begin);
    if (place.is_host() && range == nullptr)
        return backend::Description{place, MemoryKind::pageable, buffer.size()};
    const auto wrong = [&](std::string message) {
        return Error{ErrorCode::invalid_argument, std::move(message), buffer.to_string(),
                     "give the place that the memory was allocated at"};
    };
    if (range == nullptr) {
        return wrong(fmt::format("{} is not an address of {}'s memory, nor of another emulated GPU's",
                                 buffer.address(), place.to_string()));
    }
    if (place.kind() != range->place.kind() || (place.is_gpu() && place.index() != range->place.index())) {
        return wrong(fmt::format("{} is memory of {}, not of {}", buffer.address(), range->place.to_string(),
                                 place.to_string()));
    }
    return within(*range, begin, buffer.size());
}

Result<backend::Description> EmulatedMemory::locate(const void* address, Bytes bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    const std::shared_lock lock(mutex_);
    const Range* range = range_at(begin);
    if (range == nullptr) return backend::Description{Place::host(), MemoryKind::pageable, bytes};
    return within(*range, begin, bytes);
}

Result<backend::Extent> EmulatedMemory::extent(const void* address) const {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    const std::shared_lock lock(mutex_);
    auto after = ranges_.upper_bound(at);
    if (after == ranges_.begin() || at >= std::prev(after)->second.end)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{} is not an address of an emulated GPU's memory", address),
                     "emulated machine", "give memory that was allocated at a GPU"};
    const auto& [begin, range] = *std::prev(after);
    backend::Extent extent;
    extent.whole = Buffer::memory(range.place, reinterpret_cast<void*>(begin), range.end - begin);
    extent.identity = range.identity;
    extent.shares_in_place = false;
    if (!range.place.is_gpu()) extent.never_lent = "it is host memory";
    return extent;
}

}  // namespace sidestep::backends::host
