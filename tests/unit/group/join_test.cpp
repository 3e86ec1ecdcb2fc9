// Joining, leaving, splitting, failing: groups within one process.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <set>

#include "tests/unit/group/ranks.hpp"

namespace sidestep::groups {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

std::size_t lines_of(const char* path) {
    std::ifstream file(path);
    return static_cast<std::size_t>(std::count(std::istreambuf_iterator<char>(file), {}, '\n'));
}

struct Held {
    std::size_t descriptors = 0;
    std::size_t threads = 0;
    std::size_t maps = 0;
};

Held held() {
    Held now;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
        ++now.descriptors;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
        ++now.threads;
    now.maps = lines_of("/proc/self/maps");
    return now;
}

// Sanitizers take some fifty times as long for each.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int creations = 40;
#else
constexpr int creations = 1000;
#endif

class Joining : public GroupTest {
protected:
    void sum_once(std::vector<Group>& groups, std::size_t count = 100) {
        on_all(groups, [&](Group& group) {
            const Allocation memory = allocate<int>(group, count);
            for (std::size_t i = 0; i < count; ++i) at<int>(memory)[i] = group.rank() + 1;
            ASSERT_TRUE(ok(group.all_reduce(memory.address(), memory.address(), count, Dtype::i32)));
            ASSERT_TRUE(ok(group.wait()));
            EXPECT_EQ(at<int>(memory)[count - 1], group.ranks() * (group.ranks() + 1) / 2);
        });
    }

