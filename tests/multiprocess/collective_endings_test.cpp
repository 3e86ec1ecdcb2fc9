// What the other ranks are told, and what stays, when one leaves, ends or forks.
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>

#include "tests/multiprocess/collective_groups.hpp"

namespace sidestep::multiprocess {
namespace {

// By leaving, or by exit(), as programs in Python end.
class Endings : public Groups, public testing::WithParamInterface<const char*> {
protected:
    void end(int rank) { EXPECT_EQ(peers[at(rank)]->tell(GetParam()), says("leave") ? "ok" : ""); }
    bool says(const std::string& way) const { return GetParam() == way; }
    std::string tell_one(int rank, const std::string& command) { return peers[at(rank)]->tell(command); }
    static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
};

// Sooner than its deadline, which is far away.
TEST_P(Endings, WhoReceivesIsToldThatNothingComes) {
    join(2, long_timeout);
    const std::string gone = process(1);
    EXPECT_EQ(tell_one(0, "pair recv 100 1"), "ok");
    end(1);
    expect_error({tell_one(0, "wait")},
                 {"rank 1 (" + gone + ", gpu:1) left the group before it sent what rank 0 (" + process(0) +
                      ", gpu:0) receives",
                  "in operation 1, send_recv with rank 1"});
}

TEST_P(Endings, WhoSendsIsToldThatNothingIsTaken) {
    join(2, long_timeout);
    EXPECT_EQ(tell_one(0, "pair send 100 1"), "ok");
    EXPECT_EQ(tell_one(1, "pair recv 100 0"), "ok");
    for (const int rank : {0, 1}) EXPECT_EQ(tell_one(rank, "wait"), "ok");
    EXPECT_EQ(tell_one(0, "pair send 500000 1"), "ok");
    const std::string gone = process(1);
    end(1);
    expect_error({tell_one(0, "wait")},
                 {"rank 1 (" + gone + ", gpu:1) left the group before it received what rank 0",
                  "in operation 2, send_recv with rank 1"});
}

// Nor is it an error to wait for another rank long after.
TEST_P(Endings, WhatWasSentBeforeArrives) {
    join(3, long_timeout);
    for (const int count : {10, 200'003})
        for (int turn = 0; turn < 2; ++turn) {
            EXPECT_EQ(tell_one(0, fmt::format("pair recv {} 1", count)), "ok");
            EXPECT_EQ(tell_one(1, fmt::format("pair send {} 0", count)), "ok");
        }
    EXPECT_EQ(tell_one(0, "pair recv 10 2"), "ok");
    EXPECT_EQ(tell_one(1, "wait"), "ok");
    // It waits some seconds for rank 0 to let go of its memory.
    const auto ends = std::async(std::launch::async, [&] { end(1); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // time to take it for missing
    EXPECT_EQ(tell_one(0, "status"), "ok");
    EXPECT_EQ(tell_one(2, "pair send 10 0"), "ok");
    EXPECT_EQ(tell_one(0, "wait"), "ok");
    ends.wait();
    std::string said = tell_one(0, "pair recv 10 1");
    if (said == "ok") said = tell_one(0, "wait");  // the news came after the call
    expect_error({said}, {"rank 1", "left the group"});
}

INSTANTIATE_TEST_SUITE_P(Ways, Endings, testing::Values("leave", "exit"));

// One that ends without having waited for what it enqueued: whoever is in it with that rank hears of it a second
// later, long before the deadline.
class EndingsWithin : public Groups {
protected:
    void SetUp() override {
        join(3, long_timeout);
        expect_all("checked 100 1", "ok");
        gone_ = process(1);
    }
    void tell(std::size_t rank, const std::string& command) { EXPECT_EQ(peers[rank]->tell(command), "ok"); }
    void expect_told(const std::string& operation) {
        const auto start = Clock::now();
        expect_error({peers[0]->tell("wait")},
                     {"rank 1 (" + gone_ + ", gpu:1) ended within operation", operation});
        EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
    }

private:
    std::string gone_;
};

TEST_F(EndingsWithin, ACollectiveThatOthersComeToLater) {
    tell(1, "run all_reduce 3000000 f32");
    EXPECT_EQ(peers[1]->tell("exit"), "");
    tell(0, "run all_reduce 3000000 f32");
    expect_told("all_reduce");
}

TEST_F(EndingsWithin, ASendThatTheOtherHasNotComeTo) {
    tell(0, "pair recv 100 2");  // which holds up what follows
    tell(0, "pair recv 3000000 1");
    tell(1, "pair send 3000000 0");
    EXPECT_EQ(peers[1]->tell("exit"), "");
    expect_told("send_recv with rank 0");
}

// What a rank shares stays its own, whatever a child does that it forked.
class Forks : public Groups, public testing::WithParamInterface<const char*> {};

TEST_P(Forks, TheGroupLivesOn) {
#if defined(__SANITIZE_ADDRESS__)
    GTEST_SKIP() << "a forked child looks for leaks as it exits, and finds the address sanitizer's locks as "
                    "threads of "
                    "its parent held them";
#endif
    join(2, long_timeout);
    expect_all("checked 100 1", "ok");
    // Waiting for threads that the child does not have would take two seconds each time.
    auto quickest = Clock::duration::max();
    for (int turn = 0; turn < 3; ++turn) {
        const auto start = Clock::now();
        expect_all(GetParam(), "ok");
        quickest = std::min(quickest, Clock::now() - start);
    }
    EXPECT_LT(quickest, std::chrono::seconds(2));
    const auto groups = running_groups(folder.path()).value();
    ASSERT_EQ(groups.size(), 1u);
    for (const RunningRank& rank : groups[0].ranks) EXPECT_TRUE(rank.alive);
    EXPECT_EQ(entries(), 1u);
    expect_all("checked 100 1", "ok");
    const std::string dead = process(0);
    EXPECT_EQ(peers[1]->tell("run barrier 0 f32"), "ok");
    peers[0]->kill();
    expect_error({peers[1]->tell("wait")}, {"rank 0 (" + dead + ", gpu:0) died"});
}

INSTANTIATE_TEST_SUITE_P(Ways, Forks, testing::Values("fork", "fork leave"));

// Their parent has not waited for them.
TEST_F(Groups, AZombieIsDead) {
    join(2, long_timeout);
    const auto make_zombie = [&](int rank) {
        const pid_t process = peers[static_cast<std::size_t>(rank)]->process();
        ::kill(process, SIGKILL);
        siginfo_t ended{};
        EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(process), &ended, WEXITED | WNOWAIT), 0);
    };
    make_zombie(0);
    const auto groups = running_groups(folder.path()).value();
    ASSERT_EQ(groups.size(), 1u);
    EXPECT_FALSE(groups[0].ranks[0].alive);
    EXPECT_TRUE(groups[0].ranks[1].alive);
    make_zombie(1);
    EXPECT_TRUE(running_groups(folder.path()).value().empty());
    EXPECT_EQ(entries(), 0u);
}

}  // namespace
}  // namespace sidestep::multiprocess
