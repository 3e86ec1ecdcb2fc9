#include "wire/ways.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/deadlines.hpp"
#include "base/try.hpp"

namespace sidestep::wire {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

Ways::Ways(NodeAddress address) : address_(std::move(address)), ways_(address_.at.size()) {}

std::vector<std::size_t> Ways::order(std::size_t first) const {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < ways_.size(); ++i) order.push_back((first + i) % ways_.size());
    const auto now = Clock::now();
    std::lock_guard lock(mutex_);
    std::stable_partition(order.begin(), order.end(),
                          [&](std::size_t way) { return ways_[way].avoided <= now; });
    return order;
}

Result<std::vector<driver::SocketAddress>> Ways::addresses(std::size_t way,
                                                           std::chrono::milliseconds limit) const {
    {
        std::lock_guard lock(mutex_);
        if (ways_[way].to) return std::vector{*ways_[way].to};
    }
    return driver::SocketAddress::resolve(address_.at[way].host, address_.at[way].port, limit);
}

// The first of them that comes about by then; `why` tells of those that do not.
std::optional<Ways::Reached> Ways::take(driver::TcpConnects& all, Time until, bool give_up,
                                        std::optional<Error>& why) {
    while (auto ended = all.next(until, give_up)) {
        if (!ended->socket) {
            avoid(ended->number);
            if (!why || why->code == ErrorCode::not_found) why = ended->socket.error();
            continue;
        }
        while (const auto slower = all.next({}, true)) avoid(slower->number);
        std::lock_guard lock(mutex_);
        ways_[ended->number] = {ended->to, {}};
        return Reached{std::move(*ended->socket), ended->number};
    }
    return std::nullopt;
}

Result<Ways::Reached> Ways::connect(std::size_t first, Time until) {
    driver::TcpConnects all;
    std::optional<Error> why;
    std::size_t begun = 0;
    auto left = static_cast<int>(ways_.size());
    for (const std::size_t way : order(first)) {
        // A name that is not resolved leaves their part of the time to the others.
        const auto found =
            addresses(way, std::chrono::milliseconds(base::milliseconds_left(until) / left-- + 1));
        if (!found) {
            avoid(way);
            if (!why || why->code == ErrorCode::not_found) why = found.error();
            continue;
        }
        for (const driver::SocketAddress& one : *found) {
            all.begin(one, way);
            ++begun;
            auto reached = take(all, std::min(until, Clock::now() + head_start), false, why);
            if (reached) return std::move(*reached);
        }
    }
    if (begun > 1) until = std::min(until, Clock::now() + patience);
    if (auto reached = take(all, until, true, why)) return std::move(*reached);
    if (why->code == ErrorCode::not_found)
        why->hint = fmt::format("start `sidestep serve` on {}, or say where it listens: {}=HOST:PORT",
                                address_.name, address_.name);
    return *why;
}

void Ways::avoid(std::size_t way) {
    std::lock_guard lock(mutex_);
    ways_[way].avoided = Clock::now() + avoided_for;
}

std::string Ways::name(std::size_t way) const {
    std::lock_guard lock(mutex_);
    return ways_[way].to ? ways_[way].to->to_string() : address_.at[way].to_string();
}

}  // namespace sidestep::wire
