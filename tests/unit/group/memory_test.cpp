// Which memory the ranks reach of each other: after its first use, attached, freed, given again.
#include <chrono>

#include "tests/unit/group/ranks.hpp"

namespace sidestep::groups {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t large = 1'100'000;  // neither packets nor lines any more

class Memory : public GroupTest {
protected:
    std::string where(const Group& group, const Allocation& send, const Allocation& recv,
                      std::size_t count = large) {
        const auto plan =
            group.explain(Collective::all_reduce, count, Dtype::i32, {}, send.address(), recv.address());
        EXPECT_TRUE(ok(plan));
        return plan ? plan->memory : "";
    }
    void all_reduce(Group& group, const Allocation& send, const Allocation& recv) {
        for (std::size_t i = 0; i < large; ++i) {
            at<int>(send)[i] = static_cast<int>(i) + group.rank();
            at<int>(recv)[i] = -1;
        }
        ASSERT_TRUE(ok(group.all_reduce(send.address(), recv.address(), large, Dtype::i32)));
        ASSERT_TRUE(ok(group.wait()));
        const int n = group.ranks();
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < large; ++i)
            wrong += at<int>(recv)[i] != n * static_cast<int>(i) + n * (n - 1) / 2;
        EXPECT_EQ(wrong, 0u);
    }
};

TEST_F(Memory, IsMappedByAllAfterItsFirstUse) {
    auto groups = make(3);
    on_all(groups, [&](Group& group) {
        const Allocation send = allocate<int>(group, large);
        const Allocation recv = allocate<int>(group, large);
        EXPECT_NE(where(group, send, recv).find("not yet"), std::string::npos);
        const auto start = Clock::now();
        all_reduce(group, send, recv);
        while (where(group, send, recv) != "yes" && Clock::now() - start < std::chrono::seconds(20))
            std::this_thread::yield();
        EXPECT_EQ(where(group, send, recv), "yes");
        ASSERT_TRUE(ok(group.barrier()));
        all_reduce(group, send, recv);
    });
}

// The root's buffers are one, and nothing that it sends lies where a block comes.
TEST_F(Memory, ARootInPlaceNeedsNoArena) {
    auto groups = make(2);
    on_all(groups, [&](Group& group) {
        const std::size_t count = 1 << 18;
        const Allocation memory = allocate<int>(group, 2 * count);
        ASSERT_TRUE(ok(group.attach(memory.buffer())));
        int* const all = at<int>(memory);
        int* const own = all + static_cast<std::size_t>(group.rank()) * count;
        for (std::size_t i = 0; i < count; ++i) own[i] = small_number(group.rank(), i);
        const auto plan = group.explain(Collective::gather, count, Dtype::i32, {}, own, all);
        ASSERT_TRUE(ok(plan));
        EXPECT_EQ(plan->algorithm + ": " + plan->memory, "pairs: yes");
        ASSERT_TRUE(ok(group.gather(own, all, count, Dtype::i32, 0)));
        ASSERT_TRUE(ok(group.wait()));
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < 2 * count && group.rank() == 0; ++i)
            wrong += all[i] != small_number(static_cast<int>(i / count), i % count);
        EXPECT_EQ(wrong, 0u);
    });
}

TEST_F(Memory, IsMappedByAllOnceAttached) {
    auto groups = make(4);
    on_all(groups, [&](Group& group) {
        const Allocation send = allocate<int>(group, large);
        const Allocation recv = allocate<int>(group, large);
        ASSERT_TRUE(ok(group.attach(send.buffer())));
        ASSERT_TRUE(ok(group.attach(recv.buffer().slice(1024, 4096))));  // part of it: the whole allocation
        EXPECT_EQ(where(group, send, recv), "yes");
        EXPECT_NE(where(group, send, recv, 1).find("packets"), std::string::npos);
        all_reduce(group, send, recv);
        ASSERT_TRUE(ok(group.attach(recv.buffer())));
        ASSERT_TRUE(ok(detach(group, recv.buffer())));
        EXPECT_EQ(where(group, send, recv), "yes");  // attached twice, detached once
        ASSERT_TRUE(ok(detach(group, recv.buffer())));
        EXPECT_NE(where(group, send, recv), "yes");
        EXPECT_FALSE(group.detach(recv.buffer()).ok());
        all_reduce(group, send, recv);
    });
}

// The other rank reads and writes there until the operation has ended.
TEST_F(Memory, IsDetachedOnlyWhenNoOperationIsUnderWay) {
    auto groups = make(2);
    const Allocation memory = allocate<int>(groups[0], large);
    const Allocation other = allocate<int>(groups[1], large);
    ASSERT_TRUE(ok(groups[0].attach(memory.buffer())));
    ASSERT_TRUE(ok(groups[0].all_reduce(memory.address(), memory.address(), large, Dtype::i32)));
    for (int call = 0; call < 2; ++call) {
        const auto early = groups[0].detach(memory.buffer());
        ASSERT_FALSE(early.ok());
        EXPECT_EQ(early.error().code, ErrorCode::timed_out) << early.error().to_string();
    }
    ASSERT_TRUE(ok(groups[1].all_reduce(other.address(), other.address(), large, Dtype::i32)));
    for (Group& group : groups) ASSERT_TRUE(ok(group.wait()));
    EXPECT_TRUE(ok(detach(groups[0], memory.buffer())));
    EXPECT_EQ(groups[0].detach(memory.buffer()).error().code, ErrorCode::invalid_argument);
}

