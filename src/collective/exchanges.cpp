#include "collective/exchanges.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <iterator>

#include <fmt/format.h>

#include "base/try.hpp"
#include "protocol/collective_task.hpp"

namespace sidestep::collective {
namespace {

using Clock = std::chrono::steady_clock;

// Of what waits to be fetched, of each rank: what one offers takes no other one's room.
constexpr std::ptrdiff_t max_offers = 256;
constexpr std::chrono::milliseconds look_pause{20};
// Service threads answer within a moment, unless their process stands still. A stop has to be heeded meanwhile.
constexpr std::chrono::milliseconds ending_told_within{80};

// The number of an exchange: its kind, its members, and how manieth of those it is.
constexpr unsigned members_at = 32;
constexpr unsigned kind_at = 48;
static_assert(protocol::max_ranks <= kind_at - members_at);

std::uint64_t key_of(Exchanges::Kind kind, std::uint32_t members) {
    return static_cast<std::uint64_t>(kind) << kind_at | std::uint64_t{members} << members_at;
}
std::uint64_t key_of(std::uint64_t number) {
    return number >> members_at << members_at;
}
std::uint32_t count_of(std::uint64_t number) {
    return static_cast<std::uint32_t>(number);
}
std::uint32_t members_of(std::uint64_t number) {
    return static_cast<std::uint32_t>(number >> members_at & 0xffff);
}
Exchanges::Kind kind_of(std::uint64_t number) {
    return static_cast<Exchanges::Kind>(number >> kind_at);
}

}  // namespace

Result<Exchanges::Answers> Exchanges::call(Kind kind, const std::string& blob, std::uint32_t members,
                                           driver::LocalSocket::Time until, const std::stop_token& stop) {
    Answers answers;
    const Message offer = begin(kind, blob, members);
    answers.number = offer.number;
    for (unsigned rank = 0; rank < surroundings_.ranks; ++rank)
        if ((others(answers.number) >> rank & 1) != 0) surroundings_.send(rank, offer);
    auto gathered = gather(answers.number, blob, until, stop);
    if (!gathered) {
        withdraw(answers.number, gathered.error());
        return gathered.error();
    }
    answers.blobs = std::move(*gathered);
    return answers;
}

void Exchanges::take_back(const Error& why) {
    std::unique_lock lock(mutex_);
    const std::uint64_t number = agreed_;
    lock.unlock();
    withdraw(number, why);
}

Result<void> Exchanges::keeps(unsigned rank) {
    const std::lock_guard lock(mutex_);
    const auto found = taken_back_.find(rank);
    return found == taken_back_.end() ? Result<void>() : found->second;
}

Message Exchanges::begin(Kind kind, const std::string& blob, std::uint32_t members) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t key = key_of(kind, members);
    Count& count = counts_[key];
    active_ = key | ++count.used;
    ++count.calls;
    failure_.reset();
    for (const auto& [from, offer] : offers_) notice_disagreement(from.first, from.second, offer);
    return {.word = Word::exchange, .slot = count.calls, .number = active_, .blob = blob};
}

Result<std::vector<std::string>> Exchanges::gather(std::uint64_t number, const std::string& blob,
                                                   driver::LocalSocket::Time until,
                                                   const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (const std::uint32_t ranks = missing(number)) {
        SIDESTEP_CHECK(go_on_waiting(ranks, until, stop));
        heard_.wait_for(lock, look_pause);
    }
    std::vector<std::string> blobs(surroundings_.ranks);
    blobs[surroundings_.rank] = blob;
    for (unsigned rank = 0; rank < surroundings_.ranks; ++rank)
        if (auto offer = offers_.extract({rank, number})) blobs[rank] = std::move(offer.mapped().blob);
    // The same on all members, however often each of them has tried.
    Count& count = counts_[key_of(number)];
    count.calls = count_of(number);
    active_ = 0;
    agreed_ = number;
    taken_back_.clear();
    return blobs;
}

// With the mutex held, as the one below.
std::uint32_t Exchanges::missing(std::uint64_t number) const {
    std::uint32_t ranks = 0;
    for (unsigned rank = 0; rank < surroundings_.ranks; ++rank)
        if ((others(number) >> rank & 1) != 0 && !offers_.contains({rank, number})) ranks |= 1u << rank;
    return ranks;
}

Result<void> Exchanges::go_on_waiting(std::uint32_t missing, driver::LocalSocket::Time until,
                                      const std::stop_token& stop) const {
    const std::string me = surroundings_.name(surroundings_.rank);
    // First: whatever others say of an exchange with a rank that is gone, this is why it cannot be.
    for (unsigned rank = 0; rank < surroundings_.ranks; ++rank)
        if ((missing >> rank & 1) != 0 && surroundings_.absent(rank))
            return Error{
                ErrorCode::io_error, fmt::format("{} has died or left", surroundings_.name(rank)), me, {}};
    if (failure_) return *failure_;
    const std::string other = surroundings_.name(static_cast<unsigned>(std::countr_zero(missing)));
    if (kind_of(active_) == Kind::split) SIDESTEP_CHECK(surroundings_.state());
    if (stop.stop_requested())
        return Error{ErrorCode::cancelled,
                     fmt::format("{} was told to stop while {} had not called", me, other),
                     me,
                     {}};
    if (Clock::now() >= until)
        return Error{ErrorCode::timed_out, fmt::format("{} did not call", other), me,
                     "every rank that takes part calls"};
    return {};
}

