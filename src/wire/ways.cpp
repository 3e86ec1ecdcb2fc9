#include "wire/ways.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

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

Result<driver::TcpSocket> Ways::connect_one(std::size_t way, Time until) {
    std::vector<driver::SocketAddress> found;
    {
        std::lock_guard lock(mutex_);
        if (ways_[way].to) found.push_back(*ways_[way].to);
    }
    if (found.empty()) {
        const HostPort& at = address_.at[way];
        SIDESTEP_TRY(found, driver::SocketAddress::resolve(at.host, at.port));
    }
    std::optional<Error> first;
    for (const driver::SocketAddress& one : found) {
        const bool alone = ways_.size() == 1 && found.size() == 1;
        auto socket =
            driver::TcpSocket::connect(one, alone ? until : std::min(until, Clock::now() + patience));
        if (socket) {
            std::lock_guard lock(mutex_);
            ways_[way] = {one, {}};
            return socket;
        }
        if (!first || first->code == ErrorCode::not_found) first = socket.error();
    }
    avoid(way);
    return *first;
}

Result<Ways::Reached> Ways::connect(std::size_t first, Time until) {
    std::optional<Error> why;
    for (const std::size_t way : order(first)) {
        auto socket = connect_one(way, until);
        if (socket) return Reached{std::move(*socket), way};
        if (!why || why->code == ErrorCode::not_found) why = socket.error();
    }
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
