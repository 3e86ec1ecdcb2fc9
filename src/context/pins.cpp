#include "context/pins.hpp"

#include <vector>

#include <fmt/format.h>

#include "base/rounding.hpp"
#include "base/try.hpp"
#include "driver/memory_map.hpp"
#include "transfer/batch_plan.hpp"

namespace sidestep::context {
namespace {

Error wrong(const Buffer& buffer, std::string message, std::string hint = {}) {
    return Error{ErrorCode::invalid_argument, std::move(message), buffer.to_string(), std::move(hint)};
}

// Whether a backend says that the memory is pinned, by whoever allocated it or locked it.
Result<bool> pinned_by_others(const backend::Registry& registry, const Buffer& buffer) {
    SIDESTEP_TRY(const auto found, registry.describe(buffer));
    return found && (found->memory == MemoryKind::pinned || found->memory == MemoryKind::managed);
}

// The lock of the first backend that locks memory.
Result<std::shared_ptr<void>> lock_by_any(const backend::Registry& registry, const Buffer& buffer) {
    for (backend::GpuAddresses* addresses : registry.with(&backend::Backend::gpu_addresses))
        return addresses->pin(buffer);
    Error error{ErrorCode::unsupported, "no usable backend page-locks memory", buffer.to_string(), {}};
    for (const backend::Offer& offer : registry.offers())
        if (!offer.support.usable && offer.name == "cuda")
            error.hint = fmt::format("{}: {}", offer.name, offer.support.reason);
    return error;
}

}  // namespace

Result<Pinned> Pins::pin(const backend::Registry& registry, const Buffer& buffer) {
    if (!buffer.place().is_host()) return wrong(buffer, "only host memory can be page-locked");
    if (!buffer.place().node().empty())
        return wrong(buffer, "memory of another machine cannot be page-locked");
    if (buffer.size() == 0 || buffer.size() == Buffer::whole || buffer.address() == nullptr)
        return wrong(buffer, "memory to be page-locked needs an address and a size");
    const Bytes page = driver::page_size();
    const auto address = reinterpret_cast<std::uintptr_t>(buffer.address());
    if (buffer.size() > UINTPTR_MAX - page - address)
        return wrong(buffer, "the range ends past the last address");
    const Span span{address / page * page, base::round_up(address + buffer.size(), page)};
    {
        std::lock_guard lock(mutex_);
        const auto range = first_touching(span);
        if (range != ranges_.end() && range->first <= span.begin && span.end <= range->second.end)
            return hold(range, buffer);
    }
    return lock_pages(registry, buffer, span);
}

Result<Pinned> Pins::lock_pages(const backend::Registry& registry, const Buffer& buffer, Span span) {
    std::lock_guard changing(changing_);
    std::vector<std::shared_ptr<void>> unlocked;
    {
        std::lock_guard lock(mutex_);
        auto range = first_touching(span);
        // Another thread may have been quicker.
        if (range != ranges_.end() && range->first <= span.begin && span.end <= range->second.end)
            return hold(range, buffer);
        for (auto touching = range; touching != ranges_.end() && touching->first < span.end; ++touching)
            if (touching->second.is_needed())
                return wrong(
                    buffer,
                    fmt::format("pages {:#x} to {:#x} of this memory are page-locked already, as part of "
                                "another range",
                                std::max(span.begin, touching->first),
                                std::min(span.end, touching->second.end)),
                    touching->second.holders > 0 ? "lock one range that holds both"
                                                 : "wait for the transfers that found it locked");
        while (range != ranges_.end() && range->first < span.end) unlocked.push_back(remove(range++));
    }
    unlocked.clear();
    SIDESTEP_TRY(const bool pinned, pinned_by_others(registry, buffer));
    // It lasts as long as its owner keeps it so: nothing to hold.
    if (pinned) return Pinned(buffer, std::make_shared<bool>(true));
    SIDESTEP_TRY(auto held, lock_by_any(registry, buffer));
    std::lock_guard lock(mutex_);
    const auto added = ranges_.emplace(span.begin, Range{}).first;
    added->second.end = span.end;
    added->second.lock = std::move(held);
    added->second.number = ++last_number_;
    added->second.may_stay = own_with(span) != own_.end();
    may_stay_ += added->second.may_stay ? 1 : 0;
    // Held from here on; let_go() counts it out again.
    return hold(added, buffer);
}

Pinned Pins::hold(Ranges::iterator range, const Buffer& buffer) {
    ++range->second.holders;
    no_longer_idle(range);
    auto let_go = [self = shared_from_this(), begin = range->first, number = range->second.number](void*) {
        self->let_go(begin, number);
    };
    return Pinned(buffer, std::shared_ptr<void>(static_cast<void*>(this), std::move(let_go)));
}

void Pins::let_go(std::uintptr_t begin, std::uint64_t number) noexcept {
    if (owner_.forked()) return;  // the lock is its parent's
    {
        std::lock_guard lock(mutex_);
        const auto found = ranges_.find(begin);
        if (found == ranges_.end() || found->second.number != number) return;  // freed meanwhile
        Range& range = found->second;
        if (--range.holders > 0) return;
        range.idle = idle_.insert(idle_.end(), begin);
        idle_bytes_ += range.end - begin;
        if (range.may_stay && idle_bytes_ <= max_idle_) return;
    }
    std::lock_guard changing(changing_);
    std::vector<std::shared_ptr<void>> unlocked;  // after the lock, before others may change anything
    std::lock_guard lock(mutex_);
    const auto found = ranges_.find(begin);
    const bool still = found != ranges_.end() && found->second.number == number && found->second.holders == 0;
    if (still && !found->second.may_stay) unlocked.push_back(remove(found));
    for (auto next = idle_.begin(); idle_bytes_ > max_idle_ && next != idle_.end();) {
        const auto range = ranges_.find(*next++);
        if (range->second.users == 0) unlocked.push_back(remove(range));
    }
}

std::shared_ptr<void> Pins::use(std::span<const transfer::BatchCopy> copies) {
    if (may_stay_.load(std::memory_order_relaxed) == 0) return nullptr;
    std::vector<std::pair<std::uintptr_t, std::uint64_t>> ranges;
    const std::lock_guard lock(mutex_);
    auto last = ranges_.end();
    for (const transfer::BatchCopy& copy : copies)
        for (const Buffer* end : {copy.from, copy.to}) {
            const auto address = reinterpret_cast<std::uintptr_t>(end->address());
            if (!end->place().is_host() || !end->place().node().empty() || address == 0) continue;
            const auto range = first_touching({address, address + 1});
            if (range == ranges_.end() || range == last || !range->second.may_stay) continue;
            // What is locked in part only counts as not locked.
            if (range->second.end - address < end->size()) continue;
            last = range;
            ++range->second.users;
            ranges.emplace_back(range->first, range->second.number);
        }
    if (ranges.empty()) return nullptr;
    return std::shared_ptr<void>(this, [self = shared_from_this(), ranges = std::move(ranges)](void*) {
        for (const auto& [begin, number] : ranges) self->used(begin, number);
    });
}

// What is beyond the bound by now goes with the next that is let go: this thread may be the engine's.
void Pins::used(std::uintptr_t begin, std::uint64_t number) noexcept {
    if (owner_.forked()) return;
    const std::lock_guard lock(mutex_);
    const auto found = ranges_.find(begin);
    if (found != ranges_.end() && found->second.number == number) --found->second.users;
}

void Pins::allocated(const Buffer& memory) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.address());
    const Bytes page = driver::page_size();
    std::lock_guard lock(mutex_);
    own_[begin] = {base::round_up(begin + memory.size(), page)};
}

