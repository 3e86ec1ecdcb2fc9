#include "backends/host/memory.hpp"

#include <fmt/format.h>

#include "base/rounding.hpp"
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

Result<std::optional<backend::Exported>> MachineMemory::share(const void* address, Bytes bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    std::optional<backend::Exported> shared;
    std::shared_ptr<MappedMemory> memory;
    Bytes offset = 0;
    {
        const std::lock_guard lock(mutex_);
        const auto after = live_.upper_bound(begin);
        if (after == live_.begin()) return shared;
        MappedMemory& found = *std::prev(after)->second;
        offset = begin - std::prev(after)->first;
        if (offset > found.bytes_ || bytes > found.bytes_ - offset) return shared;
        memory = found.weak_from_this().lock();
    }
    if (!memory) return shared;  // it is on its way out
    SIDESTEP_TRY(const int descriptor, memory->share());
    // What the other process needs is the descriptor alone; the handle tells one memory from another.
    shared.emplace();
    shared->scheme = memfd_scheme;
    shared->handle.assign(reinterpret_cast<const char*>(&memory->identity_), sizeof(memory->identity_));
    shared->descriptor = descriptor;
    shared->size = bytes;
    shared->offset = offset;
    shared->identity = memory->identity_;
    shared->keeps = std::move(memory);
    return shared;
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

EmulatedMemory::EmulatedMemory(std::map<int, Bytes> gpu_bytes, std::shared_ptr<MachineMemory> machine)
    : machine_(std::move(machine)) {
    for (const auto& [gpu, bytes] : gpu_bytes) gpus_[gpu] = {bytes == 0 ? Buffer::whole : bytes, 0};
}

Result<std::shared_ptr<void>> EmulatedMemory::reserve(int gpu, Bytes bytes) {
    const std::unique_lock lock(mutex_);
    Gpu& state = gpus_.at(gpu);
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
    return std::shared_ptr<void>(&state, [self = shared_from_this(), &state, bytes](void*) {
        const std::unique_lock giving_back(self->mutex_);
        state.used -= bytes;
    });
}

Result<Allocation> EmulatedMemory::allocate(const Place& place, Bytes bytes, MemoryKind kind) {
    std::string what = "of pinned host memory";
    std::shared_ptr<void> reserved;
    if (place.is_gpu()) {
        SIDESTEP_TRY(reserved, reserve(place.index(), bytes));
        what = fmt::format("for the emulated gpu:{}", place.index());
    }
    SIDESTEP_TRY(auto memory, machine_->take(bytes, -1, what));
    const Buffer buffer = Buffer::memory(place, memory->address(), bytes);
    std::pair held(std::move(reserved), std::move(memory));
    return hold(buffer, kind, std::make_shared<decltype(held)>(std::move(held)));
}

Allocation EmulatedMemory::hold(const Buffer& buffer, MemoryKind kind, std::shared_ptr<const void> held) {
    const auto begin = reinterpret_cast<std::uintptr_t>(buffer.address());
    {
        const std::unique_lock lock(mutex_);
        ranges_[begin] = {begin + buffer.size(), buffer.place(), kind, ++last_identity_, false};
    }
    // The range goes before its memory, so that memory of another owner is never taken for it.
    return Allocation(buffer, kind, [self = shared_from_this(), held = std::move(held), begin]() mutable {
        self->release(begin);
        held.reset();
    });
}

void EmulatedMemory::release(std::uintptr_t begin) {
    const std::unique_lock lock(mutex_);
    ranges_.erase(begin);
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
    return std::shared_ptr<void>(this, [self = shared_from_this(), begin](void*) { self->release(begin); });
}

const EmulatedMemory::Ranges::value_type* EmulatedMemory::range_at(std::uintptr_t address) const {
    const auto after = ranges_.upper_bound(address);
    return after == ranges_.begin() || address >= std::prev(after)->second.end ? nullptr : &*std::prev(after);
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
    if (place.is_gpu() && gpus_.count(place.index()) == 0) {
        return Error{ErrorCode::not_found,
                     fmt::format("there is no {}: this machine has {} GPUs", place.to_string(), gpus_.size()),
                     place.to_string()};
    }
    if (buffer.size() == 0) {
        return backend::Description{place, place.is_gpu() ? MemoryKind::device : MemoryKind::pageable, 0};
    }
    const auto begin = reinterpret_cast<std::uintptr_t>(buffer.address());
    const std::shared_lock lock(mutex_);
    const auto* const found = range_at(begin);
    if (place.is_host() && found == nullptr)
        return backend::Description{place, MemoryKind::pageable, buffer.size()};
    const auto wrong = [&](std::string message) {
        return Error{ErrorCode::invalid_argument, std::move(message), buffer.to_string(),
                     "give the place that the memory was allocated at"};
    };
    if (found == nullptr)
        return wrong(fmt::format("{} is not an address of {}'s memory, nor of another emulated GPU's",
                                 buffer.address(), place.to_string()));
    const Range& range = found->second;
    if (place.kind() != range.place.kind() || (place.is_gpu() && place.index() != range.place.index()))
        return wrong(fmt::format("{} is memory of {}, not of {}", buffer.address(), range.place.to_string(),
                                 place.to_string()));
    return within(range, begin, buffer.size());
}

Result<backend::Description> EmulatedMemory::locate(const void* address, Bytes bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    const std::shared_lock lock(mutex_);
    const auto* const found = range_at(begin);
    return found != nullptr ? within(found->second, begin, bytes)
                            : backend::Description{Place::host(), MemoryKind::pageable, bytes};
}

Result<backend::Extent> EmulatedMemory::extent(const void* address) const {
    const std::shared_lock lock(mutex_);
    const auto* const found = range_at(reinterpret_cast<std::uintptr_t>(address));
    if (found == nullptr)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{} is not an address of an emulated GPU's memory", address),
                     "emulated machine", "give memory that was allocated at a GPU"};
    const auto& [begin, range] = *found;
    backend::Extent extent{Buffer::memory(range.place, reinterpret_cast<void*>(begin), range.end - begin),
                           range.identity, false};
    if (!range.place.is_gpu()) extent.never_lent = "it is host memory";
    return extent;
}

}  // namespace sidestep::backends::host
