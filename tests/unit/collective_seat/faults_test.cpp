// What ends a task before its time, and what is said of it.
#include <gtest/gtest.h>

#include <thread>

#include <fmt/format.h>

#include "jobs.hpp"

namespace sidestep::collective_seat::faults {
namespace {

using protocol::CollectiveTask;
using protocol::Combine;
using protocol::Element;
using protocol::FaultKind;
using protocol::FaultRecord;
using protocol::Shape;

constexpr std::uint64_t never = 0;
constexpr std::uint64_t soon_ns = 100'000'000;
constexpr unsigned ranks = 3;

struct Kind {
    Shape shape;
    bool staged;
    std::uint64_t bytes = 4096;  // between any two ranks, whatever the shape
};
void PrintTo(const Kind& kind, std::ostream* out) {
    *out << name_of(kind.shape) << (kind.staged ? ", staged, " : ", ") << kind.bytes << " bytes";
}

class Faults : public testing::TestWithParam<Kind> {
protected:
    void open(std::uint64_t deadline_ns) {
        crew_ = std::make_unique<Crew>(ranks, deadline_ns);
        if (!crew_->ready()) GTEST_SKIP() << "there are fewer than 3 GPUs";
    }

    CollectiveTask task(unsigned rank, std::uint32_t signature, std::uint64_t number = 1) const {
        const std::uint64_t bytes = GetParam().bytes;
        CollectiveTask task;
        task.shape = GetParam().shape;
        task.element = Element::f32;
        if (task.shape != Shape::pairs && task.shape != Shape::copies) task.combine = Combine::sum;
        task.blocks = 2;
        task.signature = signature;
        task.number = number;
        task.send = crew_->at(rank, 4096);
        task.recv = crew_->at(rank, 1 << 20);
        if (!GetParam().staged) {
            task.send_token = {1, 4096};
            task.recv_token = {1, 1 << 20};
        }
        for (unsigned r = 0; r < ranks; ++r) {
            task.to[r] = {r * bytes, bytes};
            task.from[r] = {task.shape == Shape::packets || task.shape == Shape::lamport ? 0 : r * bytes,
                            bytes};
            if (!GetParam().staged) task.from_tokens[r] = {1, (1 << 20) + task.from[r].offset};
            task.slices[r] = even_slice(bytes / 4, r, ranks);
        }
        return task;
    }

    FaultRecord fault_of(unsigned rank) {
        EXPECT_TRUE(crew_->wait_idle(rank)) << "rank " << rank << " hangs";
        const auto fault = crew_->seat(rank).fault();
        EXPECT_TRUE(fault.has_value()) << "rank " << rank;
        return fault.value_or(FaultRecord{});
    }

