// What is seen of groups from outside.
#include <unistd.h>

#include <chrono>

#include "tests/unit/group/ranks.hpp"

namespace sidestep::groups {
namespace {

class Running : public GroupTest {
protected:
    // The one group, once `wanted` is true of it.
    RunningGroup seen(const std::function<bool(const RunningGroup&)>& wanted) {
        const auto start = std::chrono::steady_clock::now();
        for (;;) {
            auto found = running_groups(folder.path).value();
            const bool ended = std::chrono::steady_clock::now() - start > std::chrono::minutes(2);
            if (found.size() == 1 && (ended || wanted(found[0]))) {
                EXPECT_FALSE(ended) << found[0].stuck;
                return std::move(found[0]);
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
    }
    std::string stuck() {
        return seen([](const RunningGroup& group) { return !group.stuck.empty(); }).stuck;
    }
    static std::string process() { return "(process " + std::to_string(::getpid()) + ", "; }

    const GroupOptions patient{std::chrono::minutes(10)};
};

// "A since 3 s, B", whatever the number.
void expect_since(const std::string& said, const std::string& before, const std::string& behind) {
    EXPECT_TRUE(said.starts_with(before + " since ")) << said << "\nand not: " << before;
    EXPECT_TRUE(said.ends_with(" s, " + behind)) << said << "\nand not: " << behind;
}

TEST_F(Running, ShowsGroupsAndTheirOperations) {
    EXPECT_TRUE(running_groups(folder.path).value().empty());
    auto first = make(2, {std::chrono::milliseconds(20'000), GroupPolicy::automatic, "training"});
    auto second = make(3);
    on_all(first, [&](Group& group) {
        const Allocation memory = allocate<float>(group, 10);
        ASSERT_TRUE(ok(group.all_reduce(memory.address(), memory.address(), 10, Dtype::f32,
                                        Reduction::of(ReduceOp::max))));
        ASSERT_TRUE(ok(group.barrier()));
        ASSERT_TRUE(ok(group.broadcast(memory.address(), memory.address(), 7, Dtype::bf16, 1)));
        ASSERT_TRUE(ok(group.wait()));
    });
    // What a rank has done is there within some 10 ms.
    auto seen = running_groups(folder.path).value();
    const auto ended = [&] {
        for (const RunningGroup& group : seen)
            for (const RunningRank& rank : group.ranks)
                if (group.name == "training" && rank.done != 3) return false;
        return true;
    };
    for (int look = 0; look < 20'000 && !ended(); ++look) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        seen = running_groups(folder.path).value();
    }
    ASSERT_EQ(seen.size(), 2u);
    if (seen[0].name != "training") std::swap(seen[0], seen[1]);
    EXPECT_EQ(seen[0].name, "training");
    EXPECT_EQ(seen[0].id, first[0].id().to_string());
    EXPECT_EQ(seen[0].stuck, "");
    ASSERT_EQ(seen[0].ranks.size(), 2u);
    for (const RunningRank& rank : seen[0].ranks) {
        EXPECT_EQ(rank.enqueued, 3u);
        EXPECT_EQ(rank.done, 3u);
        EXPECT_EQ(rank.last, "broadcast 7 bf16 from rank 1");
        EXPECT_EQ(rank.waiting_s, 0);
        EXPECT_TRUE(rank.alive);
    }
    EXPECT_EQ(seen[1].name, second[0].id().to_string());
    EXPECT_EQ(seen[1].ranks.size(), 3u);
    EXPECT_EQ(seen[1].ranks[0].enqueued, 0u);
}

TEST_F(Running, ErrorsAreSeen) {
    auto groups = make(2);
    groups[0].abort("why not");
    const auto aborted =
        seen([](const RunningGroup& group) { return !group.ranks[0].error.empty(); }).ranks[0].error;
    EXPECT_NE(aborted.find("why not"), std::string::npos) << aborted;
}

// In order, and lives on.
TEST_F(Running, WhoLeftIsSeen) {
    auto groups = make(3, patient);
    groups.pop_back();
    const auto left = seen([](const RunningGroup& group) { return group.ranks[2].left; });
    EXPECT_TRUE(left.ranks[2].alive);
    EXPECT_EQ(left.ranks[2].process, ::getpid());
    EXPECT_FALSE(left.ranks[0].left);
    EXPECT_TRUE(left.ranks[0].alive);
}

// And not in the one that was enqueued last.
TEST_F(Running, TheWaitIsInTheFirstOperationThatHasNotEnded) {
    auto groups = make(3, patient);
    const Allocation memory = allocate<int>(groups[0], 100);
    for (std::size_t count = 11; count <= 15; ++count)
        ASSERT_TRUE(ok(groups[0].all_reduce(memory.address(), memory.address(), count, Dtype::i32)));
    expect_since(stuck(),
                 "rank 0 waits for rank 1 " + process() + "before its first operation), rank 2 " + process() +
                     "before its first operation)",
                 "in operation 1, all_reduce 11 i32 sum");
    groups[0].abort();
    EXPECT_FALSE(groups[0].wait().ok());
}

// Rank r gives r + 1, so that a sum is that of all of them.
TEST_F(Running, CallsThatShareALaunchAreOneOperation) {
    auto groups = make(3, patient);
    constexpr std::size_t count = 100;
    on_all(groups, [&](Group& group) {
        std::vector<Allocation> memory;
        group.begin_calls();
        for (int i = 0; i < 5; ++i) {
            memory.push_back(allocate<int>(group, 4 * count));
            std::fill_n(at<int>(memory.back()), 4 * count, group.rank() + 1 + i);
            int* const all = at<int>(memory.back());
            ASSERT_TRUE(ok(i < 4 ? group.all_reduce(all, all, count, Dtype::i32)
                                 : group.all_gather(all, all + count, count, Dtype::i32)));
        }
        ASSERT_TRUE(ok(group.end_calls()));
        ASSERT_TRUE(ok(group.wait()));
        for (int i = 0; i < 4; ++i)
            EXPECT_EQ(std::count(at<int>(memory[i]), at<int>(memory[i]) + count, 6 + 3 * i), count) << i;
        for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(at<int>(memory[4])[count * (1 + rank) + 7], rank + 5);
    });
    const auto after = seen([](const RunningGroup& now) { return now.ranks[0].done == 2; });
    EXPECT_EQ(after.ranks[0].enqueued, 2u);
    EXPECT_EQ(after.ranks[0].last, "all_gather 100 i32");
}

TEST_F(Running, RanksThatGatherOtherCallsAreTold) {
    auto groups = make(2, patient);
    const Allocation first = allocate<int>(groups[0], 100);
    const Allocation second = allocate<int>(groups[1], 100);
    groups[0].begin_calls();
    for (int i = 0; i < 2; ++i)
        ASSERT_TRUE(
            ok(groups[0].all_reduce(at<int>(first) + 50 * i, at<int>(first) + 50 * i, 50, Dtype::i32)));
    ASSERT_TRUE(ok(groups[0].end_calls()));
    ASSERT_TRUE(ok(groups[1].all_reduce(second.address(), second.address(), 50, Dtype::i32)));
    const auto failed = groups[0].wait();
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.error().code, ErrorCode::mismatch) << failed.error().to_string();
    for (const char* words : {"all_reduce 100 i32 sum of 2 calls", "all_reduce 50 i32 sum"})
        EXPECT_NE(failed.error().to_string().find(words), std::string::npos) << failed.error().to_string();
    (void)groups[1].wait();
}

TEST_F(Running, ALoneReceiverWaitsForItsSender) {
    auto groups = make(3, patient);
    const Allocation memory = allocate<int>(groups[0], 100);
    const Allocation others = allocate<int>(groups[1], 100);
    on_all(groups, [&](Group& group) {
        ASSERT_TRUE(ok(group.barrier()));
        ASSERT_TRUE(ok(group.wait()));
    });
    ASSERT_TRUE(ok(groups[0].recv(memory.address(), 10, Dtype::i32, 1)));
    expect_since(stuck(), "rank 0 waits for rank 1 " + process() + "idle after operation 1, barrier)",
                 "in operation 2, send_recv with rank 1");
    // Each of the two waits for the other one.
    ASSERT_TRUE(ok(groups[1].recv(others.address(), 10, Dtype::i32, 0)));
    const auto both = seen([](const RunningGroup& group) {
        return group.stuck.find("; rank 1 waits for rank 0 ") != std::string::npos;
    });
    EXPECT_NE(
        both.stuck.find("rank 0 waits for rank 1 " + process() + "in operation 2, send_recv with rank 0)"),
        std::string::npos)
        << both.stuck;
    groups[0].abort();
    for (Group& group : groups) (void)group.wait();
}

TEST_F(Running, WhatHasEndedIsSeenWhileMoreIsEnqueued) {
    auto groups = make(2, patient);
    for (int i = 0; i < 6; ++i) ASSERT_TRUE(ok(groups[0].barrier()));
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(ok(groups[1].barrier()));
    // Rank 0 has never been idle.
    const auto group = seen([](const RunningGroup& now) { return now.ranks[0].done == 5; });
    EXPECT_EQ(group.ranks[0].enqueued, 6u);
    expect_since(stuck(), "rank 0 waits for rank 1 " + process() + "at operation 5)",
                 "in operation 6, barrier");
    ASSERT_TRUE(ok(groups[1].barrier()));
    EXPECT_EQ(seen([](const RunningGroup& now) { return now.ranks[0].done == 6; }).stuck, "");
}

}  // namespace
}  // namespace sidestep::groups
