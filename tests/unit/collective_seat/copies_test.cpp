// Copies straight to where blocks belong and, in several pieces, by way of the arena; blocks of all lengths
// at once.
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "jobs.hpp"
#include "tests/contents.hpp"

namespace sidestep::collective_seat::copies {
namespace {

using protocol::CollectiveTask;
using protocol::FaultKind;
using protocol::FaultRecord;
using protocol::Shape;

constexpr std::uint64_t deadline_ns = 30'000'000'000;
constexpr std::size_t sends_at = 4096;

using Sizes = std::vector<std::vector<std::uint64_t>>;  // from rank a to rank b

struct Case {
    unsigned ranks;
    bool mapped;  // the others reach the receive buffers, all but that of rank 1
};

class Copies : public testing::TestWithParam<Case> {
protected:
    unsigned n() const { return GetParam().ranks; }
    void open(std::size_t half) {
        half_ = half;
        crew_ = std::make_unique<Crew>(n(), deadline_ns, sends_at + 2 * half);
        if (!crew_->ready()) GTEST_SKIP() << "there are fewer than " << n() << " GPUs";
        if (!has_room(*crew_, {.shape = Shape::copies}))
            GTEST_SKIP() << n() << " ranks are too many for the queues of so few GPUs";
    }

    static std::uint64_t sum(const Sizes& sizes, unsigned rank, unsigned until, bool sends) {
        std::uint64_t bytes = 0;
        for (unsigned r = 0; r < until; ++r) bytes += sends ? sizes[rank][r] : sizes[r][rank];
        return bytes;
    }

    // As far as bytes come, and a page behind them.
    std::size_t looked_at(const Sizes& sizes, unsigned rank) const {
        return std::min<std::size_t>(half_, sum(sizes, rank, n(), false) + 4096);
    }

    CollectiveTask task(const Sizes& sizes, unsigned rank) const {
        CollectiveTask task;
        task.shape = Shape::copies;
        task.signature = 21;
        task.send = crew_->at(rank, sends_at);
        task.recv = crew_->at(rank, sends_at + half_);
        for (unsigned r = 0; r < n(); ++r) {
            task.to[r] = {sum(sizes, rank, r, true), sizes[rank][r]};
            task.from[r] = {sum(sizes, rank, r, false), sizes[r][rank]};
            if (GetParam().mapped && rank != 1)
                task.from_tokens[r] = {1, sends_at + half_ + task.from[r].offset};
        }
        return task;
    }

    // Under a sanitizer memory that is new costs more than all that is done with it: the values keep theirs.
    void fill(const Sizes& sizes, bool in_place = false) {
        given_.resize(n());
        for (unsigned rank = 0; rank < n(); ++rank) {
            Values& values = given_[rank];
            values.resize(sum(sizes, rank, n(), true));
            test::fill(values.data(), values.size(), random_());
            const std::size_t there = in_place ? values.size() : 0;
            crew_->fill(rank, sends_at + half_ + there, looked_at(sizes, rank) - there, 'x');
            crew_->write(rank, in_place ? sends_at + half_ : sends_at, values);
        }
    }

    void expect_moved(const Sizes& sizes) {
        for (unsigned rank = 0; rank < n(); ++rank) {
            std::size_t at = 0;
            for (unsigned r = 0; r < n(); at += sizes[r][rank], ++r)
                EXPECT_TRUE(crew_->holds(rank, sends_at + half_ + at,
                                         {given_[r].data() + sum(sizes, r, rank, true), sizes[r][rank]}))
                    << "from rank " << r << " to " << rank;
            const Values behind(looked_at(sizes, rank) - at, 'x');
            EXPECT_TRUE(crew_->holds(rank, sends_at + half_ + at, behind)) << "behind, at rank " << rank;
        }
    }

    void check(const Sizes& sizes) {
        fill(sizes);
        std::vector<CollectiveTask> tasks;
        for (unsigned rank = 0; rank < n(); ++rank) tasks.push_back(task(sizes, rank));
        crew_->run(tasks);
        expect_moved(sizes);
    }

