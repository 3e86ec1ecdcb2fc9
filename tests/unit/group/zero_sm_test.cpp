// Groups of the policy zero_sm, end to end on emulated GPUs: what copy engines carry, what is refused, and
// what ends a wait.
#include "tests/unit/group/ranks.hpp"

namespace sidestep::groups {
namespace {

int value(int rank, std::size_t i) {
    return static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 13) % 10007);
}

GroupOptions zero_sm(int timeout_ms = 30'000) {
    GroupOptions options;
    options.policy = GroupPolicy::zero_sm;
    options.timeout = std::chrono::milliseconds(timeout_ms + 1);  // not the default, which GroupTest replaces
    return options;
}

class ZeroSm : public GroupTest, public testing::WithParamInterface<int> {
protected:
    using Part = std::function<Result<void>(Group&, int*, int*)>;
    using Expected = std::function<int(int, std::size_t)>;

    // Several operations one after the other without a wait between them, each with values of its own, so
    // that none can pass with those of another one.
    void each(std::vector<Group>& groups, std::size_t sends, std::size_t recvs, const Part& part,
              const Expected& expected) {
        on_all(groups, [&](Group& group) {
            const Allocation send = allocate<int>(group, rounds * sends);
            const Allocation recv = allocate<int>(group, rounds * recvs);
            for (std::size_t i = 0; i < rounds * sends; ++i)
                at<int>(send)[i] = value(group.rank(), i % sends) + in_round(i / sends);
            for (std::size_t i = 0; i < rounds * recvs; ++i) at<int>(recv)[i] = untouched;
            for (std::size_t round = 0; round < rounds; ++round)
                ASSERT_TRUE(ok(part(group, at<int>(send) + round * sends, at<int>(recv) + round * recvs)));
            ASSERT_TRUE(ok(group.wait()));
            std::size_t wrong = 0;
            for (std::size_t i = 0; i < rounds * recvs; ++i) {
                const int wanted = expected(group.rank(), i % recvs);
                wrong += at<int>(recv)[i] != (wanted == untouched ? untouched : wanted + in_round(i / recvs));
            }
            EXPECT_EQ(wrong, 0u) << "rank " << group.rank() << " of " << group.ranks();
            ASSERT_TRUE(ok(group.barrier()));
            ASSERT_TRUE(ok(group.wait()));
        });
    }
    static int in_round(std::size_t round) { return static_cast<int>(round) * 100'000; }
    static constexpr std::size_t rounds = 3;
    static constexpr int untouched = -1;
    int n() const { return GetParam(); }
    std::size_t all() const { return static_cast<std::size_t>(GetParam()); }
    const std::vector<std::size_t> counts{1, 3, 1000, 70'001};
};

TEST_P(ZeroSm, Broadcast) {
    auto groups = make(n(), zero_sm());
    const int root = n() - 1;
    // The last one is handed on in a second task.
    for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{300'001}})
        each(
            groups, count, count,
            [&](Group& g, int* send, int* recv) {
                return g.broadcast(g.rank() == root ? send : nullptr, recv, count, Dtype::i32, root);
            },
            [&](int, std::size_t i) { return value(root, i); });
}

TEST_P(ZeroSm, Gathers) {
    auto groups = make(n(), zero_sm());
    for (const std::size_t count : counts) {
        const auto joined = [&](std::size_t i) { return value(static_cast<int>(i / count), i % count); };
        each(
            groups, count, all() * count,
            [&](Group& g, int* send, int* recv) { return g.all_gather(send, recv, count, Dtype::i32); },
            [&](int, std::size_t i) { return joined(i); });
        each(
            groups, count, all() * count,
            [&](Group& g, int* send, int* recv) { return g.gather(send, recv, count, Dtype::i32, 0); },
            [&](int rank, std::size_t i) { return rank == 0 ? joined(i) : untouched; });
    }
}

TEST_P(ZeroSm, ScatterAndAllToAll) {
    auto groups = make(n(), zero_sm());
    for (const std::size_t count : counts) {
        each(
            groups, all() * count, count,
            [&](Group& g, int* send, int* recv) { return g.scatter(send, recv, count, Dtype::i32, 0); },
            [&](int rank, std::size_t i) { return value(0, static_cast<std::size_t>(rank) * count + i); });
        each(
            groups, all() * count, all() * count,
            [&](Group& g, int* send, int* recv) { return g.all_to_all(send, recv, count, Dtype::i32); },
            [&](int rank, std::size_t i) {
                return value(static_cast<int>(i / count), static_cast<std::size_t>(rank) * count + i % count);
            });
    }
}

TEST_P(ZeroSm, AllToAllV) {
    auto groups = make(n(), zero_sm());
    const Exchange exchange(n(), [](int a, int b) { return static_cast<std::uint64_t>((a + b) % 3) * 501; });
    each(
        groups, all() * 1002, all() * 1002,
        [&](Group& g, int* send, int* recv) {
            return g.all_to_all_v(send, recv, exchange.of(g.rank()), Dtype::i32);
        },
        [&](int rank, std::size_t i) {
            const auto source = exchange.source(rank, i);
            return source ? value(source->first, source->second) : untouched;
        });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ZeroSm, testing::Values(1, 2, 3, 4, 8),
                         [](const auto& ranks) { return std::to_string(ranks.param); });

class ZeroSmGroup : public GroupTest {};

TEST_F(ZeroSmGroup, ExplainTellsOfCopyEngines) {
    auto groups = make(4, zero_sm());
    const auto plan = groups[0].explain(Collective::all_gather, 1 << 20, Dtype::f32);
    ASSERT_TRUE(ok(plan));
    EXPECT_EQ(plan->algorithm, "copy engines");
    EXPECT_EQ(plan->blocks, 0);
    EXPECT_EQ(plan->memory.find("yes"), 0u) << plan->memory;
    const Allocation memory = allocate<int>(groups[0], 4 * 100);
    const auto memory_of = [&](Collective what, const void* send) {
        const auto with = groups[0].explain(what, 100, Dtype::i32, {}, send, memory.address());
        return with ? with->memory : with.error().to_string();
    };
    EXPECT_NE(memory_of(Collective::all_gather, nullptr).find("not yet: carried through the arena"),
              std::string::npos);
    EXPECT_EQ(memory_of(Collective::all_to_all, memory.address()),
              "no, carried through the arena: send and receive buffer are the same");
    ASSERT_TRUE(ok(groups[0].attach(memory.buffer())));
    EXPECT_EQ(memory_of(Collective::all_gather, nullptr).find("yes"), 0u)
        << memory_of(Collective::all_gather, nullptr);
    EXPECT_NE(plan->to_string().find("copy engines, no thread block, expected"), std::string::npos)
        << plan->to_string();
}

// Nothing of it is enqueued: the group goes on.
TEST_F(ZeroSmGroup, RefusesWhatCombines) {
    auto groups = make(2, zero_sm());
    on_all(groups, [&](Group& group) {
        const Allocation memory = allocate<int>(group, 64);
        const auto state = group.all_reduce(memory.address(), memory.address(), 64, Dtype::i32);
        ASSERT_FALSE(state.ok());
        EXPECT_EQ(state.error().code, ErrorCode::unsupported);
        EXPECT_NE(state.error().message.find("combines elements"), std::string::npos);
        EXPECT_EQ(group.send(memory.address(), 64, Dtype::i32, 1 - group.rank()).error().code,
                  ErrorCode::unsupported);
        ASSERT_TRUE(ok(group.barrier()));
        ASSERT_TRUE(ok(group.wait()));
    });
}

// They would wait for each other in every operation, each in an algorithm of its own.
TEST_F(ZeroSmGroup, RanksOfDifferentPoliciesAreTold) {
    const GroupId id = *GroupId::create();
    std::vector<std::thread> threads;
    for (const int rank : {0, 1})
        threads.emplace_back([&, rank] {
            GroupOptions options = zero_sm();
            if (rank == 0) options.policy = GroupPolicy::automatic;
            const auto joined = Group::join(*context, {id, rank, 2, Place::gpu(rank)}, options);
            ASSERT_FALSE(joined.ok());
            EXPECT_EQ(joined.error().code, ErrorCode::mismatch) << joined.error().to_string();
            EXPECT_NE(joined.error().message.find("policies"), std::string::npos);
        });
    for (std::thread& thread : threads) thread.join();
}

TEST_F(ZeroSmGroup, RanksThatCallAnotherCountAreTold) {
    auto groups = make(3, zero_sm());
    on_all(groups, [&](Group& group) {
        const Allocation memory = allocate<int>(group, 3 * 1000);
        const Allocation own = allocate<int>(group, 1000);
        const std::size_t count = group.rank() == 1 ? 1000 : 999;
        // The others may have seen it before this one calls.
        auto state = group.all_gather(own.address(), memory.address(), count, Dtype::i32);
        if (state) state = group.wait();
        ASSERT_FALSE(state.ok());
        EXPECT_EQ(state.error().code, ErrorCode::mismatch) << state.error().to_string();
        EXPECT_NE(state.error().message.find("all_gather 1000 i32"), std::string::npos)
            << state.error().message;
        EXPECT_NE(state.error().message.find("all_gather 999 i32"), std::string::npos)
            << state.error().message;
    });
}

TEST_F(ZeroSmGroup, ARankThatNeverComesIsNamed) {
    auto groups = make(3, zero_sm(3'000));
    on_all(groups, [&](Group& group) {
        if (group.rank() == 1) {
            const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
            while (group.status().ok() && std::chrono::steady_clock::now() < until)
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
        } else {
            if (group.barrier())
                static_cast<void>(group.wait());  // else the other one has been late for it already
        }
        const auto state = group.status();
        ASSERT_FALSE(state.ok());
        EXPECT_EQ(state.error().code, ErrorCode::timed_out);
        EXPECT_NE(state.error().message.find("rank 1"), std::string::npos) << state.error().message;
    });
}

TEST_F(ZeroSmGroup, AnAbortEndsTheWaitOfAll) {
    auto groups = make(2, zero_sm());
    const Allocation memory = allocate<int>(groups[0], 2 * 64);
    ASSERT_TRUE(ok(groups[0].all_gather(memory.address(), at<int>(memory), 64, Dtype::i32)));
    groups[1].abort("enough");
    EXPECT_EQ(groups[0].wait().error().code, ErrorCode::cancelled);
}

}  // namespace
}  // namespace sidestep::groups
