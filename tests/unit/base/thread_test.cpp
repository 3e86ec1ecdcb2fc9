#include "base/thread.hpp"

#include <gtest/gtest.h>

#include "tests/no_threads.hpp"

namespace sidestep::base {
namespace {

TEST(StartThread, Runs) {
    bool ran = false;
    auto started = start_thread([&ran] { ran = true; }, "here");
    ASSERT_TRUE(started) << started.error().to_string();
    started->join();
    EXPECT_TRUE(ran);
}

TEST(StartThread, SaysThatThereIsNone) {
    const test::NoThreads none;
    const auto started = start_thread([] {}, "here");
    ASSERT_FALSE(started);
    EXPECT_EQ(started.error().code, ErrorCode::out_of_memory);
    EXPECT_EQ(started.error().message.find("no thread could be started"), 0u) << started.error().message;
    EXPECT_EQ(started.error().where, "here");
}

}  // namespace
}  // namespace sidestep::base
