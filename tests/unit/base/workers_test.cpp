#include "base/workers.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "base/blocking_calls.hpp"
#include "tests/no_threads.hpp"

namespace sidestep::base {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Until a test lets it go on.
struct Held {
    ~Held() { go_on = true; }
    void operator()() {
        ++begun;
        while (!go_on) std::this_thread::sleep_for(1ms);
        ++ended;
    }
    void wait_for(int count) const {
        while (begun < count) std::this_thread::sleep_for(1ms);
    }
    std::atomic<bool> go_on{false};
    std::atomic<int> begun{0};
    std::atomic<int> ended{0};
};

TEST(Workers, AllIsDoneBeforeTheyEnd) {
    std::atomic<int> done{0};
    std::atomic<int> threads{0};
    {
        Workers workers({.threads = 3}, "here", [&] { ++threads; });
        for (int i = 0; i < 100; ++i) ASSERT_TRUE(workers.add([&] { ++done; }));
    }
    EXPECT_EQ(done, 100);
    EXPECT_LE(threads, 3);
    const Workers unused({.threads = 3}, "here");
}

TEST(Workers, AsManyThreadsAsThereIsToDo) {
    Held held;
    Workers workers({.threads = 2}, "here");
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(workers.add([&] { held(); }));
    held.wait_for(2);
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(held.begun, 2);
    EXPECT_FALSE(workers.wait_for(1ms));
    held.go_on = true;
    EXPECT_TRUE(workers.wait_for(1min));
    EXPECT_EQ(held.ended, 3);
}

TEST(Workers, AFullQueueTakesAllOrNothing) {
    Held held;
    Workers workers({.threads = 1, .queued = 2}, "here");
    ASSERT_TRUE(workers.add([&] { held(); }));
    held.wait_for(1);
    const auto refused = workers.add(std::vector<Workers::Task>(3, [&] { held(); }));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::out_of_memory);
    EXPECT_EQ(refused.error().where, "here");
    ASSERT_TRUE(workers.add(std::vector<Workers::Task>(2, [&] { held(); })));
    held.go_on = true;
    workers.wait();
    EXPECT_EQ(held.ended, 3);
}

TEST(Workers, WithoutThreads) {
    Held held;
    Workers workers({.threads = 2}, "here");
    Workers own({.threads = 2, .behind_others = false}, "here");
    {
        const test::NoThreads none;
        const auto refused = workers.add([&] { held(); });
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().message, "no thread could be started");
    }
    for (Workers* each : {&workers, &own}) ASSERT_TRUE(each->add([&] { held(); }));
    held.wait_for(2);
    const test::NoThreads none;
    EXPECT_TRUE(workers.add([&] { held(); })) << "the one there is will come to it";
    EXPECT_FALSE(own.add([&] { held(); })) << "it may not wait behind another one";
    held.go_on = true;
    workers.wait();
    own.wait();
    EXPECT_EQ(held.ended, 3);
}

// A task is waited for until it has taken a second, and what nobody has begun is dropped.
TEST(Workers, TheirEndDoesNotWaitForATaskThatHangs) {
    Held held;
    {
        Workers workers({.threads = 1}, "here");
        ASSERT_TRUE(workers.add([&] { held(); }));
        held.wait_for(1);
        ASSERT_TRUE(workers.add([&] { held(); }));
        const auto begin = Clock::now();
        EXPECT_FALSE(workers.end());
        EXPECT_LT(Clock::now() - begin, 10s);
    }
    held.go_on = true;
    while (held.ended == 0) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(held.begun, 1);
    EXPECT_TRUE(Workers({.threads = 1}, "here").end());
}

TEST(InParallel, EachOnceWithAsManyThreadsAsThereAre) {
    for (const bool alone : {false, true})
        for (const std::size_t count : {0u, 1u, 2u, 100u}) {
            std::optional<test::NoThreads> none;
            if (alone) none.emplace();
            std::vector<std::atomic<int>> made(count);
            std::atomic<int> at_once{0};
            std::atomic<int> most{0};
            in_parallel(3, count, [&](std::size_t i) {
                const int now = ++at_once;
                for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
                }
                ++made[i];
                --at_once;
            });
            for (const auto& times : made) EXPECT_EQ(times, 1);
            EXPECT_LE(most, alone ? 1 : 3);
        }
}

// The end of tasks that are made together, and how often it was told.
struct Told {
    std::function<void(Result<void>)> over() {
        return [this](Result<void> result) {
            first = std::move(result);
            ++times;
        };
    }
    Result<void> first;
    std::atomic<int> times{0};
};

TEST(RunTogether, TheFirstErrorIsTold) {
    Told told;
    Workers workers({.threads = 1}, "here");
    const auto failing = [](const char* how) -> std::function<Result<void>()> {
        return [how]() -> Result<void> { return Error{ErrorCode::io_error, how, "there", {}}; };
    };
    ASSERT_TRUE(
        run_together(workers, {[] { return Result<void>(); }, failing("one"), failing("two")}, told.over()));
    workers.wait();
    EXPECT_EQ(told.times, 1);
    ASSERT_FALSE(told.first);
    EXPECT_EQ(told.first.error().message, "one");
}

TEST(RunTogether, WhatIsDroppedCountsAsEnded) {
    Held held;
    Told told;
    {
        Workers workers({.threads = 1}, "here");
        const auto task = [&] {
            held();
            return Result<void>();
        };
        ASSERT_TRUE(run_together(workers, {task, task, task}, told.over()));
        held.wait_for(1);
        EXPECT_EQ(told.times, 0);
        std::thread opener([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            held.go_on = true;
        });
        EXPECT_TRUE(workers.end());
        opener.join();
    }
    EXPECT_EQ(told.times, 1);
    EXPECT_EQ(held.ended, 1);
}

TEST(RunTogether, NothingIsToldOfWhatWasNotAdded) {
    Told told;
    Workers workers({.threads = 1, .queued = 1}, "here");
    EXPECT_FALSE(
        run_together(workers, {[] { return Result<void>(); }, [] { return Result<void>(); }}, told.over()));
    EXPECT_EQ(told.times, 0);
}

TEST(BlockingCall, IsMadeHereOrAside) {
    BlockingCalls calls;
    BlockingCall call;
    EXPECT_FALSE(call.take());
    const auto here = std::this_thread::get_id();
    for (const bool aside : {false, true}) {
        std::thread::id by;
        call.make(
            aside ? &calls : nullptr, [&] { return by = std::this_thread::get_id(), Result<void>(); }, 10s);
        EXPECT_FALSE(call.running());
        EXPECT_TRUE(call.take());
        EXPECT_FALSE(call.take());
        EXPECT_EQ(by != here, aside);
    }
    Held held;
    call.make(
        &calls, [&] { return held(), Result<void>(); }, 1ms);
    EXPECT_TRUE(call.running());
    EXPECT_FALSE(call.take());
    BlockingCall other;
    other.make(
        &calls, [] { return Result<void>(); }, 10s);
    EXPECT_TRUE(other.take()) << "none waits behind one that hangs";
    held.go_on = true;
    calls.wait();
    EXPECT_TRUE(call.take());
}

}  // namespace
}  // namespace sidestep::base
