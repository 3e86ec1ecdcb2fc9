// Every operation end to end through Group, on emulated GPUs within one process, against what it should give.
#include "tests/unit/group/ranks.hpp"

namespace sidestep::groups {
namespace {

class Operations : public GroupTest, public testing::WithParamInterface<int> {
protected:
    // `part(group, send, recv)` with `sends` and `recvs` values of i32; recv poisoned, send filled by rank.
    void each(std::vector<Group>& groups, std::size_t sends, std::size_t recvs,
              const std::function<Result<void>(Group&, int*, int*)>& part,
              const std::function<int(int, std::size_t)>& expected) {
        on_all(groups, [&](Group& group) {
            const Allocation send = allocate<int>(group, sends);
            const Allocation recv = allocate<int>(group, recvs);
            std::vector<int> given(sends + 1), wanted(recvs + 1);  // never null
            for (std::size_t i = 0; i < sends; ++i) given[i] = small_number(group.rank(), i);
            for (std::size_t i = 0; i < recvs; ++i) wanted[i] = expected(group.rank(), i);
            std::memcpy(send.address(), given.data(), sends * sizeof(int));
            // Twice: the second time the memory may be mapped by all.
            for (int round = 0; round < 2; ++round) {
                std::memset(recv.address(), poison & 0xff, recvs * sizeof(int));
                ASSERT_TRUE(ok(part(group, at<int>(send), at<int>(recv))));
                ASSERT_TRUE(ok(group.wait()));
                EXPECT_EQ(std::memcmp(recv.address(), wanted.data(), recvs * sizeof(int)), 0)
                    << "rank " << group.rank() << " of " << group.ranks() << ", round " << round;
                ASSERT_TRUE(ok(group.barrier()));
                ASSERT_TRUE(ok(group.wait()));
                ASSERT_TRUE(ok(group.attach(recv.buffer())));
                ASSERT_TRUE(ok(group.attach(send.buffer())));
            }
            ASSERT_TRUE(ok(group.barrier()));
            ASSERT_TRUE(ok(group.wait()));
        });
    }

