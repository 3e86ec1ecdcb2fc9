// Regions that a client of this node lets another machine have, for the time that the client has them.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "driver/tls.hpp"

namespace sidestep::wire {

class Served;

// By tokens: whoever says one gets the region, once. Any thread.
class Lent {
public:
    using Clock = std::chrono::steady_clock;
    static constexpr std::size_t most = 65536;
    // Longer than anybody waits for an answer: whoever was to fetch it has given up.
    static constexpr std::chrono::seconds kept_for{60};

    struct Region {
        std::weak_ptr<Served> client;  // whose it is
        std::uint64_t number = 0;      // 0: none; the token only shows which node it is of
        Clock::time_point since{};     // lend() says
    };

    // The token. out_of_memory where nobody fetches what is lent.
    Result<std::string> lend(const driver::Tls& tls, Region region, Clock::time_point now = Clock::now());
    // not_found for other words.
    Result<Region> take(const std::string& token);
    // The client has it no more, or, where 0 is said, none at all.
    void drop(const Served& client, std::uint64_t number);

private:
    std::mutex mutex_;  // guards what follows
    std::map<std::string, Region> all_;
};

}  // namespace sidestep::wire
