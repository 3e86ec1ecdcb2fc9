// A thread that waits for descriptors and times.
#include "driver/event_loop.hpp"

#include <fcntl.h>

#include <array>
#include <mutex>
#include <vector>

#include "tests/unit/driver/event_loop_rig.hpp"

namespace sidestep::driver {
namespace {

TEST(EventLoop, TellsWhatCanBeRead) {
    const Ends ends = make_ends();
    const auto loop = make_loop();
    std::atomic<int> calls = 0;
    std::atomic<bool> other = false;
    const auto id = loop->add(ends.one.get(), true, false, [&](EventLoop::Ready ready) {
        if (!ready.in || ready.out || ready.ended) other = true;
        EXPECT_EQ(hear(ends.one), 'x');
        ++calls;
    });
    ASSERT_TRUE(id.ok()) << id.error().to_string();
    settle(*loop);
    EXPECT_EQ(calls, 0);
    say(ends.other);
    EXPECT_TRUE(comes([&] { return calls == 1; }));
    say(ends.other);
    EXPECT_TRUE(comes([&] { return calls == 2; }));
    EXPECT_FALSE(other);
    loop->remove(*id);
    say(ends.other);
    settle(*loop);
    EXPECT_EQ(calls, 2);
}

// As long as a byte is left, and not only when it comes.
TEST(EventLoop, TellsItAgain) {
    const Ends ends = make_ends();
    const auto loop = make_loop();
    std::atomic<int> calls = 0;
    const auto id = loop->add(ends.one.get(), true, false, [&](EventLoop::Ready) { ++calls; });
    ASSERT_TRUE(id.ok());
    say(ends.other);
    EXPECT_TRUE(comes([&] { return calls > 10; }));
    loop->change(*id, false, false);
    settle(*loop);
    const int seen = calls;
    settle(*loop);
    EXPECT_EQ(calls, seen);
    loop->change(*id, true, false);
    EXPECT_TRUE(comes([&] { return calls > seen; }));
    loop->remove(*id);
}

TEST(EventLoop, TellsWhereThereIsRoom) {
    const Ends ends = make_ends();
    const auto loop = make_loop();
    std::atomic<int> rooms = 0;
    const auto id = loop->add(ends.one.get(), true, false, [&](EventLoop::Ready ready) {
        EXPECT_TRUE(ready.out);
        EXPECT_FALSE(ready.in);
        ++rooms;
    });
    ASSERT_TRUE(id.ok());
    settle(*loop);
    EXPECT_EQ(rooms, 0);
    loop->change(*id, false, true);
    EXPECT_TRUE(comes([&] { return rooms > 3; }));
    const std::string block(1 << 16, 'x');
    while (::write(ends.one.get(), block.data(), block.size()) > 0) continue;
    settle(*loop);
    const int full = rooms;
    settle(*loop);
    EXPECT_EQ(rooms, full);
    loop->remove(*id);
}

// Whoever waits for nothing hears of the end all the same.
TEST(EventLoop, TellsTheEnd) {
    Ends ends = make_ends();
    std::promise<EventLoop::Ready> told;
    std::promise<EventLoop::Id> id;
    const auto loop = make_loop();
    const auto handler = [&](EventLoop::Ready ready) {
        loop->remove(id.get_future().get());
        told.set_value(ready);
    };
    id.set_value(loop->add(ends.one.get(), false, false, handler).value());
    ends.other = Fd();
    auto future = told.get_future();
    ASSERT_EQ(future.wait_for(seconds(20)), std::future_status::ready);
    const EventLoop::Ready ready = future.get();
    EXPECT_TRUE(ready.ended);
    EXPECT_FALSE(ready.in);
    EXPECT_FALSE(ready.out);
}

// A pipe that is empty and has no writer says nothing but that.
TEST(EventLoop, TellsAReaderTheEndOfAPipe) {
    std::array<int, 2> found{-1, -1};
    ASSERT_EQ(::pipe2(found.data(), O_CLOEXEC | O_NONBLOCK), 0);
    const Fd reader(found[0]);
    Fd writer(found[1]);
    const auto loop = make_loop();
    std::atomic<bool> in = false;
    const auto id = loop->add(reader.get(), true, false, [&](EventLoop::Ready ready) { in = ready.in; });
    ASSERT_TRUE(id.ok());
    writer = Fd();
    EXPECT_TRUE(comes([&] { return in.load(); }));
    loop->remove(*id);
}

TEST(EventLoop, CallsWhatIsPostedInItsOrder) {
    const auto awake = milliseconds(1);  // also where it falls asleep
    const auto loop = make_loop(awake);
    std::vector<int> seen;
    std::thread::id thread;
    for (int i = 0; i < 100; ++i)
        EXPECT_TRUE(loop->post([&, i] { thread = std::this_thread::get_id(), seen.push_back(i); }));
    settle(*loop);
    ASSERT_EQ(seen.size(), 100u);
    for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], static_cast<int>(i));
    EXPECT_NE(thread, std::this_thread::get_id());
    for (int i = 0; i < 200; ++i, settle(*loop)) std::this_thread::sleep_for(awake);
}

