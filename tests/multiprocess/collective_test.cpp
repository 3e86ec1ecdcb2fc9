// Groups of several processes on emulated GPUs: that they work, and what the others hear when one dies,
// stops, stays away or does something else.
#include <signal.h>

#include <algorithm>
#include <cstdlib>

#include "tests/multiprocess/collective_groups.hpp"

namespace sidestep::multiprocess {
namespace {

TEST_F(Groups, EveryOperationOfFourProcesses) {
    join(4, long_timeout);
    expect_all("checked 5 2", "ok");
    expect_all("checked 100003 3", "ok");
    // More than packets and lines hold. After their first use all ranks have mapped the buffers.
    const auto start = Clock::now();
    std::string where;
    while (where != "yes" && Clock::now() - start < soon) {
        expect_all("checked 600003 2", "ok");
        where = peers[1]->tell("explain 600003");
    }
    EXPECT_EQ(where, "yes");
    expect_all("leave", "ok");
    expect_no_entries();
}

// By way of the arenas at first, and straight into each other's memory once all have mapped it.
TEST_F(Groups, CopiesOfThreeProcesses) {
    start(3);
    expect_all("zero_sm", "ok");
    for (const std::string& answer :
         tell([&](int rank) { return fmt::format("join {} {} 3 {}", id, rank, long_timeout); }))
        ASSERT_EQ(answer, "ok");
    const auto start = Clock::now();
    std::string where;
    while (where != "yes" && Clock::now() - start < soon) {
        expect_all("checked 30003 2", "ok");
        where = peers[1]->tell("explain 30003");
    }
    EXPECT_EQ(where, "yes");
    expect_all("checked 3 3", "ok");
    for (const int rank : {0, 1})
        EXPECT_EQ(peers[static_cast<std::size_t>(rank)]->tell("run all_gather 1000 i32"), "ok");
    const std::string dead = process(2);
    peers[2]->kill();
    expect_error(tell("wait", 2), {"rank 2", dead, "died"}, 2);
}

// How long a start takes, for docs/lab-book.md; how long it may take is no matter of this test.
TEST_F(Groups, MeasureTheStart) {
    constexpr int rounds = 20;
    start(4);
    // The slowest rank of each round, in microseconds, in order.
    const auto measure = [&](int ranks) {
        std::vector<long> times;
        for (int round = 0; round < rounds; ++round) {
            const std::string fresh = GroupId::create()->to_string();
            long slowest = 0;
            for (const std::string& answer : tell([&](int rank) {
                     const std::string own = ranks == 1 ? GroupId::create()->to_string() : fresh;
                     return fmt::format("time {} {} {} {}", own, ranks == 1 ? 0 : rank, ranks, long_timeout);
                 })) {
                EXPECT_GT(std::atol(answer.c_str()), 0) << answer;
                slowest = std::max(slowest, std::atol(answer.c_str()));
            }
            expect_all("leave", "ok");
            times.push_back(slowest);
        }
        std::sort(times.begin(), times.end());
        return times;
    };
    for (const int ranks : {4, 1}) {
        const auto times = measure(ranks);
        fmt::print("Group::join, 4 processes, {} of {} rank{}, the slowest: median of {} {} us [{} .. {}]\n",
                   ranks == 1 ? "4 groups" : "1 group", ranks, ranks == 1 ? "" : "s", rounds,
                   times[rounds / 2], times.front(), times.back());
    }
}

TEST_F(Groups, MemoryThatIsFreedAndGivenAgain) {
    join(2, long_timeout);
    expect_all("again 600003", "ok");
    expect_all("again 100", "ok");
}

// What another process has mapped stays allocated, also after it was freed.
TEST_F(Groups, MemoryIsLetGoOfWhenItIsDetached) {
    join(2, long_timeout);
    const std::string before = peers[1]->tell("mapped");
    ASSERT_EQ(peers[0]->tell("attach 600003 300"), "ok");
    EXPECT_EQ(peers[1]->tell("mapped"), std::to_string(std::stoi(before) + 300));
    ASSERT_EQ(peers[0]->tell("detach"), "ok");
    EXPECT_EQ(peers[1]->tell("mapped"), before);
}

TEST_F(Groups, MemoryIsLetGoOfWhenItIsFreed) {
    join(2, long_timeout);
    const std::string before = peers[1]->tell("mapped");
    ASSERT_EQ(peers[0]->tell("attach 600003 1"), "ok");
    ASSERT_EQ(peers[0]->tell("free 1"), "ok");
    const auto start = Clock::now();
    while (peers[1]->tell("mapped") != before && Clock::now() - start < soon)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(peers[1]->tell("mapped"), before);
    fmt::print("freed memory was let go of after {} us\n",
               (Clock::now() - start) / std::chrono::microseconds(1));
}

TEST_F(Groups, SplitAndShrink) {
    join(4, long_timeout);
    const auto made = tell([](int rank) { return fmt::format("split {} {}", rank % 2, -rank); });
    EXPECT_EQ(made, (std::vector<std::string>{"rank 1 of 2", "rank 1 of 2", "rank 0 of 2", "rank 0 of 2"}));
    expect_all("checked 3000 2", "ok");
}

TEST_F(Groups, KilledBeforeAnything) {
    join(3, long_timeout);
    const std::string gone = process(1);
    peers[1]->kill();
    const auto start = Clock::now();
    (void)tell("run all_reduce 100 f32", 1);
    expect_error(tell("wait", 1), {"rank 1", gone, "died; it had run no operation"}, 1);
    EXPECT_LT(Clock::now() - start, soon);
    expect_error(tell("run barrier 0 f32", 1), {"rank 1", "died"}, 1);
}

// The others wait in an operation that it never came to.
TEST_F(Groups, KilledBeforeItsFirstOperation) {
    join(3, long_timeout);
    for (const int rank : {0, 2})
        EXPECT_EQ(peers[static_cast<std::size_t>(rank)]->tell("run all_reduce 100 f32"), "ok");
    const std::string gone = process(1);
    peers[1]->kill();
    expect_error(tell("wait", 1),
                 {"rank 1 (" + gone + ", gpu:1) died; it had run no operation, and rank ",
                  "is in operation 1, all_reduce 100 f32 sum"},
                 1);
}

TEST_F(Groups, KilledWithinAnOperation) {
    join(4, long_timeout);
    expect_all("spin", "ok");  // the second answer comes when it ends
    await_operations();
    const std::string gone = process(2);
    peers[2]->kill();
    const auto start = Clock::now();
    // What spin said.
    expect_error(
        tell("status", 2),
        {"rank 2 (" + gone + ", gpu:2) died; its last one was operation ", ", all_reduce 30000 i32 sum"}, 2);
    EXPECT_LT(Clock::now() - start, soon);
}

// Rings: through the memory of GPUs that reach each other over PCIe, and through the host's where some do
// not.
class Rings : public Groups, public testing::WithParamInterface<std::pair<const char*, int>> {
protected:
    void SetUp() override { ::setenv(machine_variable, GetParam().first, 1); }
    void TearDown() override { ::unsetenv(machine_variable); }
    int ranks() const { return GetParam().second; }
    // Where a ring is taken, and no more than six processes under a sanitizer get through.
    std::size_t count() const { return ranks() == 4 ? 2'000'001 : 1'200'001; }
};

TEST_P(Rings, EveryOperation) {
    join(ranks(), long_timeout);
    const auto ways = tell(fmt::format("way {}", count()));
    const bool mesh = std::string(GetParam().first) == "pcie-2s";
    for (const std::string& way : ways) {
        EXPECT_EQ(way.find("ring: the quickest"), 0u) << way;
        EXPECT_EQ(way.find("the arenas lie in host memory: gpu:0 and gpu:5 have no peer access") ==
                      std::string::npos,
                  mesh)
            << way;
        EXPECT_EQ(way, ways[0]);
    }
    expect_all("checked 5 2", "ok");
    expect_all(fmt::format("checked {} 1", count()), "ok");
    expect_all("leave", "ok");
}

TEST_P(Rings, KilledWithinOne) {
    join(ranks(), long_timeout);
    expect_all(fmt::format("spin {}", count()), "ok");
    const std::string gone = process(2);
    peers[2]->kill();
    const auto start = Clock::now();
    expect_error(tell("status", 2), {"rank 2", gone, "died"}, 2);
    EXPECT_LT(Clock::now() - start, soon);
}

TEST_P(Rings, OneNeverComes) {
    join(ranks(), short_timeout);
    (void)tell(fmt::format("run all_reduce {} f32", count()), 1);
    expect_error(tell("wait", 1), {"rank 1", "did not come to operation 1, all_reduce"}, 1);
}

TEST_P(Rings, OneRunsSomethingElse) {
    join(ranks(), short_timeout);
    (void)tell(
        [&](int rank) { return fmt::format("run all_reduce {} {}", count(), rank == 1 ? "i32" : "f32"); });
    expect_error(tell("wait"), {"operation 1", "f32", "i32", process(1)});
}

INSTANTIATE_TEST_SUITE_P(Machines, Rings, testing::Values(std::pair("pcie-2s", 4), std::pair("dgx-1v", 6)));

TEST_F(Groups, ShrinkAfterADeath) {
    join(3, long_timeout);
    expect_all("checked 100 1", "ok");
    peers[0]->kill();
    expect_error(tell("wait", 0), {}, 0);
    const auto start = Clock::now();
    while (peers[1]->tell("status") == "ok" && Clock::now() - start < soon) {
    }
    const auto made = tell("shrink 0", 0);
    EXPECT_EQ(made[1], "rank 0 of 2");
    EXPECT_EQ(made[2], "rank 1 of 2");
    expect_all("checked 2000 2", "ok", 0);
}

TEST_F(Groups, KilledAfterItsLastOperation) {
    join(2, long_timeout);
    expect_all("checked 100 1", "ok");
    expect_all("leave", "ok");
    peers[0]->kill();
    EXPECT_EQ(peers[1]->tell(fmt::format("join {} 0 1 {}", GroupId::create()->to_string(), long_timeout)),
              "ok");
    EXPECT_EQ(peers[1]->tell("checked 100 1"), "ok");
}

TEST_F(Groups, KilledWhileOthersJoin) {
    start(3);
    auto first = std::async(std::launch::async,
                            [&] { return peers[0]->tell(fmt::format("join {} 0 3 {}", id, 10'000)); });
    auto second = std::async(std::launch::async,
                             [&] { return peers[1]->tell(fmt::format("join {} 1 3 {}", id, 10'000)); });
    std::this_thread::sleep_for(
        std::chrono::milliseconds(300));  // whether they have met by now or not, the end is an error
    peers[1]->kill();
    (void)second.get();
    const std::string answer = first.get();
    EXPECT_NE(answer.find("rank"), std::string::npos) << answer;
    EXPECT_NE(answer, "ok");
}

TEST_F(Groups, StoppedProcess) {
    join(2, short_timeout);
    expect_all("checked 100 1", "ok");
    peers[1]->stop();
    const auto start = Clock::now();
    EXPECT_EQ(peers[0]->tell("run all_reduce 1000 f32"), "ok");
    expect_error({peers[0]->tell("wait")},
                 {"rank 1", process(1), "did not come to operation", "all_reduce 1000 f32 sum",
                  fmt::format("within {} s", short_timeout / 1000)});
    EXPECT_LT(Clock::now() - start, soon);
    peers[1]->go_on();
    // It hears of it when it goes on.
    std::string state = "ok";
    const auto on = Clock::now();
    while (state == "ok" && Clock::now() - on < soon) state = peers[1]->tell("status");
    expect_error({state}, {"rank 1", "did not come"});
}

// Whoever gave up on the others does not wait for one that does not run to let go of its memory.
TEST_F(Groups, LeavesAStoppedProcessBehind) {
    join(2, long_timeout);
    expect_all("checked 100 1", "ok");
    peers[1]->stop();
    EXPECT_EQ(peers[0]->tell("abort"), "ok");
    const auto start = Clock::now();
    EXPECT_EQ(peers[0]->tell("leave"), "ok");
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(4));
    peers[1]->go_on();
    // It has nothing to wait for, and takes a moment to hear.
    const auto woken = Clock::now();
    while (peers[1]->tell("status") == "ok" && Clock::now() - woken < soon) {
    }
    expect_error({peers[1]->tell("status")}, {"rank 0", process(0), "aborted the group"});
    EXPECT_EQ(peers[1]->tell("leave"), "ok");
}

TEST_F(Groups, OneNeverCalls) {
    join(3, short_timeout);
    expect_all("run barrier 0 f32", "ok");
    expect_all("wait", "ok");
    (void)tell("run broadcast 50000 f32", 2);
    expect_error(
        tell("wait", 2),
        {"rank 2", process(2), "did not come to operation 2, broadcast 50000 f32 from rank 0", "barrier"}, 2);
}

TEST_F(Groups, OneRunsSomethingElse) {
    // What each runs, and how it is called.
    struct Drill {
        const char *ours, *said, *theirs, *said_of_theirs;
    };
    const std::vector<Drill> drills{
        {"all_reduce 1024 f32", "all_reduce 1024 f32 sum", "all_gather 512 f32", "all_gather 512 f32"},
        // Another count, type, algorithm, reduction, root.
        {"all_reduce 1024 f32", "all_reduce 1024 f32 sum", "all_reduce 1023 f32", "all_reduce 1023 f32 sum"},
        {"all_reduce 1024 f32", "all_reduce 1024 f32 sum", "all_reduce 1024 i32", "all_reduce 1024 i32 sum"},
        {"all_reduce 16 f32", "all_reduce 16 f32 sum", "all_reduce 4000000 f32",
         "all_reduce 4000000 f32 sum"},
        {"all_reduce 1024 f32", "all_reduce 1024 f32 sum", "all_reduce 1024 f32 max",
         "all_reduce 1024 f32 max"},
        {"reduce 99999 i32 min 1", "reduce 99999 i32 min to rank 1", "reduce 99999 i32 prod 1",
         "reduce 99999 i32 prod to rank 1"},
        {"broadcast 1024 f32", "broadcast 1024 f32 from rank 0", "broadcast 1024 f32 sum 1",
         "broadcast 1024 f32 from rank 1"},
        {"reduce 500000 f32 sum 0", "reduce 500000 f32 sum to rank 0", "reduce 500000 f32 sum 1",
         "reduce 500000 f32 sum to rank 1"},
    };
    start(2);
    for (const Drill& drill : drills) {
        const std::string fresh = GroupId::create()->to_string();
        const auto joined =
            tell([&](int rank) { return fmt::format("join {} {} 2 {}", fresh, rank, short_timeout); });
        EXPECT_EQ(joined[0] + joined[1], "okok");
        (void)tell([&](int rank) { return fmt::format("run {}", rank == 0 ? drill.ours : drill.theirs); });
        expect_error(tell("wait"), {"operation 1", drill.said, drill.said_of_theirs, process(0), process(1)});
        expect_all("leave", "ok");
    }
}

// Only the sender can see it: the receiver, and a rank that waits for something else, hear of it long before
// their deadline.
TEST_F(Groups, APairThatDisagreesOnItsBytes) {
    start(3);
    for (const auto& [sent, taken] :
         {std::pair(1000, 999), std::pair(100, 500'000), std::pair(500'000, 100)}) {
        const std::string fresh = GroupId::create()->to_string();
        for (const std::string& answer :
             tell([&](int rank) { return fmt::format("join {} {} 3 {}", fresh, rank, long_timeout); }))
            ASSERT_EQ(answer, "ok");
        expect_all("run barrier 0 f32", "ok");
        expect_all("wait", "ok");
        EXPECT_EQ(peers[1]->tell(fmt::format("pair recv {} 0", taken)), "ok");
        EXPECT_EQ(peers[2]->tell(fmt::format("pair recv {} 0", 10)), "ok");  // which is not coming
        EXPECT_EQ(peers[0]->tell(fmt::format("pair send {} 1", sent)), "ok");
        const auto start = Clock::now();
        expect_error(
            tell("wait"),
            {fmt::format("rank 0 ({}, gpu:0) sends {} bytes to rank 1 ({}, gpu:1), which expects {}, in "
                         "operation 2, send_recv with rank 1",
                         process(0), 4 * sent, process(1), 4 * taken)});
        EXPECT_LT(Clock::now() - start, soon);
        expect_all("leave", "ok");
    }
}

TEST_F(Groups, AbortEndsTheOthers) {
    join(3, long_timeout);
    (void)tell("run all_reduce 100000 f32", 0);  // rank 0 does not come
    const auto start = Clock::now();
    EXPECT_EQ(peers[0]->tell("abort the user pressed a key"), "ok");
    expect_error(tell("wait"), {"rank 0", process(0), "aborted the group", "the user pressed a key"});
    EXPECT_LT(Clock::now() - start, soon);
}

TEST_F(Groups, OneLeavesTooEarly) {
    join(2, long_timeout);
    EXPECT_EQ(peers[0]->tell("run all_reduce 100 f32"), "ok");
    EXPECT_EQ(peers[1]->tell("leave"), "ok");
    expect_error({peers[0]->tell("wait")},
                 {"rank 1", process(1), "left the group before operation 1, all_reduce 100 f32 sum"});
}

// As programs in Python do.
TEST_F(Groups, ExitsWithoutLeaving) {
    join(3, long_timeout);
    expect_all("checked 100 1", "ok");
    EXPECT_EQ(peers[1]->tell("exit"), "");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // time to take it for dead
    expect_all("status", "ok", 1);
    EXPECT_EQ(peers[0]->tell("run barrier 0 f32"), "ok");
    expect_error(tell("wait", 1), {}, 1);
    expect_error({peers[0]->tell("wait")},
                 {"rank 1", process(1), "left the group before operation 5, barrier"});
}

TEST_F(Groups, WhatIsSeenOfAGroupThatHangs) {
    join(3, long_timeout);
    expect_all("run barrier 0 f32", "ok");
    expect_all("wait", "ok");
    (void)tell("run all_gather 777 f32", 1);
    const auto start = Clock::now();
    std::vector<RunningGroup> groups;
    do {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        groups = running_groups(folder.path()).value();
        ASSERT_EQ(groups.size(), 1u);
        // One of the two may have waited long enough a moment before the other.
    } while (groups[0].stuck.find("ranks 0, 2") == std::string::npos && Clock::now() - start < soon);
    const RunningGroup& group = groups[0];
    EXPECT_EQ(group.name, "drill");
    EXPECT_EQ(group.id, id);
    ASSERT_EQ(group.ranks.size(), 3u);
    for (const RunningRank& rank : group.ranks) {
        EXPECT_EQ(rank.process, peers[static_cast<std::size_t>(rank.rank)]->process());
        EXPECT_TRUE(rank.alive);
        EXPECT_EQ(rank.place, fmt::format("gpu:{}", rank.rank));
        EXPECT_EQ(rank.enqueued, rank.rank == 1 ? 1u : 2u);
        EXPECT_EQ(rank.done, 1u);
        EXPECT_EQ(rank.last, rank.rank == 1 ? "barrier" : "all_gather 777 f32");
        EXPECT_EQ(rank.waiting_s > 0, rank.rank != 1);
        EXPECT_EQ(rank.error, "");
    }
    expect_error({group.stuck}, {"ranks 0, 2 wait for rank 1", process(1), "all_gather 777 f32"});
    // The dead leave nothing behind.
    for (auto& peer : peers) peer->kill();
    EXPECT_TRUE(running_groups(folder.path()).value().empty());
    EXPECT_EQ(entries(), 0u);
}

TEST_F(Groups, RanksThatDoNotFit) {
    start(2);
    // Another number of ranks.
    auto answers = tell([&](int rank) { return fmt::format("join {} {} {} 10000", id, rank, rank + 2); });
    expect_error(answers, {"ranks", "2", "3"});
    // The same rank twice.
    const std::string other = GroupId::create()->to_string();
    answers = tell([&](int) { return fmt::format("join {} 0 2 10000", other); });
    expect_error(answers, {"rank 0"});
    // One is missing.
    EXPECT_NE(peers[0]
                  ->tell(fmt::format("join {} 1 3 200", GroupId::create()->to_string()))
                  .find("rank 0, rank 2 did not come"),
              std::string::npos);
    EXPECT_EQ(entries(), 0u);
}

// Wherever it runs out of them: nobody has joined then, and the others say who was in their way.
TEST_F(Groups, ARankWithTooFewDescriptors) {
#if defined(__SANITIZE_ADDRESS__)
    GTEST_SKIP()
        << "the undefined behaviour sanitizer opens a pipe to look at an object, and takes it for broken "
           "where it cannot";
#endif
    start(3);
    int refused = 0;
    for (int more = 4; more < 64; ++more) {
        ASSERT_EQ(peers[1]->tell(fmt::format("descriptors {}", more)), "ok");
        const std::string fresh = GroupId::create()->to_string();
        const auto answers =
            tell([&](int rank) { return fmt::format("join {} {} 3 {}", fresh, rank, short_timeout); });
        if (answers[1] == "ok") {
            ASSERT_EQ(peers[1]->tell("descriptors 100"), "ok");
            expect_all("checked 100 1", "ok");
            break;
        }
        expect_error(answers, {"rank 1"}, 1);
        const std::string named = fmt::format("rank 1 ({}, gpu:1) cannot take part", process(1));
        refused += answers[0].find(named) != std::string::npos && answers[2].find(named) != std::string::npos;
    }
    EXPECT_GE(refused, 1);
}

// Memory that it cannot map goes by the arenas.
TEST_F(Groups, ARankThatRunsOutOfDescriptorsLater) {
#if defined(__SANITIZE_ADDRESS__)
    GTEST_SKIP()
        << "the undefined behaviour sanitizer opens a pipe to look at an object, and takes it for broken "
           "where it cannot";
#endif
    join(2, long_timeout);
    ASSERT_EQ(peers[1]->tell("descriptors 2"), "ok");
    for (const char* each : {"100 3", "300000 3", "3000000 1"})
        expect_all(fmt::format("checked {}", each), "ok");
    const std::string how = peers[0]->tell("explain 3000000");
    EXPECT_NE(how.find("may open no more files"), std::string::npos) << how;
}

// Also one that comes when the others have failed.
TEST_F(Groups, ALateRankHearsWhoCannotTakePart) {
#if defined(__SANITIZE_ADDRESS__)
    GTEST_SKIP()
        << "the undefined behaviour sanitizer opens a pipe to look at an object, and takes it for broken "
           "where it cannot";
#endif
    start(3);
    ASSERT_EQ(peers[1]->tell("descriptors 3"), "ok");
    const auto come = [&](int rank) {
        return peers[static_cast<std::size_t>(rank)]->tell(
            fmt::format("join {} {} 3 {}", id, rank, long_timeout));
    };
    auto second = std::async(std::launch::async, come, 1);
    const std::string named = fmt::format("rank 1 ({}, gpu:1) cannot take part", process(1));
    EXPECT_NE(come(0).find(named), std::string::npos);
    EXPECT_NE(come(2).find(named), std::string::npos);
    expect_error({second.get()}, {"ulimit -n"});
}

}  // namespace
}  // namespace sidestep::multiprocess
