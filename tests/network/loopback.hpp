// What tests of links share: connections within this process, and a patient look at what becomes true.
#pragma once

#include <chrono>
#include <thread>
#include <utility>

#include <gtest/gtest.h>
#include "driver/tcp_socket.hpp"

namespace sidestep::wire::test {

using Clock = std::chrono::steady_clock;

// Far more than anything here takes.
inline Clock::time_point patience() {
    return Clock::now() + std::chrono::seconds(60);
}

template <typename Condition>
bool comes(Condition condition) {
    const auto until = patience();
    while (!condition()) {
        if (Clock::now() > until) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
}

struct Ends {
    driver::TcpSocket one;
    driver::TcpSocket other;
};

// Both ends of one connection over loopback.
inline Ends connected() {
    const auto address = driver::SocketAddress::resolve("127.0.0.1", 0).value().front();
    const auto listener = driver::TcpListener::bind(address).value();
    auto one = driver::TcpSocket::connect(listener.local().value(), patience()).value();
    driver::TcpSocket other{driver::Fd()};
    EXPECT_TRUE(comes([&] {
        auto accepted = listener.accept();
        if (!accepted || !*accepted) return false;
        other = std::move(**accepted);
        return true;
    }));
    return {std::move(one), std::move(other)};
}

inline int number_of(driver::TcpSocket socket) {
    return std::move(socket).take().release();
}

}  // namespace sidestep::wire::test