// A task that posts itself again and again keeps no descriptor, no time and no remove() waiting.
TEST(EventLoop, CallsAllInTurn) {
    const Ends ends = make_ends();
    const auto loop = make_loop();
    std::atomic<int> heard = 0;
    std::atomic<int> ticks = 0;
    std::atomic<bool> enough = false;
    std::function<void()> again = [&] {
        if (!enough) loop->post(again);
    };
    ASSERT_TRUE(loop->post(again));
    const auto id = loop->add(ends.one.get(), true, false, [&](EventLoop::Ready) {
        hear(ends.one);
        ++heard;
    });
    const auto timer = loop->every(milliseconds(1), [&] { ++ticks; });
    say(ends.other);
    EXPECT_TRUE(comes([&] { return heard > 0 && ticks > 3; }));
    loop->remove(timer);
    loop->remove(*id);
    enough = true;
    settle(*loop);
}

TEST(EventLoop, CallsEveryPeriod) {
    const auto loop = make_loop();
    std::mutex mutex;
    std::vector<Clock::time_point> calls;
    // A slow one that was there first does not keep a quick one waiting.
    const auto slow = loop->every(seconds(3600), [] {});
    settle(*loop);
    const auto start = Clock::now();
    const auto id = loop->every(milliseconds(20), [&] {
        const std::lock_guard lock(mutex);
        calls.push_back(Clock::now());
    });
    const auto count = [&] {
        const std::lock_guard lock(mutex);
        return calls.size();
    };
    EXPECT_TRUE(comes([&] { return count() >= 5; }));
    loop->remove(id);
    const std::size_t after = count();
    for (std::size_t i = 0; i < after; ++i) EXPECT_GE(calls[i] - start, milliseconds(20) * (i + 1)) << i;
    std::this_thread::sleep_for(milliseconds(60));
    EXPECT_EQ(count(), after);
    loop->remove(slow);
}

// One that takes longer than its period runs again and again, and is not owed what it missed.
TEST(EventLoop, MakesUpForNothing) {
    const auto loop = make_loop();
    std::atomic<int> calls = 0;
    Clock::time_point first;
    Clock::time_point last;
    const auto id = loop->every(milliseconds(1), [&] {
        if (calls == 0) {
            std::this_thread::sleep_for(milliseconds(200));
            first = Clock::now();
        } else if (calls == 50) {
            last = Clock::now();
        }
        ++calls;
    });
    EXPECT_TRUE(comes([&] { return calls > 50; }));
    loop->remove(id);
    EXPECT_GE(last - first, milliseconds(40));
}

