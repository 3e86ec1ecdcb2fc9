#include "collective/reachability.hpp"

#include <algorithm>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::collective {
namespace {

using Clock = std::chrono::steady_clock;

// How often memory that can only be lent while nothing runs is tried again.
constexpr std::chrono::microseconds idle_pause{200};

Error no_slot(const Buffer& whole) {
    return Error{ErrorCode::unsupported,
                 fmt::format("{} allocations of this rank are mapped already", protocol::max_slots - 1),
                 whole.to_string(), "free or detach some"};
}

std::uint64_t offset_in(const Buffer& whole, const void* address) {
    return static_cast<std::uint64_t>(static_cast<const char*>(address) -
                                      static_cast<const char*>(whole.address()));
}

// Why the others never find these bytes; null: they may. They map each mapping at addresses of its own, so a
// buffer across two of them has no one place there.
const char* why_never(const backend::Extent& extent, const void* address, Bytes bytes) {
    if (extent.never_lent != nullptr) return extent.never_lent;
    const bool within = bytes != Touched::unknown && bytes <= extent.whole.size() &&
                        offset_in(extent.whole, address) <= extent.whole.size() - bytes;
    return within || !extent.goes_on ? nullptr
                                     : "it may lie in several mappings, which others map one by one";
}

}  // namespace

Reachability::Reachability(const backend::Registry& registry, backend::Seat& seat, const Facts& facts)
    : registry_(registry),
      seat_(seat),
      facts_(facts),
      has_others_(facts.same_process != (1u << facts.ranks) - 1) {}

std::optional<unsigned> Reachability::find(const backend::Extent& extent) {
    const auto found = by_address_.find(extent.whole.address());
    if (found == by_address_.end()) return std::nullopt;
    const Slot& slot = slots_[found->second];
    if (slot.lent.identity == extent.identity && slot.lent.whole.size() == extent.whole.size())
        return found->second;
    withdraw(found->second);
    return std::nullopt;
}

Result<unsigned> Reachability::take(const backend::Extent& extent) {
    for (unsigned tried = 1; tried < protocol::max_slots; ++tried) {
        const unsigned at = next_;
        next_ = next_ + 1 == protocol::max_slots ? 1 : next_ + 1;
        Slot& slot = slots_[at];
        if (slot.state != State::free) continue;
        slot = Slot{};
        slot.state = State::wanted;
        slot.use = ++uses_;
        due_ = true;
        slot.lent.whole = extent.whole;
        slot.lent.identity = extent.identity;
        by_address_[extent.whole.address()] = at;
        return at;
    }
    return no_slot(extent.whole);
}

bool Reachability::full() const {
    return std::none_of(slots_.begin() + 1, slots_.end(), [](const Slot& slot) {
        return slot.state == State::free || slot.state == State::withdrawn || slot.state == State::dropping;
    });
}

Result<protocol::Token> Reachability::token(const void* address, Bytes bytes, bool& asked) {
    SIDESTEP_TRY(const backend::Extent extent, seat_.extent(address));
    if (why_never(extent, address, bytes) != nullptr) return protocol::Token{};
    const std::lock_guard lock(mutex_);
    if (const auto known = find(extent)) {
        if (slots_[*known].state != State::valid) return protocol::Token{};
        return protocol::Token{static_cast<std::uint16_t>(*known), offset_in(extent.whole, address)};
    }
    std::shared_ptr<const backend::Exported> exported;
    std::string why;
    if (moves(extent)) {
        // Only while nothing runs that may write there, and nothing does once this call has returned.
        const auto idle = seat_.idle();
        if (!idle || !*idle) return protocol::Token{};
        auto shared = export_memory(registry_, extent.whole);
        if (shared)
            exported = std::move(*shared);
        else
            why = shared.error().to_string();
    }
    const auto taken = take(extent);
    if (!taken) return protocol::Token{};  // describe() says why
    slots_[*taken].lent.exported = std::move(exported);
    if (!why.empty()) {
        slots_[*taken].state = State::refused;
        slots_[*taken].why = why;
        return protocol::Token{};
    }
    asked = true;
    return protocol::Token{};
}