    std::unique_ptr<Crew> crew_;
};

TEST_P(Faults, ARankThatNeverComes) {
    open(soon_ns);
    if (IsSkipped()) return;
    const auto began = std::chrono::steady_clock::now();
    crew_->start(0, task(0, 5, 42));
    crew_->start(2, task(2, 5, 42));
    for (const unsigned rank : {0u, 2u}) {
        const FaultRecord fault = fault_of(rank);
        EXPECT_EQ(fault.kind, FaultKind::timed_out) << to_string(fault);
        // On a busy machine rank 0 may be late for rank 2.
        EXPECT_TRUE(fault.peer == 1 || (rank == 2 && fault.peer == 0)) << to_string(fault);
        EXPECT_EQ(fault.number, 42u);
        EXPECT_EQ(fault.signature, 5u);
    }
    EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::nanoseconds(soon_ns));
}

TEST_P(Faults, ADeadlineThatIsSetWhileATaskWaits) {
    open(never);
    if (IsSkipped()) return;
    crew_->start(0, task(0, 5));
    crew_->start(2, task(2, 5));
    EXPECT_FALSE(crew_->seat(0).fault().has_value());
    EXPECT_FALSE(*crew_->seat(0).idle());
    for (const unsigned rank : {0u, 2u}) crew_->seat(rank).set_deadline(1'000'000);
    for (const unsigned rank : {0u, 2u}) EXPECT_EQ(fault_of(rank).kind, FaultKind::timed_out);
}

TEST_P(Faults, AnotherOperation) {
    // Of copies one sees it, and the others hear of it from whoever looks after the group: here they do not.
    const bool copies = GetParam().shape == Shape::copies;
    open(copies ? soon_ns : never);
    if (IsSkipped()) return;
    unsigned seen = 0;
    crew_->start(0, task(0, 0xaaaa));
    crew_->start(1, task(1, 0xbbbb));
    crew_->start(2, task(2, 0xaaaa));
    for (const unsigned rank : {0u, 1u, 2u}) {
        const bool differs = rank == 1;
        const FaultRecord fault = fault_of(rank);
        EXPECT_EQ(fault.signature, differs ? 0xbbbbu : 0xaaaau);
        if (copies && fault.kind == FaultKind::timed_out) continue;
        ++seen;
        EXPECT_EQ(fault.kind, FaultKind::mismatch) << to_string(fault);
        if (!differs) {
            EXPECT_EQ(fault.peer, 1u);
        }
        EXPECT_EQ(fault.peer_signature, differs ? 0xaaaau : 0xbbbbu);
    }
    EXPECT_GE(seen, 1u);
}

// Threads that wait for a factor, and those beside them that wait for elements, all leave.
TEST_P(Faults, AnotherOperationWhileFactorsAreAwaited) {
    if (GetParam().shape == Shape::pairs || GetParam().shape == Shape::copies) return;  // nothing is combined
    for (int round = 0; round < 5; ++round) {
        open(never);
        if (IsSkipped()) return;
        for (unsigned rank = 0; rank < ranks; ++rank) {
            CollectiveTask one = task(rank, rank == 1 ? 0xbbbb : 0xaaaa);
            one.combine = Combine::scaled_sum;
            one.scale = scale_code(Element::f32, 2);
            crew_->start(rank, one);
        }
        for (unsigned rank = 0; rank < ranks; ++rank) EXPECT_EQ(fault_of(rank).kind, FaultKind::mismatch);
    }
}

TEST_P(Faults, AbortFromAnotherThread) {
    open(never);
    if (IsSkipped()) return;
    for (unsigned i = 0; i < 3; ++i) crew_->start(0, task(0, 5, 7 + i));
    std::thread([&] { crew_->seat(0).abort(); }).join();
    const FaultRecord fault = fault_of(0);
    EXPECT_EQ(fault.kind, FaultKind::aborted);
    // Copies go on to the end of what is enqueued, and the host sees how far they are.
    EXPECT_GE(fault.number, 7u);
    EXPECT_LE(fault.number, GetParam().shape == Shape::copies ? 9u : 7u);
}

TEST_P(Faults, TasksAfterAFaultReturnAtOnceAndTheFirstFaultIsKept) {
    open(soon_ns);
    if (IsSkipped()) return;
    crew_->start(0, task(0, 5, 1));
    EXPECT_EQ(fault_of(0).number, 1u);
    crew_->seat(0).set_deadline(never);
    crew_->start(0, task(0, 6, 2));
    EXPECT_EQ(fault_of(0).number, 1u);
    crew_->seat(0).abort();
    crew_->start(0, task(0, 6, 3));
    EXPECT_EQ(fault_of(0).kind, FaultKind::timed_out);
}

TEST_P(Faults, ASeatThatWaitsCanBeDestroyed) {
    open(never);
    if (IsSkipped()) return;
    crew_->start(1, task(1, 5));
    crew_.reset();
}

INSTANTIATE_TEST_SUITE_P(Shapes, Faults,
                         testing::Values(Kind{Shape::packets, false}, Kind{Shape::lamport, false},
                                         Kind{Shape::packets_two_phase, false}, Kind{Shape::lines, false},
                                         Kind{Shape::slices, false}, Kind{Shape::slices, true},
                                         Kind{Shape::pushed_slices, false}, Kind{Shape::pairs, false},
                                         Kind{Shape::pairs, false, 100'000},
                                         Kind{Shape::pairs, true, 100'000}, Kind{Shape::ring, false}));
INSTANTIATE_TEST_SUITE_P(Copies, Faults, testing::Values(Kind{Shape::copies, false}));

CollectiveTask one_pair(Crew& crew, unsigned rank, std::uint64_t bytes) {
    CollectiveTask task;
    task.shape = Shape::pairs;
    task.signature = 9;
    task.number = 3;
    task.send = crew.at(rank, 4096);
    task.recv = crew.at(rank, 1 << 20);
    (rank == 0 ? task.to[1] : task.from[0]) = {0, bytes};
    task.from_tokens[0] = {1, 1 << 20};
    return task;
}

// The sender sees it, whatever is eager, and the receiver receives nothing: it is told by whoever looks after
// the group.
TEST(PairFaults, SenderAndReceiverDisagreeOnTheSize) {
    const std::uint64_t eager = protocol::ArenaLayout{2}.eager_payload();
    struct Sizes {
        std::uint64_t sent, expected;
    };
    for (const Sizes& sizes : {Sizes{1000, eager + 1}, Sizes{eager + 1, 1000}, Sizes{eager + 1, eager + 2},
                               Sizes{1000, 900}, Sizes{1000, eager}}) {
        SCOPED_TRACE(fmt::format("{} sent, {} expected", sizes.sent, sizes.expected));
        Crew crew(2, never);
        if (!crew.ready()) GTEST_SKIP() << "there are fewer than 2 GPUs";
        crew.start(0, one_pair(crew, 0, sizes.sent));
        crew.start(1, one_pair(crew, 1, sizes.expected));
        ASSERT_TRUE(crew.wait_idle(0));
        const FaultRecord fault = crew.seat(0).fault().value_or(FaultRecord{});
        EXPECT_EQ(fault.kind, FaultKind::size_mismatch) << to_string(fault);
        EXPECT_EQ(fault.peer, 1u);
        EXPECT_EQ(fault.number, 3u);
        EXPECT_EQ(fault.bytes, sizes.sent);
        EXPECT_EQ(fault.peer_bytes, sizes.expected);
        crew.seat(1).set_deadline(1'000'000);
        ASSERT_TRUE(crew.wait_idle(1));
        const FaultRecord other = crew.seat(1).fault().value_or(FaultRecord{});
        EXPECT_EQ(other.kind, FaultKind::timed_out) << to_string(other);
        EXPECT_EQ(other.peer, 0u);
    }
}

TEST(PairFaults, NobodySendsWhatIsExpected) {
    Crew crew(2, soon_ns);
    if (!crew.ready()) GTEST_SKIP() << "there are fewer than 2 GPUs";
    crew.start(0, one_pair(crew, 0, 0));
    crew.start(1, one_pair(crew, 1, 64));
    ASSERT_TRUE(crew.wait_idle(0) && crew.wait_idle(1));
    EXPECT_FALSE(crew.seat(0).fault().has_value());
    const FaultRecord fault = crew.seat(1).fault().value_or(FaultRecord{});
    EXPECT_EQ(fault.kind, FaultKind::timed_out);
    EXPECT_EQ(fault.peer, 0u);
}

TEST(PairFaults, ARanksOwnBlockOfTwoSizes) {
    Crew crew(2, soon_ns);
    if (!crew.ready()) GTEST_SKIP() << "there are fewer than 2 GPUs";
    CollectiveTask task = one_pair(crew, 0, 0);
    task.to[0] = {0, 16};
    task.from[0] = {0, 32};
    crew.start(0, task);
    ASSERT_TRUE(crew.wait_idle(0));
    const FaultRecord fault = crew.seat(0).fault().value_or(FaultRecord{});
    EXPECT_EQ(fault.kind, FaultKind::size_mismatch);
    EXPECT_EQ(fault.peer, 0u);
    EXPECT_EQ(fault.peer_bytes, 32u);
}

}  // namespace
}  // namespace sidestep::collective_seat::faults
