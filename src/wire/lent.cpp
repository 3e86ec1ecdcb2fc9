#include "wire/lent.hpp"

#include <utility>

#include "base/try.hpp"
#include "wire/served.hpp"

namespace sidestep::wire {

Result<std::string> Lent::lend(const driver::Tls& tls, Region region, Clock::time_point now) {
    SIDESTEP_TRY(std::string token, tls.random(token_bytes));
    std::lock_guard lock(mutex_);
    if (all_.size() >= most)
        std::erase_if(all_, [now](const auto& one) {
            return one.second.client.expired() || now - one.second.since > kept_for;
        });
    if (all_.size() >= most)
        return Error{ErrorCode::out_of_memory, "too much was lent that nobody has fetched", "node", {}};
    region.since = now;
    all_.emplace(token, std::move(region));
    return token;
}

Result<Lent::Region> Lent::take(const std::string& token) {
    std::lock_guard lock(mutex_);
    const auto found = all_.find(token);
    if (found == all_.end())
        return Error{ErrorCode::not_found, "nothing was lent under that token", "node",
                     "see whether the address leads to the node that is meant"};
    Region region = std::move(found->second);
    all_.erase(found);
    return region;
}

void Lent::drop(const Served& client, std::uint64_t number) {
    std::lock_guard lock(mutex_);
    std::erase_if(all_, [&](const auto& one) {
        const auto owner = one.second.client.lock();
        return (!owner || owner.get() == &client) && (number == 0 || one.second.number == number);
    });
}

}  // namespace sidestep::wire