TEST(EventLoop, RemoveWaitsForWhatRuns) {
    const Ends ends = make_ends();
    const auto loop = make_loop();
    std::promise<void> begun;
    std::atomic<bool> ended = false;
    std::atomic<bool> gone = false;
    std::shared_ptr<int> held(new int(7), [&](int* number) {
        delete number;
        std::this_thread::sleep_for(milliseconds(50));
        gone = true;
    });
    const auto id = loop->add(ends.one.get(), true, false, [&, held](EventLoop::Ready) {
        begun.set_value();
        std::this_thread::sleep_for(milliseconds(100));
        ended = true;
    });
    ASSERT_TRUE(id.ok());
    say(ends.other);
    begun.get_future().wait();
    held.reset();
    loop->remove(*id);
    EXPECT_TRUE(ended);
    EXPECT_TRUE(gone) << "what the handler held";
    loop->remove(*id);
    loop->change(*id, true, true);
}

TEST(EventLoop, RemoveWaitsForATask) {
    const auto loop = make_loop();
    std::promise<void> begun;
    std::atomic<bool> ended = false;
    const auto id = loop->every(milliseconds(1), [&] {
        begun.set_value();
        std::this_thread::sleep_for(milliseconds(100));
        ended = true;
    });
    begun.get_future().wait();
    loop->remove(id);
    EXPECT_TRUE(ended);
}

// Another handler's call is none of its business.
TEST(EventLoop, RemoveWaitsForNoOther) {
    const auto loop = make_loop();
    const auto idle = loop->every(seconds(3600), [] {});
    std::promise<void> begun;
    std::promise<void> removed;
    std::atomic<bool> in_time = false, called = false;
    const auto id = loop->every(milliseconds(1), [&] {
        if (called.exchange(true)) return;
        begun.set_value();
        in_time = removed.get_future().wait_for(seconds(20)) == std::future_status::ready;
    });
    begun.get_future().wait();
    loop->remove(idle);
    removed.set_value();
    loop->remove(id);
    EXPECT_TRUE(in_time);
}

TEST(EventLoop, HandlersRemoveThemselves) {
    const Ends ends = make_ends();
    const auto loop = make_loop();
    std::atomic<int> calls = 0;
    EventLoop::Id id = 0;
    std::mutex mutex;
    const auto handler = [&](EventLoop::Ready) {
        const std::lock_guard lock(mutex);
        ++calls;
        loop->remove(id);
    };
    {
        const std::lock_guard lock(mutex);
        id = loop->add(ends.one.get(), true, false, handler).value();
    }
    say(ends.other);
    EXPECT_TRUE(comes([&] { return calls == 1; }));
    settle(*loop);
    EXPECT_EQ(calls, 1) << "although the byte is still there";
    // The descriptor may be added again, with another id.
    EXPECT_NE(loop->add(ends.one.get(), false, false, handler).value(), id);
}

// Both are ready at once; whichever is called first removes both, so that the other is not called any more.
TEST(EventLoop, HandlersRemoveEachOther) {
    const Ends a = make_ends();
    const Ends b = make_ends();
    say(a.other);
    say(b.other);
    const auto loop = make_loop();
    std::array<EventLoop::Id, 2> ids{};
    int calls = 0;
    // Added on the loop's thread, so that neither is called in between.
    ASSERT_TRUE(loop->post([&] {
        const auto handler = [&](EventLoop::Ready) {
            ++calls;
            for (const auto id : ids) loop->remove(id);
        };
        ids[0] = loop->add(a.one.get(), true, false, handler).value();
        ids[1] = loop->add(b.one.get(), true, false, handler).value();
    }));
    for (int i = 0; i < 5; ++i) settle(*loop);
    EXPECT_EQ(calls, 1);
}

TEST(EventLoop, HandlersUseTheLoop) {
    std::promise<void> done;
    EventLoop::Id id = 0;
    const auto loop = make_loop();
    ASSERT_TRUE(loop->post([&] {
        id = loop->every(milliseconds(5), [&] {
            loop->remove(id);
            loop->post([&] { loop->post([&] { done.set_value(); }); });
        });
    }));
    EXPECT_EQ(done.get_future().wait_for(seconds(20)), std::future_status::ready);
}