    static constexpr int poison = 0x5a5a5a5a;
    const std::vector<std::size_t> counts{0, 1, 3, 1000, 70'001};
};

TEST_P(Operations, AllReduce) {
    auto groups = make(GetParam());
    const int n = GetParam();
    for (const std::size_t count : counts)
        each(
            groups, count, count,
            [&](Group& g, int* send, int* recv) { return g.all_reduce(send, recv, count, Dtype::i32); },
            [&](int, std::size_t i) {
                int sum = 0;
                for (int r = 0; r < n; ++r) sum += small_number(r, i);
                return sum;
            });
}

TEST_P(Operations, BroadcastAndReduce) {
    auto groups = make(GetParam());
    const int n = GetParam();
    const int root = n - 1;
    for (const std::size_t count : counts) {
        each(
            groups, count, count,
            [&](Group& g, int* send, int* recv) {
                return g.broadcast(g.rank() == root ? send : nullptr, recv, count, Dtype::i32, root);
            },
            [&](int, std::size_t i) { return small_number(root, i); });
        each(
            groups, count, count,
            [&](Group& g, int* send, int* recv) {
                return g.reduce(send, g.rank() == root ? recv : nullptr, count, Dtype::i32,
                                Reduction::of(ReduceOp::max), root);
            },
            [&](int rank, std::size_t i) {
                if (rank != root) return poison;
                int max = small_number(0, i);
                for (int r = 1; r < n; ++r) max = std::max(max, small_number(r, i));
                return max;
            });
    }
}

TEST_P(Operations, GathersAndScatters) {
    auto groups = make(GetParam());
    const int n = GetParam();
    const auto all = static_cast<std::size_t>(n);
    for (const std::size_t count : counts) {
        const auto block = [&](std::size_t i) {
            return std::pair(static_cast<int>(count == 0 ? 0 : i / count), count == 0 ? 0 : i % count);
        };
        each(
            groups, count, all * count,
            [&](Group& g, int* send, int* recv) { return g.all_gather(send, recv, count, Dtype::i32); },
            [&](int, std::size_t i) { return small_number(block(i).first, block(i).second); });
        each(
            groups, all * count, count,
            [&](Group& g, int* send, int* recv) { return g.reduce_scatter(send, recv, count, Dtype::i32); },
            [&](int rank, std::size_t i) {
                int sum = 0;
                for (int r = 0; r < n; ++r)
                    sum += small_number(r, static_cast<std::size_t>(rank) * count + i);
                return sum;
            });
        each(
            groups, count, all * count,
            [&](Group& g, int* send, int* recv) { return g.gather(send, recv, count, Dtype::i32, 0); },
            [&](int rank, std::size_t i) {
                return rank == 0 ? small_number(block(i).first, block(i).second) : poison;
            });
        each(
            groups, all * count, count,
            [&](Group& g, int* send, int* recv) { return g.scatter(send, recv, count, Dtype::i32, 0); },
            [&](int rank, std::size_t i) {
                return small_number(0, static_cast<std::size_t>(rank) * count + i);
            });
    }
}

TEST_P(Operations, AllToAll) {
    auto groups = make(GetParam());
    const auto all = static_cast<std::size_t>(GetParam());
    for (const std::size_t count : counts)
        each(
            groups, all * count, all * count,
            [&](Group& g, int* send, int* recv) { return g.all_to_all(send, recv, count, Dtype::i32); },
            [&](int rank, std::size_t i) {
                return small_number(static_cast<int>(i / count),
                                    static_cast<std::size_t>(rank) * count + i % count);
            });
}

// Rank a sends a + b + 1 times `unit` values to rank b.
TEST_P(Operations, AllToAllV) {
    auto groups = make(GetParam());
    const int n = GetParam();
    for (const std::size_t unit : {std::size_t{1}, std::size_t{501}}) {
        const Exchange exchange(n,
                                [&](int a, int b) { return static_cast<std::uint64_t>(a + b + 1) * unit; });
        const std::size_t max = static_cast<std::size_t>(2 * n) * static_cast<std::size_t>(n) * unit;
        each(
            groups, max, max,
            [&](Group& g, int* send, int* recv) {
                return g.all_to_all_v(send, recv, exchange.of(g.rank()), Dtype::i32);
            },
            [&](int rank, std::size_t i) {
                const auto source = exchange.source(rank, i);
                return source ? small_number(source->first, source->second) : poison;
            });
    }
}

// Around a ring, both ways at once.
TEST_P(Operations, SendAndReceive) {
    auto groups = make(GetParam());
    const int n = GetParam();
    for (const std::size_t count : {std::size_t{1}, std::size_t{30'001}})
        each(
            groups, count, 2 * count,
            [&](Group& g, int* send, int* recv) -> Result<void> {
                const int next = (g.rank() + 1) % n;
                const int before = (g.rank() + n - 1) % n;
                g.begin_calls();
                for (const int to : {next, before})
                    if (auto state = g.send(send, count, Dtype::i32, to); !state) return state;
                for (int i = 0; i < 2; ++i)
                    if (auto state = g.recv(recv + static_cast<std::size_t>(i) * count, count, Dtype::i32,
                                            i == 0 ? before : next);
                        !state)
                        return state;
                return g.end_calls();
            },
            [&](int rank, std::size_t i) {
                return small_number((rank + (i < count ? n - 1 : 1)) % n, i % count);
            });
}

// Small calls of one kind would run at once.
TEST_F(GroupTest, CallsTogetherThatTouchTheSameBytesAreRefused) {
    auto groups = make(2);
    constexpr std::size_t count = 100;
    on_all(groups, [&](Group& group) {
        const Allocation memory = allocate<int>(group, 6 * count);
        std::fill_n(at<int>(memory), 6 * count, 1);
        const auto place = [&](std::size_t element) { return at<int>(memory) + element; };
        const auto sum_both = [&](std::size_t second_from, std::size_t second_to) {
            group.begin_calls();
            EXPECT_TRUE(ok(group.all_reduce(place(count), place(2 * count), count, Dtype::i32)));
            EXPECT_TRUE(ok(group.all_reduce(place(second_from), place(second_to), count, Dtype::i32)));
            return group.end_calls();
        };
        struct {
            const char* what;
            std::size_t from, to;
        } const refused[] = {{"both write", 5 * count, 3 * count - 1},
                             {"the second reads what the first writes", 3 * count - 1, 5 * count},
                             {"the second writes what the first reads", 5 * count, 1}};
        for (const auto& one : refused) {
            const auto ended = sum_both(one.from, one.to);
            ASSERT_FALSE(ended.ok()) << one.what;
            EXPECT_EQ(ended.error().code, ErrorCode::invalid_argument) << one.what;
            EXPECT_NE(ended.error().message.find("made together"), std::string::npos)
                << ended.error().to_string();
        }
        EXPECT_TRUE(*group.idle());
        ASSERT_TRUE(ok(sum_both(count, 3 * count))) << "both may read the same";
        ASSERT_TRUE(ok(group.wait()));
        EXPECT_EQ(std::count(place(2 * count), place(4 * count), 2), 2 * count);
    });
}

class Refusals : public GroupTest {
protected:
    // Between two elements of the rank's own memory.
    static Result<void> to_itself(Group& group, int* memory) {
        group.begin_calls();
        if (auto state = group.send(memory, 1, Dtype::i32, group.rank()); !state) return state;
        if (auto state = group.recv(memory + 1, 1, Dtype::i32, group.rank()); !state) return state;
        return group.end_calls();
    }
};

// An emulated GPU takes no more than so many tasks that wait. The rank is not ahead of the others by those
// that it refused: or else the group would end once another rank has left in good order.
TEST_F(Refusals, CountForNothing) {
    auto groups = make(2, {std::chrono::minutes(5)});
    const Allocation left = allocate<int>(groups[0], 2);
    const Allocation right = allocate<int>(groups[1], 1);
    ASSERT_TRUE(ok(groups[0].recv(left.address(), 1, Dtype::i32, 1)));  // which holds up what follows
    Result<void> state;
    for (int i = 0; i < 100'000 && state; ++i) state = to_itself(groups[0], at<int>(left));
    ASSERT_FALSE(state.ok());
    EXPECT_EQ(state.error().code, ErrorCode::out_of_memory) << state.error().to_string();
    EXPECT_FALSE(groups[0].barrier().ok());
    ASSERT_TRUE(ok(groups[1].send(right.address(), 1, Dtype::i32, 0)));
    on_all(groups, [](Group& group) {
        ASSERT_TRUE(ok(group.wait()));
        ASSERT_TRUE(ok(group.barrier()));
        ASSERT_TRUE(ok(group.wait()));
    });
    groups.pop_back();
    EXPECT_FALSE(groups[0].split(0, 0).ok());  // and so rank 0 has heard of it
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_TRUE(ok(groups[0].status()));
    EXPECT_TRUE(ok(to_itself(groups[0], at<int>(left))));
    EXPECT_TRUE(ok(groups[0].wait()));
}

// A rank that has nothing to do with the others any more may leave before they come.
TEST_F(Refusals, NoneForBlocksOfNothing) {
    auto groups = make(3);
    groups.pop_back();
    on_all(groups, [this](Group& group) {
        EXPECT_FALSE(group.split(0, 0).ok());  // and so it has heard of it
        const Allocation memory = allocate<int>(group, 1);
        group.begin_calls();
        EXPECT_TRUE(ok(group.send(nullptr, 0, Dtype::i32, 2)));
        EXPECT_TRUE(ok(group.recv(nullptr, 0, Dtype::i32, 2)));
        EXPECT_TRUE(ok(group.rank() == 0 ? group.send(memory.address(), 1, Dtype::i32, 1)
                                         : group.recv(memory.address(), 1, Dtype::i32, 0)));
        EXPECT_TRUE(ok(group.end_calls()));
        EXPECT_TRUE(ok(group.wait()));
        const auto refused = group.send(memory.address(), 1, Dtype::i32, 2);
        ASSERT_FALSE(refused.ok());
        EXPECT_NE(refused.error().message.find("has left"), std::string::npos) << refused.error().to_string();
    });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Operations, testing::Values(1, 2, 3, 4, 8),
                         [](const auto& ranks) { return std::to_string(ranks.param); });

}  // namespace
}  // namespace sidestep::groups
