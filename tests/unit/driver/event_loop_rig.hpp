// What tests of the event loop share.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "driver/event_loop.hpp"
#include "driver/fd.hpp"

namespace sidestep::driver {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

inline std::unique_ptr<EventLoop> make_loop(std::chrono::microseconds awake = {}) {
    return EventLoop::create("a loop of a test", awake).value();
}

struct Ends {
    Fd one, other;
};

inline Ends make_ends() {
    std::array<int, 2> found{-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, found.data()), 0);
    return {Fd(found[0]), Fd(found[1])};
}

inline void say(const Fd& fd) {
    EXPECT_EQ(::write(fd.get(), "x", 1), 1);
}

inline char hear(const Fd& fd) {
    char byte = 0;
    return ::read(fd.get(), &byte, 1) == 1 ? byte : '\0';
}

template <typename Condition>
bool comes(Condition condition) {
    const auto until = Clock::now() + seconds(20);
    while (!condition()) {
        if (Clock::now() > until) return false;
        std::this_thread::sleep_for(milliseconds(1));
    }
    return true;
}

// All that was asked for before has been seen to.
inline void settle(EventLoop& loop) {
    const auto seen = std::make_shared<std::promise<void>>();
    ASSERT_TRUE(loop.post([seen] { seen->set_value(); }));
    ASSERT_EQ(seen->get_future().wait_for(seconds(20)), std::future_status::ready);
}

}  // namespace sidestep::driver
