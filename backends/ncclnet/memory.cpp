#include "backends/ncclnet/memory.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "backend/network.hpp"
#include "base/log.hpp"
#include "base/try.hpp"

namespace sidestep::backends::ncclnet {
namespace {

constexpr std::size_t page = 4096;
std::atomic<std::uint64_t> next_id{1};
constexpr auto patience = std::chrono::seconds(2);

}  // namespace

Range::Range(std::shared_ptr<Pump> by, void* from, Bytes bytes, Kind what, backend::DmaBuf exported,
             std::vector<int> far)
    : pump(std::move(by)),
      address(from),
      size(bytes),
      kind(what),
      dma_buf(std::move(exported)),
      distances(std::move(far)),
      id(next_id.fetch_add(1)) {}

// The holder frees the memory afterwards.
Range::~Range() {
    if (registrations->load() == 0) return;
    if (!pump->call([by = pump, number = id] { by->forget(number); }, patience))
        base::log(base::LogLevel::warn, "a network plugin that hangs may still have memory that goes");
}

Result<void> PreparedMemory::reserve(Bytes size) {
    const Bytes before = pinned_.fetch_add(size);
    if (size <= most_ && before <= most_ - size) return {};
    pinned_.fetch_sub(size);
    return Error{ErrorCode::out_of_memory,
                 fmt::format("{} bytes more would be pinned for the network, beside {} of at most {}", size,
                             before, most_),
                 "ncclnet", "let go of memory that is attached, or use smaller parts of it"};
}

Result<std::shared_ptr<const void>> PreparedMemory::add(void* address, Bytes size) {
    if (size == 0) return std::shared_ptr<const void>();
    SIDESTEP_CHECK(reserve(size));
    return add(std::make_shared<const Range>(pump_, address, size, Range::Kind::prepared));
}

std::shared_ptr<const void> PreparedMemory::add(std::shared_ptr<const Range> range) {
    {
        const std::lock_guard lock(mutex_);
        all_.emplace(reinterpret_cast<std::uintptr_t>(range->address), range);
        ++sizes_[range->size];
    }
    // What is in flight keeps the range itself.
    const void* const what = range.get();
    return std::shared_ptr<const void>(
        what, [self = shared_from_this(), held = std::move(range)](const void*) { self->drop(held); });
}

void PreparedMemory::drop(const std::shared_ptr<const Range>& range) {
    const std::lock_guard lock(mutex_);
    const auto [first, last] = all_.equal_range(reinterpret_cast<std::uintptr_t>(range->address));
    const auto found = std::find_if(first, last, [&](const auto& one) { return one.second == range; });
    if (found == last) return;
    all_.erase(found);  // not the last that holds it: that is the caller
    if (--sizes_[range->size] == 0) sizes_.erase(range->size);
    if (range->kind == Range::Kind::prepared) pinned_.fetch_sub(range->size);
}

std::shared_ptr<const Range> PreparedMemory::find(const void* address, Bytes size) const {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    const std::lock_guard lock(mutex_);
    const Bytes largest = sizes_.empty() ? 0 : sizes_.rbegin()->first;
    for (auto next = all_.upper_bound(at); next != all_.begin();) {
        --next;
        if (at - next->first >= largest) break;
        if (next->second->holds(address, size) && !next->second->refused.load()) return next->second;
    }
    return nullptr;
}

Bounce::Bounce(const std::shared_ptr<Pump>& pump, Data from)
    : data(std::move(from)),
      range(std::make_shared<const Range>(pump, data.get(), backend::max_push, Range::Kind::bounce)) {}

Result<std::unique_ptr<Bounce>> Bounce::make(const std::shared_ptr<Pump>& pump) {
    Data data(static_cast<unsigned char*>(std::aligned_alloc(page, backend::max_push)), &std::free);
    if (data != nullptr) return std::make_unique<Bounce>(pump, std::move(data));
    return Error{ErrorCode::out_of_memory, "there is no memory for a buffer of the network", "ncclnet", {}};
}

}  // namespace sidestep::backends::ncclnet
