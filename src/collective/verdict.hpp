// Whether a group still works, and what ended it; and how a fault of a task is told to people.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>

#include <sidestep/result.hpp>
#include "collective/board.hpp"

namespace sidestep::collective {

// The first error of a group, kept. Any thread.
class Verdict {
public:
    bool failed() const { return failed_.load(std::memory_order_acquire); }

    // True where this is the first one.
    bool fail(Error error) {
        const std::lock_guard lock(mutex_);
        if (failed()) return false;
        error_ = std::move(error);
        failed_.store(true, std::memory_order_release);
        return true;
    }

    Result<void> status() const {
        if (!failed()) return {};
        const std::lock_guard lock(mutex_);
        return error_;
    }

private:
    std::atomic<bool> failed_{false};
    mutable std::mutex mutex_;
    Error error_;
};

// What a task of `rank` gave up for, in words that are true on every rank.
struct FaultSeen {
    protocol::FaultRecord record;
    unsigned rank = 0;
    std::string me;
    std::string peer;
    double deadline_s = 0;
};
Error explain_fault(const FaultSeen& fault, const BoardFile& board);

// What `rank` has enqueued and another rank calls differently, where neither has ended it. Tasks find that themselves only
// where both calls go by one algorithm.
std::optional<protocol::FaultRecord> find_difference(unsigned rank, const BoardFile& board);

// What rank `dead` did last, and what `rank`, which notices its death, is in.
struct DeathSeen {
    unsigned dead = 0;
    std::string who;
    unsigned rank = 0;
    std::string me;
};
Error explain_death(const DeathSeen& death, const BoardFile& board);

// Whether `rank` has enqueued something that can never end, because rank `gone` left before its own part of
// it. Nothing otherwise: a rank that left in order has ended all that it enqueued, so the numbers show it. A
// rank that ended by exit() may have been within an operation. What it had already sent still arrives, so
// only what has not ended a second later is lost.
struct DepartureSeen {
    unsigned gone = 0;
    std::string who;
    std::uint64_t steps = 0;  // its operations of all, when it left
    unsigned rank = 0;
    std::string me;
    std::uint64_t ended_ns = 0;  // when it was gone, by exit(); 0: it said goodbye
    std::uint64_t now_ns = 0;    // both of the machine's steady clock
};
std::optional<Error> explain_departure(const DepartureSeen& seen, const BoardFile& board);

}  // namespace sidestep::collective