    std::size_t half_ = 0;
    std::unique_ptr<Crew> crew_;
    std::vector<Values> given_;
    Random random_{5};
};

TEST_P(Copies, BlocksOfAllSizes) {
    open(1 << 20);
    if (IsSkipped()) return;
    for (unsigned round = 0; round < 20; ++round) {
        Sizes sizes(n(), std::vector<std::uint64_t>(n()));
        for (auto& row : sizes)
            for (auto& size : row) size = random_() % 3 == 0 ? 0 : random_() % 9000;
        check(sizes);
    }
}

// One rank sends pieces to all others, another one an odd piece back: the rest of the pairs have had enough
// by then.
TEST_P(Copies, SeveralPieces) {
    const std::uint64_t lane = protocol::ArenaLayout{n()}.copy_lane_bytes();
    open((n() - 1) * (3 * lane + 5) + 4096);
    if (IsSkipped()) return;
    Sizes sizes(n(), std::vector<std::uint64_t>(n(), 3));
    for (unsigned r = 1; r < n(); ++r) sizes[0][r] = 3 * lane + r % 3;
    sizes[n() - 1][0] = lane + 1;
    for (unsigned again = 0; again < 2; ++again) check(sizes);
}

// All of them enqueued before the first has ended. Each hands on what the one before has brought.
TEST_P(Copies, OneTaskAfterTheOther) {
    constexpr std::uint64_t bytes = 512;
    constexpr unsigned tasks = 40;
    open(1 << 18);
    if (IsSkipped()) return;
    for (unsigned rank = 0; rank < n(); ++rank)
        crew_->fill(rank, sends_at, bytes, static_cast<char>('a' + rank));
    for (unsigned number = 0; number < tasks; ++number) {
        for (unsigned rank = 0; rank < n(); ++rank) {
            CollectiveTask task;
            task.shape = Shape::copies;
            task.signature = 3;
            task.number = number + 1;
            task.send = crew_->at(rank, sends_at + number * bytes);
            task.recv = crew_->at(rank, sends_at + (number + 1) * bytes);
            task.to[(rank + 1) % n()] = task.from[(rank + n() - 1) % n()] = {0, bytes};
            if (GetParam().mapped)
                task.from_tokens[(rank + n() - 1) % n()] = {1, sends_at + (number + 1) * bytes};
            crew_->start(rank, task);
        }
    }
    crew_->finish();
    for (unsigned rank = 0; rank < n(); ++rank) {
        const auto from = static_cast<char>('a' + (rank + n() * tasks - tasks) % n());
        EXPECT_TRUE(crew_->read(rank, sends_at + tasks * bytes, bytes) == Values(bytes, from))
            << "rank " << rank;
    }
}

// In place, of several pieces: each has gone before another one takes its place.
TEST_P(Copies, InPlaceOfSeveralPieces) {
    if (n() > 3) return;  // two ranks and three say as much
    const std::uint64_t bytes = 5 * protocol::ArenaLayout{n()}.copy_lane_bytes() / 2 + 3;
    open(n() * bytes);
    if (IsSkipped()) return;
    const Sizes sizes(n(), std::vector<std::uint64_t>(n(), bytes));
    for (unsigned again = 0; again < 2; ++again) {
        fill(sizes, true);
        std::vector<CollectiveTask> tasks;
        for (unsigned rank = 0; rank < n(); ++rank) {
            tasks.push_back(task(sizes, rank));
            tasks.back().send = tasks.back().recv;
            for (auto& token : tasks.back().from_tokens) token = {};
            tasks.back().to[rank] = tasks.back().from[rank] = {};
        }
        crew_->run(tasks);
        expect_moved(sizes);
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Copies,
                         testing::Values(Case{2, false}, Case{3, false}, Case{4, false}, Case{8, false},
                                         Case{2, true}, Case{3, true}, Case{4, true}, Case{8, true}),
                         [](const auto& tested) {
                             return fmt::format("{}{}", tested.param.ranks,
                                                tested.param.mapped ? "mapped" : "staged");
                         });

// A rank that was let go goes on to the end of its tasks: nobody may take that for what the rank had to say,
// nor write to the memory that it had offered.
TEST(CopyFaults, WhoWasLetGoTellsNobodyThatAPieceHasArrived) {
    Crew crew(2, 0);
    if (!crew.ready()) GTEST_SKIP() << "there are fewer than 2 GPUs";
    const auto task = [&](unsigned rank) {
        CollectiveTask made;
        made.shape = Shape::copies;
        made.signature = 9;
        made.send = crew.at(rank, sends_at);
        made.recv = crew.at(rank, 1 << 20);
        for (unsigned r = 0; r < 2; ++r) {
            made.to[r] = made.from[r] = {r * 5000u, 5000};
            made.from_tokens[r] = {1, (1u << 20) + r * 5000u};
        }
        return made;
    };
    crew.start(0, task(0));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    crew.seat(0).abort();
    ASSERT_TRUE(crew.wait_idle(0));
    for (unsigned rank = 0; rank < 2; ++rank) crew.fill(rank, 1 << 20, 10'000, 'x');
    crew.seat(1).set_deadline(100'000'000);
    crew.start(1, task(1));
    ASSERT_TRUE(crew.wait_idle(1));
    EXPECT_EQ(crew.seat(1).fault().value_or(FaultRecord{}).kind, FaultKind::timed_out);
    EXPECT_EQ(crew.read(0, 1 << 20, 10'000), Values(10'000, 'x'));
}

// One of the two sees it, the other one is let go by whoever looks after the group; here that is the
// deadline. What one sends more than the other one takes is never taken.
TEST(CopyFaults, SenderAndReceiverDisagreeOnTheSize) {
    for (const bool more_is_sent : {false, true}) {
        const std::uint64_t sent = more_is_sent ? 70'000 : 1000, taken = 71'000 - sent;
        Crew crew(2, 100'000'000);
        if (!crew.ready()) GTEST_SKIP() << "there are fewer than 2 GPUs";
        for (unsigned rank = 0; rank < 2; ++rank) {
            CollectiveTask task;
            task.shape = Shape::copies;
            task.signature = 9;
            task.number = 3;
            task.send = crew.at(rank, sends_at);
            task.recv = crew.at(rank, 1 << 20);
            (rank == 0 ? task.to[1] : task.from[0]) = {0, rank == 0 ? sent : taken};
            crew.fill(rank, 1 << 20, 70'000, 'x');
            crew.start(rank, task);
        }
        unsigned seen = 0;
        for (unsigned rank = 0; rank < 2; ++rank) {
            ASSERT_TRUE(crew.wait_idle(rank));
            const FaultRecord fault = crew.seat(rank).fault().value_or(FaultRecord{});
            if (fault.kind != FaultKind::size_mismatch) continue;
            ++seen;
            EXPECT_EQ(fault.peer, 1 - rank);
            EXPECT_EQ(fault.number, 3u);
            EXPECT_EQ(fault.bytes, rank == 0 ? sent : taken);
            EXPECT_EQ(fault.peer_bytes, rank == 0 ? taken : sent);
        }
        EXPECT_GE(seen, 1u);
        EXPECT_NE(crew.seat(1).fault().value_or(FaultRecord{}).kind, FaultKind::none);
    }
}

}  // namespace
}  // namespace sidestep::collective_seat::copies