// The slot of the allocation, once it has one.
Result<unsigned> Reachability::claim(const backend::Extent& extent, driver::LocalSocket::Time until,
                                     const std::function<Result<void>()>& going) {
    for (;;) {
        bool asked = false;  // the caller wakes the service thread in any case
        SIDESTEP_CHECK(token(extent.whole.address(), extent.whole.size(), asked));
        {
            const std::lock_guard lock(mutex_);
            if (const auto found = find(extent)) return *found;
            if (full()) return no_slot(extent.whole);
        }
        SIDESTEP_CHECK(going());
        if (Clock::now() >= until)
            return Error{ErrorCode::timed_out,
                         "memory can be attached only while no operation runs",
                         extent.whole.to_string(),
                         {}};
        std::this_thread::sleep_for(idle_pause);
    }
}

Result<void> Reachability::attach(const Buffer& buffer, driver::LocalSocket::Time until,
                                  const std::function<void()>& wake,
                                  const std::function<Result<void>()>& going) {
    SIDESTEP_TRY(const backend::Extent extent, seat_.extent(buffer.address()));
    if (extent.never_lent != nullptr)
        return Error{ErrorCode::unsupported,
                     fmt::format("no other rank can map the memory: {}", extent.never_lent),
                     buffer.to_string(), "operations carry it through the arena"};
    if (buffer.size() > extent.whole.size() ||
        offset_in(extent.whole, buffer.address()) > extent.whole.size() - buffer.size())
        return Error{
            ErrorCode::invalid_argument, "the buffer reaches past its allocation", buffer.to_string(), {}};
    SIDESTEP_TRY(const unsigned at, claim(extent, until, going));
    wake();
    std::unique_lock lock(mutex_);
    const auto undecided = [&] {
        return slots_[at].state == State::wanted || slots_[at].state == State::lending;
    };
    while (undecided()) {
        SIDESTEP_CHECK(going());
        if (Clock::now() >= until)
            return Error{ErrorCode::timed_out, "some ranks did not map the memory in time",
                         buffer.to_string(), "they hang, or are stopped"};
        changed_.wait_for(lock, std::chrono::milliseconds(20));
    }
    if (slots_[at].state != State::valid)
        return Error{ErrorCode::unsupported,
                     fmt::format("not every rank can map the memory: {}", slots_[at].why), buffer.to_string(),
                     "operations carry it through the arena"};
    ++slots_[at].attached;
    return {};
}

Result<void> Reachability::detach(const Buffer& buffer, driver::LocalSocket::Time until,
                                  const std::function<void()>& wake,
                                  const std::function<Result<void>()>& going) {
    SIDESTEP_TRY(const backend::Extent extent, seat_.extent(buffer.address()));
    std::unique_lock lock(mutex_);
    const auto found = find(extent);
    auto late = late_.find(extent.whole.address());
    if (found && slots_[*found].attached > 0) {
        if (--slots_[*found].attached > 0) return {};
        withdraw(*found);
        late = late_.insert_or_assign(extent.whole.address(), std::pair(*found, slots_[*found].use)).first;
        wake();
    } else if (late == late_.end()) {
        return Error{ErrorCode::invalid_argument, "the memory is not attached", buffer.to_string(), {}};
    } else {
        until = {};
    }
    const auto [at, use] = late->second;
    while (slots_[at].use == use && going()) {
        if (Clock::now() >= until)
            return Error{ErrorCode::timed_out, "other ranks still have the memory mapped", buffer.to_string(),
                         "an operation of this rank is under way, or a rank hangs: detach it once more "
                         "before it is freed"};
        changed_.wait_for(lock, std::chrono::milliseconds(20));
    }
    late_.erase(extent.whole.address());
    return {};
}