TEST(EventLoop, WatchesManyDescriptors) {
    constexpr std::size_t count = 500;
    std::vector<Ends> ends(count);
    for (Ends& pair : ends) pair = make_ends();
    const auto loop = make_loop();
    std::vector<std::atomic<int>> heard(count);
    std::vector<EventLoop::Id> ids;
    for (std::size_t i = 0; i < count; ++i)
        ids.push_back(loop->add(ends[i].one.get(), true, false,
                                [&, i](EventLoop::Ready) {
                                    while (hear(ends[i].one) != '\0') ++heard[i];
                                })
                          .value());
    for (int round = 1; round <= 3; ++round) {
        for (const Ends& pair : ends) say(pair.other);
        for (std::size_t i = 0; i < count; ++i)
            ASSERT_TRUE(comes([&] { return heard[i] == round; })) << i << ": " << heard[i];
    }
    for (const auto id : ids) loop->remove(id);
    for (const Ends& pair : ends) say(pair.other);
    settle(*loop);
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(heard[i], 3);
}

TEST(EventLoop, TellsWhatCannotBeWatched) {
    const auto loop = make_loop();
    const Ends ends = make_ends();
    const auto none = loop->add(-1, true, false, [](EventLoop::Ready) {});
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(none.error().where, "a loop of a test");
    ASSERT_TRUE(loop->add(ends.one.get(), true, false, [](EventLoop::Ready) {}).ok());
    const auto twice = loop->add(ends.one.get(), true, false, [](EventLoop::Ready) {});
    ASSERT_FALSE(twice.ok());
    EXPECT_EQ(twice.error().code, ErrorCode::invalid_argument);
}

// The task holds up the end until every other thread has been told of it.
TEST(EventLoop, EndsWhileOthersPost) {
    constexpr int threads = 4;
    auto loop = make_loop();
    EventLoop& reached = *loop;
    std::atomic<int> told = 0;
    std::atomic<long> posted = 0;
    std::atomic<long> called = 0;
    std::promise<void> begun;
    // Two at once, of which the second does not begin either.
    ASSERT_TRUE(loop->post([&] {
        reached.post([&] {
            begun.set_value();
            comes([&] { return told == threads; });
        });
        reached.post([&] { ++called; });
    }));
    begun.get_future().wait();
    std::vector<std::thread> posters;
    for (int i = 0; i < threads; ++i)
        posters.emplace_back([&] {
            while (reached.post([&] { ++called; })) ++posted;
            ++told;
        });
    EXPECT_TRUE(comes([&] { return posted > 100; }));
    loop.reset();
    for (std::thread& poster : posters) poster.join();
    EXPECT_EQ(told, threads);
    EXPECT_EQ(called, 0) << "what had not begun is dropped";
}

// What was dropped is let go of, and may call the loop as it goes.
TEST(EventLoop, LetsGoOfWhatItHolds) {
    auto loop = make_loop();
    EventLoop& reached = *loop;
    const Ends ends = make_ends();
    std::atomic<int> gone = 0;
    const auto make = [&] {
        return std::shared_ptr<int>(new int(7), [&](int* held) {
            delete held;
            EXPECT_FALSE(reached.post([] {}));
            ++gone;
        });
    };
    std::atomic<bool> stuck = true;
    std::promise<void> begun;
    ASSERT_TRUE(loop->post([&] {
        begun.set_value();
        comes([&] { return !stuck; });
    }));
    begun.get_future().wait();
    ASSERT_TRUE(loop->post([held = make()] {}));
    ASSERT_TRUE(loop->add(ends.one.get(), true, false, [held = make()](EventLoop::Ready) {}).ok());
    loop->every(seconds(3600), [held = make()] {});
    std::thread later([&] {
        comes([&] { return !reached.post([] {}); });
        stuck = false;
    });
    loop.reset();
    later.join();
    EXPECT_EQ(gone, 3);
}

TEST(EventLoopDeathTest, IsNotEndedFromAHandler) {
    testing::GTEST_FLAG(death_test_style) = "threadsafe";
    EXPECT_DEATH(
        {
            auto loop = make_loop();
            loop->post([&] { loop.reset(); });
            std::this_thread::sleep_for(seconds(20));
        },
        "from one of its handlers");
}

}  // namespace
}  // namespace sidestep::driver
