// The bound on what a node moves: what goes at once, what waits, and when it is called again.
#include "wire/pace.hpp"

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
            Pace::in, mib, [] {}, now))
            moved += mib;
    // What a pause left, and a debt of one piece, are more than the rate.
    EXPECT_NEAR(static_cast<double>(moved / mib), 500, 4);
}

TEST(Pace, ADirectionHasNothingOfTheOther) {
    const auto now = Pace::Clock::now();
    Pace pace(mib, now - milliseconds(1000));
    EXPECT_TRUE(pace.take(
        Pace::in, 64 * mib, [] {}, now));
    EXPECT_FALSE(pace.take(
        Pace::in, 1, [] {}, now));
    EXPECT_TRUE(pace.take(
        Pace::out, 1, [] {}, now));
    pace.give_back(Pace::in, 64 * mib);
    EXPECT_TRUE(pace.take(
        Pace::in, 1, [] {}, now));
}

TEST(Pace, WhoWaitsIsCalledOnce) {
    const auto now = Pace::Clock::now();
    Pace pace(mib, now);
    int calls = 0;
    // Its own lock is free by then: who is called asks again.
    const auto again = [&] {
        ++calls;
        EXPECT_TRUE(pace.take(
            Pace::in, 1, [] {}, now + milliseconds(10)));
    };
    EXPECT_FALSE(pace.take(Pace::in, 1, again, now));
    EXPECT_EQ(calls, 0);
    pace.wake();
    pace.wake();
    EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace sidestep::wire