std::string Reachability::describe(const void* address, Bytes bytes) const {
    if (address == nullptr) return "yes";
    const auto extent = seat_.extent(address);
    if (!extent) return fmt::format("no: {}", extent.error().to_string());
    if (const char* why = why_never(*extent, address, bytes))
        return fmt::format("no, carried through the arena: {}", why);
    const std::lock_guard lock(mutex_);
    const auto found = by_address_.find(extent->whole.address());
    const bool known = found != by_address_.end() && slots_[found->second].lent.identity == extent->identity;
    if (!known && full())
        return fmt::format("no, carried through the arena: {}", no_slot(extent->whole).message);
    if (!known)
        return "not yet: carried through the arena until the ranks have exchanged it, after its first use";
    const Slot& slot = slots_[found->second];
    if (slot.state == State::valid) return "yes";
    if (slot.state == State::refused) return fmt::format("no, carried through the arena: {}", slot.why);
    return "not yet: carried through the arena until all ranks have mapped it";
}

// The other ranks unmap it once this rank has no task under way.
void Reachability::withdraw(unsigned at) {
    Slot& slot = slots_[at];
    const auto found = by_address_.find(slot.lent.whole.address());
    if (found != by_address_.end() && found->second == at) by_address_.erase(found);
    slot.state = State::withdrawn;
    slot.attached = 0;
    due_ = true;
}

void Reachability::work(const Sender& send) {
    std::vector<unsigned> wanted;
    std::optional<bool> rests;  // asked after the withdrawal: no later task uses what was withdrawn
    {
        const std::lock_guard lock(mutex_);
        if (!due_) return;
        due_ = false;
        for (unsigned at = 1; at < protocol::max_slots; ++at) {
            if (slots_[at].state == State::wanted) wanted.push_back(at);
            if (slots_[at].state != State::withdrawn) continue;
            if (!rests) {
                const auto answer = seat_.at_rest();
                rests = !answer || *answer;
            }
            if (*rests && slots_[at].pending == 0)
                call_back(at, send);
            else
                due_ = true;
        }
    }
    for (const unsigned at : wanted) lend(at, send);
}

// This rank has no task under way, so no kernel reads or writes there any more.
void Reachability::call_back(unsigned at, const Sender& send) {
    Slot& slot = slots_[at];
    slot.state = State::dropping;
    slot.pending = slot.has & all_others();
    (void)seat_.reach(facts_.rank, at, {});
    for (unsigned rank = 0; rank < facts_.ranks; ++rank)
        if ((slot.pending >> rank & 1) != 0) send(rank, Message{.word = Word::drop, .slot = at}, -1, nullptr);
    settle(at);
}

// Exporting may take long, so it happens without the lock.
void Reachability::lend(unsigned at, const Sender& send) {
    Lent lent;
    {
        const std::lock_guard lock(mutex_);
        lent = slots_[at].lent;
    }
    Result<void> state;
    if (has_others_ && !lent.exported) {
        auto exported = export_memory(registry_, lent.whole);
        if (exported)
            lent.exported = std::move(*exported);
        else
            state = exported.error();
    }
    if (state) state = seat_.reach(facts_.rank, at, backend::bytes_of(lent.whole));
    std::array<std::string, 2> offers;
    for (const bool same : {false, true}) {
        if (!state || (!same && !has_others_)) continue;
        auto offer = lent.offer(same);
        if (offer)
            offers[same ? 1 : 0] = std::move(*offer);
        else
            state = offer.error();
    }
    const std::lock_guard lock(mutex_);
    Slot& slot = slots_[at];
    if (slot.state != State::wanted) return;  // withdrawn meanwhile
    if (!state) {
        slot.state = State::refused;
        slot.why = state.error().to_string();
        changed_.notify_all();
        return;
    }
    slot.lent.exported = lent.exported;
    slot.state = State::lending;
    slot.pending = all_others();
    for (unsigned rank = 0; rank < facts_.ranks; ++rank) {
        if ((slot.pending >> rank & 1) == 0) continue;
        const bool same = (facts_.same_process >> rank & 1) != 0;
        send(rank, Message{.word = Word::share, .slot = at, .blob = offers[same ? 1 : 0]},
             lent.descriptor(same), lent.exported);
    }
    settle(at);
}

