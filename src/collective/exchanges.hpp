// What the ranks of a group tell each other to split it, or to go on without some of them.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "collective/wire.hpp"
#include "driver/local_socket.hpp"

namespace sidestep::collective {

// In each exchange every member gives the others a blob. Members count their exchanges of one kind among the
// same ranks, so that blobs of one call meet. One that fails on a member is withdrawn by it: it fails on the
// others that have called, and its number is used up on all of them, so that the next calls meet again.
//
// Ranks that shrink without different ones would wait for each other in vain. One that hears of another's
// exchange while it waits for that rank in one of its own fails, unless it has called the other's as often
// itself: then that rank is behind, hears the same of this one, and comes.
class Exchanges {
public:
    enum class Kind : std::uint8_t { split, shrink };
    struct Answers {
        std::uint64_t number = 0;        // the same on all members, and of no other exchange of the group
        std::vector<std::string> blobs;  // by rank; empty for ranks that are no members
    };
    // Called by any thread.
    struct Surroundings {
        unsigned rank = 0;
        unsigned ranks = 1;
        std::function<void(unsigned rank, Message message)> send;
        std::function<bool(unsigned rank)> absent;  // it has died or left
        std::function<std::string(unsigned rank)> name;
        std::function<Result<void>()> state;  // of the group
    };

    explicit Exchanges(Surroundings surroundings) : surroundings_(std::move(surroundings)) {}

    // By one thread at a time. Of `members` (bits), this rank among them. Blocks, until `stop` is asked for at
    // the longest. Splits end with the group as well.
    Result<Answers> call(Kind kind, const std::string& blob, std::uint32_t members,
                         driver::LocalSocket::Time until, const std::stop_token& stop);

    // What the last call agreed on cannot be done on this rank.
    void take_back(const Error& why);
    // Why another rank has taken that back; success: it has not.
    Result<void> keeps(unsigned rank);

    // By the service thread: Word::exchange, withdraw and withdrawn.
    void handle(unsigned rank, const Message& message);
    // Another rank is gone, or the group has ended.
    void wake() { heard_.notify_all(); }

private:
    struct Withdrawal {
        std::uint64_t number = 0;
        std::uint32_t told = 0;  // the ranks that know of it
    };

    struct Offer {
        std::uint32_t calls = 0;  // how manieth of its rank among the same members this is
        std::string blob;
    };
    struct Count {
        std::uint32_t used = 0;   // numbers, here or on others
        std::uint32_t calls = 0;  // of this rank, failed ones too
    };

    // What the others are told.
    Message begin(Kind kind, const std::string& blob, std::uint32_t members);
    Result<std::vector<std::string>> gather(std::uint64_t number, const std::string& blob,
                                            driver::LocalSocket::Time until, const std::stop_token& stop);
    // The ranks whose blob has not come.
    std::uint32_t missing(std::uint64_t number) const;
    Result<void> go_on_waiting(std::uint32_t missing, driver::LocalSocket::Time until,
                               const std::stop_token& stop) const;
    void withdraw(std::uint64_t number, const Error& why);
    void take_offer(unsigned rank, const Message& message);
    void take_withdrawal(unsigned rank, const Message& message);
    Count count(std::uint64_t number) const;
    void use_up(std::uint64_t number);
    void notice_disagreement(unsigned rank, std::uint64_t number, const Offer& offer);
    std::uint32_t others(std::uint64_t number) const;

    const Surroundings surroundings_;
    std::mutex mutex_;  // guards what follows
    std::condition_variable heard_;
    std::map<std::pair<unsigned, std::uint64_t>, Offer> offers_;  // by rank and number
    std::map<std::uint64_t, Count> counts_;                       // by kind and members
    std::uint64_t active_ = 0;                                    // the number of the call under way; 0: none
    std::optional<Error> failure_;                                // of that one, as others tell it
    std::uint64_t agreed_ = 0;              // the number of the last call that did not fail
    std::map<unsigned, Error> taken_back_;  // by ranks that agreed to it
    Withdrawal withdrawal_;                 // the last of this rank
};

}  // namespace sidestep::collective
