// Threads for calls that block, of which one never comes back.
#include "backends/cufile/io_pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>

namespace sidestep::backends::cufile {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// A call is waited for until it has taken a second, and what nobody has begun is dropped.
TEST(IoPoolTest, ItsEndDoesNotWaitForACallThatHangs) {
    IoPool pool(1);
    std::atomic<bool> hangs{true};
    std::atomic<int> begun{0};
    const auto work = [&]() -> Result<void> {
        ++begun;
        while (hangs) std::this_thread::sleep_for(1ms);
        return {};
    };
    ASSERT_TRUE(pool.start(work));
    while (begun == 0) std::this_thread::sleep_for(1ms);
    ASSERT_TRUE(pool.start(work));
    const auto begin = Clock::now();
    EXPECT_FALSE(pool.end());
    EXPECT_LT(Clock::now() - begin, 10s);
    hangs = false;
    const auto limit = Clock::now() + 1min;
    while (!pool.end() && Clock::now() < limit) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(pool.end());
    EXPECT_EQ(begun, 1);
    EXPECT_TRUE(IoPool(1).end());
}

}  // namespace
}  // namespace sidestep::backends::cufile
