// The bound on what a node moves: what goes at once, what waits, and when it is called again.
#include "wire/pace.hpp"

#include <array>
#include <functional>

#include <gtest/gtest.h>

namespace sidestep::wire {
namespace {

using std::chrono::milliseconds;

constexpr Bytes mib = Bytes{1} << 20;

TEST(Pace, ThroughALongTimeGoesTheRate) {
    auto now = Pace::Clock::now();
    Pace pace(100 * mib, now);
    Bytes moved = 0;
    for (int step = 0; step < 1000; ++step, now += milliseconds(5))
        while (pace.take(
            Pace::in, mib, &moved, [] {}, now))
            moved += mib;
    // What a pause left, and a debt of one piece, are more than the rate.
    EXPECT_NEAR(static_cast<double>(moved / mib), 500, 4);
}

TEST(Pace, ADirectionHasNothingOfTheOther) {
    const auto now = Pace::Clock::now();
    Pace pace(mib, now - milliseconds(1000));
    EXPECT_TRUE(pace.take(
        Pace::in, 64 * mib, &pace, [] {}, now));
    EXPECT_FALSE(pace.take(
        Pace::in, 1, &pace, [] {}, now));
    EXPECT_TRUE(pace.take(
        Pace::out, 1, &pace, [] {}, now));
    pace.give_back(Pace::in, 64 * mib);
    EXPECT_TRUE(pace.take(
        Pace::in, 1, &pace, [] {}, now));
}

TEST(Pace, WhoWaitsIsCalledOnce) {
    const auto now = Pace::Clock::now();
    Pace pace(mib, now);
    int calls = 0;
    // Its own lock is free by then: who is called asks again.
    const auto again = [&] {
        ++calls;
        EXPECT_TRUE(pace.take(
            Pace::in, 1, &calls, [] {}, now + milliseconds(10)));
    };
    for (int times = 0; times < 3; ++times) EXPECT_FALSE(pace.take(Pace::in, 1, &calls, again, now));
    EXPECT_EQ(calls, 0);
    EXPECT_EQ(pace.wake(), 1);
    EXPECT_EQ(pace.wake(), 0);
    EXPECT_EQ(calls, 1);
}

TEST(Pace, ThoseWhoWaitHaveTurns) {
    auto now = Pace::Clock::now();
    Pace pace(100 * mib, now);
    std::array<int, 3> moved{};
    const std::function<void(std::size_t)> go = [&](std::size_t one) {
        const auto again = [&, one] { go(one); };
        while (pace.take(Pace::out, mib, &moved[one], again, now)) ++moved[one];
    };
    for (std::size_t one = 0; one < moved.size(); ++one) go(one);
    for (int step = 0; step < 1000; ++step, now += milliseconds(5)) pace.wake();
    for (const int pieces : moved) EXPECT_NEAR(pieces, 500 / 3, 5);
}

}  // namespace
}  // namespace sidestep::wire
