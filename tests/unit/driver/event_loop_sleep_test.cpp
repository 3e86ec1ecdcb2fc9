// When the thread of an event loop sleeps, and when not.
#include <ctime>

#include "tests/unit/driver/event_loop_rig.hpp"

namespace sidestep::driver {
namespace {

// What woke it up is taken note of, and does not wake it again.
TEST(EventLoop, RestsWhileThereIsNothing) {
    for (const milliseconds awake : {milliseconds(0), milliseconds(1)}) {
        const Ends ends = make_ends();
        const auto loop = make_loop(awake);
        std::atomic<char> heard = '\0';
        const auto take = [&](EventLoop::Ready) { heard = hear(ends.one); };
        const auto id = loop->add(ends.one.get(), true, false, take).value();
        settle(*loop);
        say(ends.other);
        EXPECT_TRUE(comes([&] { return heard == 'x'; }));
        const std::clock_t start = std::clock();
        std::this_thread::sleep_for(milliseconds(300));
        EXPECT_LT(std::clock() - start, CLOCKS_PER_SEC / 10) << "of this process, in 300 ms";
        loop->remove(id);
    }
}

TEST(EventLoop, LooksAgainAndAgainWithoutAnEvent) {
    const Ends ends = make_ends();
    const auto loop = make_loop();
    std::atomic<int> looks = 0;
    std::atomic<int> others = 0;
    EventLoop::Id id = 0;
    const auto handler = [&](EventLoop::Ready ready) {
        ++(ready.look && !ready.in && !ready.out && !ready.ended ? looks : others);
        if (looks == 1000) loop->look_at(id, false);
    };
    id = loop->add(ends.one.get(), true, false, handler).value();
    settle(*loop);
    EXPECT_EQ(looks, 0);
    ASSERT_TRUE(loop->look_at(id, true));  // it sleeps
    EXPECT_TRUE(comes([&] { return looks == 1000; }));
    settle(*loop);
    EXPECT_EQ(looks, 1000);
    ASSERT_TRUE(loop->look_at(id, true));
    ASSERT_TRUE(loop->look_at(id, true));  // as once
    EXPECT_TRUE(comes([&] { return looks > 2000; }));
    loop->remove(id);
    const int seen = looks;
    const std::clock_t before = std::clock();  // of this process' processor time
    std::this_thread::sleep_for(milliseconds(400));
    EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 5) << "it does not sleep";
    EXPECT_EQ(looks, seen);
    EXPECT_FALSE(loop->look_at(id, true));
    EXPECT_EQ(others, 0);
}

}  // namespace
}  // namespace sidestep::driver