    // Ranks of one color make a group, which works.
    void split_and_sum(std::vector<Group>& groups, const std::vector<int>& colors) {
        std::vector<std::optional<Group>> parts(groups.size());
        on_all(groups, [&](Group& group) {
            const auto rank = static_cast<std::size_t>(group.rank());
            auto part = group.split(colors[rank], 0, {milliseconds(20'000)});
            ASSERT_TRUE(ok(part)) << "rank " << rank;
            parts[rank] = std::move(*part);
        });
        for (const int color : std::set<int>(colors.begin(), colors.end())) {
            std::vector<Group> made;
            for (std::size_t rank = 0; rank < groups.size(); ++rank)
                if (colors[rank] == color && parts[rank]) made.push_back(std::move(*parts[rank]));
            ASSERT_EQ(static_cast<long>(made.size()), std::count(colors.begin(), colors.end(), color));
            for (const Group& part : made) ASSERT_EQ(part.ranks(), static_cast<int>(made.size()));
            sum_once(made);
        }
    }

    // The groups of `ranks` go on without the others.
    void shrink_and_sum(std::vector<Group>& groups, const std::set<int>& ranks) {
        std::vector<int> excluded;
        for (const Group& group : groups)
            if (ranks.count(group.rank()) == 0) excluded.push_back(group.rank());
        std::vector<std::optional<Group>> parts(groups.size());
        on_all(groups, [&](Group& group) {
            if (ranks.count(group.rank()) == 0) return;
            auto part = group.shrink(excluded, {milliseconds(20'000)});
            ASSERT_TRUE(ok(part)) << "rank " << group.rank();
            parts[static_cast<std::size_t>(group.rank())] = std::move(*part);
        });
        std::vector<Group> made;
        for (auto& part : parts)
            if (part) made.push_back(std::move(*part));
        ASSERT_EQ(made.size(), ranks.size());
        sum_once(made);
    }
};

TEST_F(Joining, SaysWhoIsWho) {
    auto groups = make(4);
    ASSERT_EQ(groups.size(), 4u);
    for (int rank = 0; rank < 4; ++rank) {
        const Group& group = groups[static_cast<std::size_t>(rank)];
        EXPECT_EQ(group.rank(), rank);
        EXPECT_EQ(group.ranks(), 4);
        EXPECT_EQ(group.place(), Place::gpu(rank));
        EXPECT_EQ(group.id(), groups[0].id());
        EXPECT_TRUE(ok(group.status()));
        EXPECT_TRUE(*group.idle());
    }
    sum_once(groups);
}

TEST_F(Joining, ManyTimesWithoutLeavingAnything) {
    for (int i = 0; i < 5; ++i) {
        auto groups = make(2);
        sum_once(groups);
    }
    const Held before = held();
    for (int i = 0; i < creations; ++i) {
        auto groups = make(2);
        ASSERT_EQ(groups.size(), 2u);
        if (i % 10 == 0) sum_once(groups);
    }
    { auto groups = make(2); }  // a look at those that left before
    Held after = held();
    // Ranks that have left end in the background: some of the last ones may still be there.
    const auto start = Clock::now();
    const auto grown = [&] {
        return after.descriptors > before.descriptors + 8 || after.maps > before.maps + 32;
    };
    while (grown() && Clock::now() - start < std::chrono::seconds(20)) {
        std::this_thread::sleep_for(milliseconds(20));
        after = held();
    }
    EXPECT_LE(after.descriptors, before.descriptors + 8);
    EXPECT_LE(after.threads, before.threads + 8);
    EXPECT_LE(after.maps, before.maps + 32);
    EXPECT_EQ(folder.entries(), 0u);
}

// Programs take a GPU's context apart once they have left every group: nobody may work on it in the
// background then.
TEST_F(Joining, TheLastToLeaveWaitsForAllOfItsProcess) {
    for (int i = 0; i < 20; ++i) {
        {
            auto groups = make(3);
            sum_once(groups);
        }
        EXPECT_EQ(folder.entries(), 0u);
    }
}

TEST_F(Joining, LeavesNoFileBehind) {
    {
        auto groups = make(3);
        EXPECT_EQ(folder.entries(), 1u);  // the board
    }
    const auto start = Clock::now();
    while (folder.entries() > 0 && Clock::now() - start < std::chrono::seconds(20))
        std::this_thread::sleep_for(milliseconds(2));
    EXPECT_EQ(folder.entries(), 0u);
}

TEST_F(Joining, SeveralGroupsAtOnce) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([&, i] {
            auto groups = make(2 + i % 3);
            for (int round = 0; round < 5; ++round) sum_once(groups, 20'000);
        });
    for (std::thread& thread : threads) thread.join();
}

TEST_F(Joining, AStopThatWasAskedForBefore) {
    std::stop_source source;
    source.request_stop();
    const auto joined = Group::join(*context, {*GroupId::create(), 1, 2, Place::gpu(1)},
                                    {std::chrono::minutes(10)}, source.get_token());
    ASSERT_FALSE(joined.ok());
    EXPECT_EQ(joined.error().code, ErrorCode::cancelled);
}

TEST_F(Joining, AStopEndsSplitAndShrink) {
    auto groups = make(3, {std::chrono::minutes(1)});
    std::stop_source source;
    std::thread other([&] { source.request_stop(); });
    const auto part = groups[0].split(0, 0, {}, source.get_token());
    const auto fewer = groups[1].shrink({2}, {}, source.get_token());
    other.join();
    ASSERT_FALSE(part.ok());
    EXPECT_EQ(part.error().code, ErrorCode::cancelled);
    ASSERT_FALSE(fewer.ok());
    EXPECT_EQ(fewer.error().code, ErrorCode::cancelled);
    // The group itself goes on, and can be divided: nobody takes what was said before.
    sum_once(groups);
    split_and_sum(groups, {1, 1, 0});
    shrink_and_sum(groups, {0, 1});
    split_and_sum(groups, {0, 1, 0});
}

// Those that have called hear of it at once, and not after their own timeout.
TEST_F(Joining, AStopOfOneRankEndsTheSplitOfTheOthers) {
    auto groups = make(3, {std::chrono::minutes(10)});
    std::stop_source source;
    std::atomic<int> calling{0};
    const auto start = Clock::now();
    on_all(groups, [&](Group& group) {
        if (group.rank() == 2) {  // never calls
            while (calling < 2) std::this_thread::yield();
            std::this_thread::sleep_for(milliseconds(20));
            source.request_stop();
            return;
        }
        ++calling;
        const auto part =
            group.split(group.rank(), 0, {}, group.rank() == 0 ? source.get_token() : std::stop_token());
        ASSERT_FALSE(part.ok());
        EXPECT_EQ(part.error().code, ErrorCode::cancelled) << part.error().to_string();
        EXPECT_NE(part.error().message.find("rank 0"), std::string::npos) << part.error().to_string();
    });
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(60));
    split_and_sum(groups, {1, 0, 1});
}

TEST_F(Joining, ATimeoutOfASplitSpoilsNoOther) {
    auto groups = make(3, {milliseconds(3'000)});
    const auto part = groups[0].split(0, 0);
    ASSERT_FALSE(part.ok());
    EXPECT_EQ(part.error().code, ErrorCode::timed_out) << part.error().to_string();
    split_and_sum(groups, {1, 1, 0});
}

TEST_F(Joining, TimesThatNobodyLivesToSee) {
    for (const milliseconds timeout : {longest_limit, milliseconds(0)}) {
        auto groups = make(2, {timeout});
        ASSERT_EQ(groups.size(), 2u);
        sum_once(groups);
    }
}

TEST_F(Joining, RanksOfOneProcessInAnyOrder) {
    const GroupId id = *GroupId::create();
    std::vector<std::optional<Result<Group>>> joined(3);
    std::vector<std::thread> threads;
    for (const int rank : {2, 0, 1})
        threads.emplace_back([&, rank] {
            std::this_thread::sleep_for(milliseconds(10 * (2 - rank)));
            joined[static_cast<std::size_t>(rank)] =
                Group::join(*context, {id, rank, 3, Place::gpu(7 - rank)}, {milliseconds(20'000)});
        });
    for (std::thread& thread : threads) thread.join();
    for (const auto& one : joined) EXPECT_TRUE(ok(*one));
}

TEST_F(Joining, TheFewestThreadBlocksOfAllRanksCount) {
    for (const int fewest : {0, 2}) {
        const GroupId id = *GroupId::create();
        std::vector<std::optional<Result<Group>>> joined(2);
        std::vector<std::thread> threads;
        for (const int rank : {0, 1})
            threads.emplace_back([&, rank] {
                GroupOptions options{milliseconds(20'000)};
                options.max_blocks = rank == 1 ? fewest : 0;
                joined[static_cast<std::size_t>(rank)] =
                    Group::join(*context, {id, rank, 2, Place::gpu(rank)}, options);
            });
        for (std::thread& thread : threads) thread.join();
        for (const auto& one : joined) {
            ASSERT_TRUE(ok(*one));
            const auto plan = (*one)->explain(Collective::all_reduce, 1 << 24, Dtype::f32);
            ASSERT_TRUE(ok(plan));
            EXPECT_EQ(plan->blocks, fewest == 0 ? 4 : fewest) << plan->reason;
        }
    }
}

TEST_F(Joining, BadInput) {
    const GroupId id = *GroupId::create();
    const auto code = [&](const Seating& seating, const GroupOptions& options = {milliseconds(200)}) {
        const auto made = Group::join(*context, seating, options);
        return made ? ErrorCode{0} : made.error().code;
    };
    EXPECT_EQ(code({id, 0, 0, Place::gpu(0)}), ErrorCode::invalid_argument);
    EXPECT_EQ(code({id, 0, 17, Place::gpu(0)}), ErrorCode::invalid_argument);
    EXPECT_EQ(code({id, 2, 2, Place::gpu(0)}), ErrorCode::invalid_argument);
    EXPECT_EQ(code({id, -1, 2, Place::gpu(0)}), ErrorCode::invalid_argument);
    EXPECT_EQ(code({id, 0, 1, Place::host()}), ErrorCode::invalid_argument);
    EXPECT_EQ(code({id, 0, 1, Place::gpu(0)}, {milliseconds(-1)}), ErrorCode::invalid_argument);
    EXPECT_EQ(code({id, 0, 1, Place::gpu(0)}, {.max_blocks = -1}), ErrorCode::invalid_argument);
    EXPECT_NE(code({id, 0, 1, Place::gpu(99)}), ErrorCode{0});
    EXPECT_EQ(code({id, 0, 2, Place::gpu(0)}), ErrorCode::timed_out);
    EXPECT_FALSE(Group::local(*context, {}).ok());

    auto groups = make(2);
    const Allocation memory = allocate<int>(groups[0], 10);
    EXPECT_EQ(groups[0].broadcast(memory.address(), memory.address(), 10, Dtype::i32, 5).error().code,
              ErrorCode::invalid_argument);
    EXPECT_EQ(groups[0].all_reduce(nullptr, memory.address(), 10, Dtype::i32).error().code,
              ErrorCode::invalid_argument);
    EXPECT_EQ(groups[0].all_reduce(memory.address(), memory.address(), 10, Dtype::f4).error().code,
              ErrorCode::invalid_argument);
    EXPECT_EQ(groups[0].send(memory.address(), 10, Dtype::i32, 2).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(groups[0].end_calls().error().code, ErrorCode::invalid_argument);
    // Of sends and receives that are gathered, all run or none.
    groups[0].begin_calls();
    EXPECT_TRUE(ok(groups[0].send(memory.address(), 10, Dtype::i32, 1)));
    EXPECT_FALSE(groups[0].recv(memory.address(), std::size_t{1} << 62, Dtype::i32, 1).ok());
    EXPECT_FALSE(groups[0].recv(memory.address(), 10, Dtype::i32, 2).ok());
    const auto ended = groups[0].end_calls();
    ASSERT_FALSE(ended.ok());
    EXPECT_NE(ended.error().message.find("more bytes"), std::string::npos) << ended.error().to_string();
    EXPECT_TRUE(*groups[0].idle());
    groups[0].begin_calls();
    EXPECT_TRUE(ok(groups[0].end_calls()));
    EXPECT_EQ(groups[0].shrink({0}).error().code, ErrorCode::invalid_argument);
    EXPECT_TRUE(ok(groups[0].status()));  // a call that makes no sense ends nothing
    sum_once(groups);
}

TEST_F(Joining, ARankWithoutAGpuTellsTheOthers) {
    const auto made = Group::local(*context, {Place::gpu(0), Place::gpu(99)}, {milliseconds(20'000)});
    ASSERT_FALSE(made.ok());
    EXPECT_NE(made.error().message.find("gpu:99"), std::string::npos) << made.error().to_string();
    EXPECT_NE(made.error().message.find("rank 1"), std::string::npos) << made.error().to_string();
    // To them it has failed: they have made no mistake.
    EXPECT_EQ(made.error().code, ErrorCode::io_error);
}

TEST_F(Joining, SplitByColorAndKey) {
    auto groups = make(5);
    std::vector<std::optional<Group>> parts(5);
    on_all(groups, [&](Group& group) {
        auto part =
            group.split(group.rank() == 4 ? -1 : group.rank() % 2, -group.rank(), {milliseconds(20'000)});
        ASSERT_TRUE(ok(part));
        parts[static_cast<std::size_t>(group.rank())] = std::move(*part);
    });
    EXPECT_FALSE(parts[4].has_value());
    std::vector<Group> made;
    for (int rank = 0; rank < 4; ++rank) {
        ASSERT_TRUE(parts[static_cast<std::size_t>(rank)].has_value());
        EXPECT_EQ(parts[static_cast<std::size_t>(rank)]->ranks(), 2);
        EXPECT_EQ(parts[static_cast<std::size_t>(rank)]->rank(),
                  rank < 2 ? 1 : 0);  // the higher rank has the lower key
        made.push_back(std::move(*parts[static_cast<std::size_t>(rank)]));
    }
    sum_once(made);
    sum_once(groups);  // the old group goes on
}

TEST_F(Joining, ShrinkOfAGroupThatWasAborted) {
    auto groups = make(3);
    groups[1].abort("enough");
    std::vector<std::optional<Group>> parts(3);
    on_all(groups, [&](Group& group) {
        const auto start = Clock::now();
        while (group.status().ok() && Clock::now() - start < std::chrono::seconds(20))
            std::this_thread::yield();
        const auto state = group.barrier();
        ASSERT_FALSE(state.ok());
        EXPECT_NE(state.error().message.find("enough"), std::string::npos) << state.error().to_string();
        if (group.rank() == 1) return;
        auto part = group.shrink({1}, {milliseconds(20'000)});
        ASSERT_TRUE(ok(part));
        parts[static_cast<std::size_t>(group.rank())] = std::move(*part);
    });
    std::vector<Group> rest;
    for (const int rank : {0, 2}) {
        ASSERT_TRUE(parts[static_cast<std::size_t>(rank)].has_value());
        rest.push_back(std::move(*parts[static_cast<std::size_t>(rank)]));
    }
    EXPECT_EQ(rest[1].rank(), 1);
    sum_once(rest);
}

// Ranks that exclude others meet, however often each of them has done so with other ranks.
TEST_F(Joining, ShrinksOfOneGroupWithOtherExclusions) {
    auto groups = make(3);
    shrink_and_sum(groups, {0, 1});
    shrink_and_sum(groups, {0, 2});
    shrink_and_sum(groups, {0, 1});
    shrink_and_sum(groups, {1, 2});
    shrink_and_sum(groups, {0, 1, 2});
    sum_once(groups);
}

TEST_F(Joining, RanksThatExcludeDifferentOnes) {
    auto groups = make(3, {std::chrono::minutes(10)});
    const auto start = Clock::now();
    on_all(groups, [&](Group& group) {
        if (group.rank() == 2) return;
        const auto part = group.shrink(group.rank() == 0 ? std::vector<int>{2} : std::vector<int>{});
        ASSERT_FALSE(part.ok());
        EXPECT_EQ(part.error().code, ErrorCode::mismatch);
        EXPECT_NE(part.error().message.find("excludes other ranks"), std::string::npos)
            << part.error().to_string();
    });
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(60));
    shrink_and_sum(groups, {0, 1});
    shrink_and_sum(groups, {0, 1, 2});
}

TEST_F(Joining, AbortFromAnotherThreadEndsAWait) {
    auto groups = make(2);
    const Allocation memory = allocate<int>(groups[0], 100'000);
    ASSERT_TRUE(ok(groups[0].all_reduce(memory.address(), memory.address(), 100'000, Dtype::i32)));
    std::thread other([&] {
        std::this_thread::sleep_for(milliseconds(20));
        groups[0].abort();
    });
    const auto ended = groups[0].wait();
    other.join();
    ASSERT_FALSE(ended.ok());
    EXPECT_EQ(ended.error().code, ErrorCode::cancelled);
}

// Only the sender can see it; the receiver hears of it long before its deadline.
TEST_F(Joining, BytesThatAPairDisagreesOnEndBothEnds) {
    for (const bool lists : {false, true}) {
        auto groups = make(2, {std::chrono::minutes(10)});
        const Allocation left = allocate<int>(groups[0], 1000);
        const Allocation right = allocate<int>(groups[1], 1000);
        const std::uint64_t none[] = {0, 0};
        const std::uint64_t sent[] = {0, 10};
        const std::uint64_t taken[] = {11, 0};
        const auto start = Clock::now();
        if (lists) {
            ASSERT_TRUE(ok(groups[1].all_to_all_v(right.address(), at<int>(right) + 500,
                                                  {none, none, taken, none}, Dtype::i32)));
            ASSERT_TRUE(ok(groups[0].all_to_all_v(left.address(), at<int>(left) + 500,
                                                  {sent, none, none, none}, Dtype::i32)));
        } else {
            ASSERT_TRUE(ok(groups[1].recv(right.address(), 11, Dtype::i32, 0)));
            ASSERT_TRUE(ok(groups[0].send(left.address(), 10, Dtype::i32, 1)));
        }
        std::set<std::string> said;
        for (Group& group : groups) {
            const auto ended = group.wait();
            ASSERT_FALSE(ended.ok());
            EXPECT_EQ(ended.error().code, ErrorCode::mismatch);
            said.insert(ended.error().message);
        }
        EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
        ASSERT_EQ(said.size(), 1u);  // the same words on both
        for (const char* part :
             {"rank 0 (process ", "sends 40 bytes to rank 1 (process ", "which expects 44, in operation 1, "})
            EXPECT_NE(said.begin()->find(part), std::string::npos) << *said.begin() << "\nand not: " << part;
    }
}

// Tasks that are in the middle of it have given up by then, also those of the other rank, which reads this
// one's memory where it is.
TEST_F(Joining, BuffersMayBeFreedAfterAWaitThatFailed) {
    constexpr std::size_t count = 4 << 20;
    for (int round = 0; round < 20; ++round) {
        auto groups = make(2);
        std::vector<std::optional<Allocation>> buffers(2);
        on_all(groups, [&](Group& group) {
            auto& memory = buffers[static_cast<std::size_t>(group.rank())];
            memory = allocate<int>(group, count);
            ASSERT_TRUE(ok(group.attach(memory->buffer())));
        });
        on_all(groups, [&](Group& group) {
            auto& memory = buffers[static_cast<std::size_t>(group.rank())];
            for (int i = 0; i < 3; ++i)
                (void)group.all_reduce(memory->address(), memory->address(), count, Dtype::i32);
            if (group.rank() == 0) group.abort();
            const auto ended = group.wait();
            memory.reset();
            EXPECT_TRUE(group.rank() != 0 || !ended.ok());
        });
    }
}

// As ncclCommDestroy is called: in a plain loop, by one thread.
TEST_F(Joining, LeavesOneAfterTheOtherByOneThread) {
    auto groups = make(4);
    sum_once(groups);
    const auto start = Clock::now();
    for (int rank = 3; rank >= 0; --rank) groups.pop_back();
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
}

TEST_F(Joining, OperationsThatWereEnqueuedEndBeforeARankHasLeft) {
    auto groups = make(2);
    const Allocation left = allocate<int>(groups[0], 200'000);
    const Allocation right = allocate<int>(groups[1], 200'000);
    for (std::size_t i = 0; i < 200'000; ++i) at<int>(left)[i] = at<int>(right)[i] = 1;
    for (int round = 0; round < 4; ++round) {
        ASSERT_TRUE(ok(groups[0].all_reduce(left.address(), left.address(), 200'000, Dtype::i32)));
        ASSERT_TRUE(ok(groups[1].all_reduce(right.address(), right.address(), 200'000, Dtype::i32)));
    }
    groups.clear();
    EXPECT_EQ(at<int>(left)[199'999], 16);
    EXPECT_EQ(at<int>(right)[0], 16);
}

}  // namespace
}  // namespace sidestep::groups