TEST_F(Memory, OnlyOneRankAttaches) {
    auto groups = make(2);
    const Allocation memory = allocate<int>(groups[0], large);
    ASSERT_TRUE(ok(groups[0].attach(memory.buffer())));
    int outside = 0;
    EXPECT_FALSE(groups[0].attach(Buffer::gpu(0, &outside, 4)).ok());
    EXPECT_FALSE(groups[0].attach(Buffer::gpu(0, memory.address(), memory.size() + 1)).ok());
}

// The same address again, or another one: results are right in any case.
TEST_F(Memory, FreedAndGivenAgain) {
    auto groups = make(2);
    on_all(groups, [&](Group& group) {
        for (int round = 0; round < 6; ++round) {
            const Allocation send = allocate<int>(group, large + static_cast<std::size_t>(round % 3));
            const Allocation recv = allocate<int>(group, large);
            if (round % 2 == 0) {
                ASSERT_TRUE(ok(group.attach(recv.buffer())));
            }
            for (int i = 0; i < 3; ++i) all_reduce(group, send, recv);
        }
    });
}

TEST_F(Memory, MoreAllocationsThanThereAreSlots) {
    auto groups = make(2);
    on_all(groups, [&](Group& group) {
        for (int i = 0; i < 1100; ++i) {
            const Allocation memory = allocate<int>(group, 64);
            ASSERT_TRUE(ok(group.attach(memory.buffer()))) << i;
            ASSERT_TRUE(ok(detach(group, memory.buffer())));
        }
    });
}

TEST_F(Memory, MoreAllocationsAtOnceThanThereAreSlots) {
    auto groups = make(2);
    on_all(groups, [&](Group& group) {
        std::vector<Allocation> held;
        for (int i = 0; i < 1023; ++i) {
            held.push_back(allocate<int>(group, 64));
            ASSERT_TRUE(ok(group.attach(held.back().buffer()))) << i;
        }
        const Allocation more = allocate<int>(group, 64);
        const auto refused = group.attach(more.buffer());  // at once, not after the timeout
        ASSERT_FALSE(refused.ok());
        EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
        EXPECT_NE(refused.error().message.find("1023 allocations"), std::string::npos)
            << refused.error().to_string();
        const auto plan =
            group.explain(Collective::all_reduce, large, Dtype::i32, {}, more.address(), more.address());
        ASSERT_TRUE(ok(plan));
        EXPECT_NE(plan->memory.find("no, carried through the arena: 1023 allocations"), std::string::npos)
            << plan->memory;
        ASSERT_TRUE(ok(detach(group, held.front().buffer())));
        EXPECT_TRUE(ok(group.attach(more.buffer())));
    });
}

// A rank's own GPU reads it in place; the others get it through the arena, whatever the size.
TEST_F(Memory, PinnedHostMemoryIsNeverLent) {
    auto groups = make(2);
    on_all(groups, [&](Group& group) {
        auto pinned = context->allocate(Place::host(), large * sizeof(int));
        ASSERT_TRUE(ok(pinned));
        const Allocation recv = allocate<int>(group, large);
        for (int round = 0; round < 2; ++round) all_reduce(group, *pinned, recv);
        EXPECT_NE(where(group, *pinned, recv).find("no, carried through the arena: it is host memory"),
                  std::string::npos)
            << where(group, *pinned, recv);
        const auto attached = group.attach(pinned->buffer());
        ASSERT_FALSE(attached.ok());
        EXPECT_EQ(attached.error().code, ErrorCode::unsupported) << attached.error().to_string();
    });
}

// What is pushed is written in units of 16 bytes; elsewhere it passes through the arena, which is slower.
TEST_F(Memory, OffABoundaryOf16WhereSlicesArePushed) {
    auto groups = make(4);
    on_all(groups, [&](Group& group) {
        const Allocation memory = allocate<int>(group, 64);
        ASSERT_TRUE(ok(group.attach(memory.buffer())));
        for (const std::size_t shift : {0, 4, 8}) {
            const auto* at = static_cast<const char*>(memory.address()) + shift;
            const auto plan =
                group.explain(Collective::all_reduce, 64 << 20, Dtype::i32, {}, memory.address(), at);
            ASSERT_TRUE(ok(plan));
            EXPECT_EQ(plan->algorithm, "pushed slices");
            EXPECT_EQ(plan->memory,
                      shift == 0 ? "yes"
                                 : "send buffer: yes; receive buffer: no, carried through the arena: off "
                                   "a boundary of 16 bytes");
        }
    });
}

TEST_F(Memory, OfNobodyIsRefused) {
    auto groups = make(2);
    std::vector<int> plain(2 * large);
    on_all(groups, [&](Group& group) {
        const auto state = group.all_reduce(plain.data(), plain.data() + large, large, Dtype::i32);
        EXPECT_FALSE(state.ok());
        EXPECT_EQ(state.error().code, ErrorCode::invalid_argument) << state.error().to_string();
        EXPECT_TRUE(ok(group.status()));
    });
}

}  // namespace
}  // namespace sidestep::groups
