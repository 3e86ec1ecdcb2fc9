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

    // By the service thread: Word::exchange, withdraw and withdrawn.
    void handle(unsigned rank, const Message& message);
    // Another rank is gone, or the group has ended.
    void wake() { heard_.notify_all(); }

private:
    struct Withdrawal {
        std::uint64_t number = 0;
        std::uint32_t told = 0;  // the ranks that know of it
    };

    std::uint64_t begin(Kind kind, std::uint32_t members);
    Result<std::vector<std::string>> gather(std::uint64_t number, const std::string& blob,
                                            driver::LocalSocket::Time until, const std::stop_token& stop);
    Result<void> go_on_waiting(unsigned missing, driver::LocalSocket::Time until,
                               const std::stop_token& stop) const;
    void withdraw(std::uint64_t number, const Error& why);
    void take_offer(unsigned rank, const Message& message);
    void take_withdrawal(unsigned rank, const Message& message);
    std::uint32_t used(std::uint64_t number) const;
    void use_up(std::uint64_t number);
    void notice_disagreement(unsigned rank, std::uint64_t number);
    std::uint32_t others(std::uint64_t number) const;

    const Surroundings surroundings_;
    std::mutex mutex_;  // guards what follows
    std::condition_variable heard_;
    std::map<std::pair<unsigned, std::uint64_t>, std::string> offers_;  // by rank and number
    std::map<std::uint64_t, std::uint32_t> counts_;  // of exchanges so far, by kind and members
    std::uint64_t active_ = 0;                       // the number of the call under way; 0: none
    std::optional<Error> failure_;                   // of that one, as others tell it
    Withdrawal withdrawal_;                          // the last of this rank
};

}  // namespace sidestep::collective