void Pins::freeing(const Buffer& memory) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.address());
    {
        std::lock_guard lock(mutex_);
        const auto found = own_.find(begin);
        if (found == own_.end()) return;
        own_.erase(found);
    }
    std::lock_guard changing(changing_);
    std::vector<std::shared_ptr<void>> unlocked;
    std::lock_guard lock(mutex_);
    const Span span{begin, begin + memory.size()};
    for (auto range = first_touching(span); range != ranges_.end() && range->first < span.end;)
        unlocked.push_back(remove(range++));
}

Result<backend::Exported> Pins::share(const backend::Registry& registry, const Buffer& memory,
                                      const std::function<Result<backend::Exported>()>& call) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.address());
    const Span shared{address, address + memory.size()};
    const Error pinned_in_part{ErrorCode::unsupported, "host memory that is pinned in part cannot be shared",
                               memory.to_string(), "publish it before any part of its allocation is pinned"};
    const std::lock_guard changing(changing_);
    Span moves;
    {
        std::vector<std::shared_ptr<void>> unlocked;
        const std::lock_guard lock(mutex_);
        const auto own = own_with(shared);
        if (own != own_.end() && !own->second.moved) moves = {own->first, own->second.end};
        for (auto range = first_touching(moves); range != ranges_.end() && range->first < moves.end;) {
            if (range->second.is_needed()) return pinned_in_part;
            unlocked.push_back(remove(range++));
        }
    }
    // By hand or by another Context any page may be locked, and no call tells of several. What is locked is there.
    const auto present = driver::present_pages(reinterpret_cast<void*>(moves.begin), moves.end - moves.begin);
    for (std::size_t i = 0; i < present.size(); ++i) {
        if (!present[i]) continue;
        const std::uintptr_t at = moves.begin + i * driver::page_size();
        const Buffer page = Buffer::memory(memory.place(), reinterpret_cast<void*>(at), 1);
        SIDESTEP_TRY(const bool pinned, pinned_by_others(registry, page));
        if (pinned) return pinned_in_part;
    }
    auto exported = call();
    const std::lock_guard lock(mutex_);
    if (const auto own = own_with(shared); exported && own != own_.end()) own->second.moved = true;
    return exported;
}

Bytes Pins::locked() const {
    std::lock_guard lock(mutex_);
    Bytes bytes = 0;
    for (const auto& [begin, range] : ranges_) bytes += range.end - begin;
    return bytes;
}

Bytes Pins::idle() const {
    std::lock_guard lock(mutex_);
    return idle_bytes_;
}

Pins::Ranges::iterator Pins::first_touching(Span span) {
    auto range = ranges_.upper_bound(span.begin);
    if (range != ranges_.begin() && std::prev(range)->second.end > span.begin) return std::prev(range);
    return range != ranges_.end() && range->first < span.end ? range : ranges_.end();
}

void Pins::no_longer_idle(Ranges::iterator range) {
    if (!range->second.idle) return;
    idle_bytes_ -= range->second.end - range->first;
    idle_.erase(*range->second.idle);
    range->second.idle.reset();
}

std::shared_ptr<void> Pins::remove(Ranges::iterator range) {
    no_longer_idle(range);
    may_stay_ -= range->second.may_stay ? 1 : 0;
    std::shared_ptr<void> lock = std::move(range->second.lock);
    ranges_.erase(range);
    return lock;
}

std::map<std::uintptr_t, Pins::Own>::iterator Pins::own_with(Span span) {
    const auto after = own_.upper_bound(span.begin);
    return after != own_.begin() && span.end <= std::prev(after)->second.end ? std::prev(after) : own_.end();
}

}  // namespace sidestep::context