// Returns when the others know, so that whoever hears from this rank by other means, and calls then, meets
// nothing that is out of date.
void Exchanges::withdraw(std::uint64_t number, const Error& why) {
    {
        const std::lock_guard lock(mutex_);
        active_ = 0;
        use_up(number);
        withdrawal_ = {number, 0};
    }
    for (unsigned rank = 0; rank < surroundings_.ranks; ++rank)
        if ((others(number) >> rank & 1) != 0)
            surroundings_.send(
                rank,
                Message{.word = Word::withdraw, .number = number, .code = why.code, .text = why.message});
    const auto until = Clock::now() + ending_told_within;
    const auto all_know = [&] {
        for (unsigned rank = 0; rank < surroundings_.ranks; ++rank)
            if (((others(number) & ~withdrawal_.told) >> rank & 1) != 0 && !surroundings_.absent(rank))
                return false;
        return true;
    };
    std::unique_lock lock(mutex_);
    while (!all_know() && Clock::now() < until) heard_.wait_until(lock, until);
}

void Exchanges::handle(unsigned rank, const Message& message) {
    // What does not concern both, or is of no kind or ranks that there are, is nothing that a rank says.
    const std::uint32_t both = 1u << rank | 1u << surroundings_.rank;
    const std::uint32_t members = members_of(message.number);
    if ((members & both) != both || members >> surroundings_.ranks != 0 ||
        message.number >> kind_at > static_cast<std::uint64_t>(Kind::shrink))
        return;
    {
        const std::lock_guard lock(mutex_);
        if (message.word == Word::exchange) take_offer(rank, message);
        if (message.word == Word::withdraw) take_withdrawal(rank, message);
        if (message.word == Word::withdrawn && message.number == withdrawal_.number)
            withdrawal_.told |= 1u << rank;
    }
    heard_.notify_all();
    if (message.word == Word::withdraw)
        surroundings_.send(rank, Message{.word = Word::withdrawn, .number = message.number});
}

// With the mutex held, as the ones below.
void Exchanges::take_offer(unsigned rank, const Message& message) {
    // Given up here; the other rank will hear of it.
    if (message.number != active_ && count_of(message.number) <= count(message.number).used) return;
    Offer offer{message.slot, message.blob};
    notice_disagreement(rank, message.number, offer);
    const auto kept = std::distance(offers_.lower_bound({rank, 0}), offers_.lower_bound({rank + 1, 0}));
    if (kept < max_offers) offers_[{rank, message.number}] = std::move(offer);
}

void Exchanges::take_withdrawal(unsigned rank, const Message& message) {
    const Error why{message.code == ErrorCode{0} ? ErrorCode::io_error : message.code,
                    message.text,
                    surroundings_.name(rank),
                    {}};
    if (message.number == active_ && !failure_) failure_ = why;
    if (message.number == agreed_) taken_back_.emplace(rank, why);
    use_up(message.number);
}

Exchanges::Count Exchanges::count(std::uint64_t number) const {
    const auto found = counts_.find(key_of(number));
    return found == counts_.end() ? Count{} : found->second;
}

// Up to this one: no rank begins them any more.
void Exchanges::use_up(std::uint64_t number) {
    std::uint32_t& used = counts_[key_of(number)].used;
    used = std::max(used, count_of(number));
    std::erase_if(offers_, [number](const auto& offer) {
        const std::uint64_t offered = offer.first.second;
        return key_of(offered) == key_of(number) && count_of(offered) <= count_of(number);
    });
}

// Each of the two waits for the other one, but not among the same ranks.
void Exchanges::notice_disagreement(unsigned rank, std::uint64_t number, const Offer& offer) {
    const bool another = kind_of(number) == kind_of(active_) && key_of(number) != key_of(active_);
    const bool behind = offer.calls <= count(number).calls;
    if (active_ == 0 || failure_ || !another || behind || (members_of(active_) >> rank & 1) == 0 ||
        offers_.contains({rank, active_}))
        return;
    failure_ = Error{ErrorCode::mismatch, fmt::format("{} excludes other ranks", surroundings_.name(rank)),
                     surroundings_.name(surroundings_.rank), "all that remain exclude the same ranks"};
}

std::uint32_t Exchanges::others(std::uint64_t number) const {
    return members_of(number) & ~(1u << surroundings_.rank);
}

}  // namespace sidestep::collective