// Once all have answered.
void Reachability::settle(unsigned at) {
    Slot& slot = slots_[at];
    if (slot.pending != 0) return;
    if (slot.state == State::lending) {
        slot.state = slot.why.empty() ? State::valid : State::refused;
        slot.lent.exported.reset();  // the others hold what they opened
        changed_.notify_all();
    } else if (slot.state == State::dropping) {
        slot = Slot{};
        changed_.notify_all();
    }
}

void Reachability::shared(unsigned rank, std::uint32_t at, const std::string& why_not) {
    const std::lock_guard lock(mutex_);
    if (at == 0 || at >= protocol::max_slots || (slots_[at].pending >> rank & 1) == 0) return;
    Slot& slot = slots_[at];
    slot.pending &= ~(1u << rank);
    if (why_not.empty())
        slot.has |= 1u << rank;
    else if (slot.why.empty())
        slot.why = fmt::format("rank {}: {}", rank, why_not);
    settle(at);
}

void Reachability::dropped(unsigned rank, std::uint32_t at) {
    const std::lock_guard lock(mutex_);
    if (at == 0 || at >= protocol::max_slots || slots_[at].state != State::dropping) return;
    slots_[at].pending &= ~(1u << rank);
    settle(at);
}

void Reachability::gone(unsigned rank) {
    const std::lock_guard lock(mutex_);
    gone_ |= 1u << rank;
    for (unsigned at = 1; at < protocol::max_slots; ++at) {
        slots_[at].pending &= ~(1u << rank);
        slots_[at].has &= ~(1u << rank);
        settle(at);
    }
}

void Reachability::look() {
    const std::lock_guard lock(mutex_);
    for (unsigned at = 1; at < protocol::max_slots; ++at) {
        const Slot& slot = slots_[at];
        if (slot.state != State::valid && slot.state != State::refused) continue;
        const auto extent = seat_.extent(slot.lent.whole.address());
        if (!extent || extent->identity != slot.lent.identity ||
            extent->whole.size() != slot.lent.whole.size())
            withdraw(at);
    }
}

Result<void> Imports::add(unsigned rank, std::uint32_t slot, const std::string& offer, int descriptor,
                          bool same_process) {
    if (slot >= protocol::max_slots)
        return Error{ErrorCode::io_error, "another rank's slot makes no sense", "group", {}};
    SIDESTEP_TRY(Borrowed borrowed, borrow(seat_, offer, descriptor, same_process));
    if (slot == 0 && borrowed.memory.size() < seat_.arena().size())
        return Error{ErrorCode::io_error, "another rank's arena is smaller than this one's", "group", {}};
    SIDESTEP_CHECK(seat_.reach(rank, slot, borrowed.memory));
    mapped_[{rank, slot}] = std::move(borrowed);
    return {};
}

void Imports::drop(unsigned rank, std::uint32_t slot) {
    if (mapped_.find({rank, slot}) == mapped_.end()) return;
    (void)seat_.reach(rank, slot, {});
    mapped_.erase({rank, slot});
}

void Imports::hide(unsigned rank, const Buffer& own_arena) {
    (void)seat_.reach(rank, 0, backend::bytes_of(own_arena));
    for (auto it = mapped_.lower_bound({rank, 1}); it != mapped_.end() && it->first.first == rank; ++it)
        (void)seat_.reach(rank, it->first.second, {});
}

void Imports::forget(unsigned rank) {
    mapped_.erase(mapped_.lower_bound({rank, 0}), mapped_.lower_bound({rank + 1, 0}));
}

}  // namespace sidestep::collective
