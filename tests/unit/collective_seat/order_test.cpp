// Many tasks one after the other, of mixed shapes, and counters that wrap around.
#include <gtest/gtest.h>

#include <algorithm>

#include "jobs.hpp"

namespace sidestep::collective_seat::order {
namespace {

using protocol::CollectiveTask;
using protocol::Combine;
using protocol::Element;
using protocol::Shape;

constexpr std::size_t sends_at = 4096;
constexpr unsigned max_count = 96;
constexpr std::size_t slot_bytes = max_count * 4;

// Task number `number` of a rank: adds up `count` of the rank's numbers, from one place on, into a place of
// its own.
struct Small {
    How how;
    std::uint64_t count = 0;
    std::uint64_t begin = 0;
};

class Order : public testing::TestWithParam<unsigned> {
protected:
    void SetUp() override {
        crew_ = std::make_unique<Crew>(GetParam(), std::uint64_t{30'000'000'000});
        if (!crew_->ready()) GTEST_SKIP() << "there are fewer than " << GetParam() << " GPUs";
        for (unsigned rank = 0; rank < n(); ++rank) {
            given_.push_back(some_values(Element::f32, Combine::sum, 4096, n(), random_));
            crew_->write(rank, sends_at, given_.back());
        }
    }
    unsigned n() const { return GetParam(); }
    std::size_t recv_at(std::size_t number) const { return crew_->heap_bytes() / 2 + number * slot_bytes; }

    std::vector<Small> some_tasks(std::size_t count) {
        std::vector<Small> tasks;
        for (std::size_t i = 0; i < count; ++i) {
            Small small{all_ways(Element::f32)[random_() % 6], random_() % max_count, random_() % 4000};
            small.how.blocks = 1 + random_() % 4;
            tasks.push_back(small);
        }
        return tasks;
    }

    CollectiveTask task(unsigned rank, std::size_t number, const Small& small) const {
        CollectiveTask task;
        task.shape = small.how.shape;
        task.blocks = static_cast<std::uint8_t>(small.how.blocks);
        task.element = Element::f32;
        task.combine = Combine::sum;
        task.number = number;
        task.signature = signature_of({}, small.count);
        const std::size_t send = sends_at + small.begin * 4;
        task.send = crew_->at(rank, send);
        task.recv = crew_->at(rank, recv_at(number));
        if (!small.how.staged) {
            task.send_token = {1, send};
            task.recv_token = {1, recv_at(number)};
        }
        for (unsigned r = 0; r < n(); ++r) {
            task.to[r] = task.from[r] = {0, small.count * 4};
            task.slices[r] = even_slice(small.count, r, n());
        }
        return task;
    }

    // All of them enqueued before the first result is looked at.
    void run(const std::vector<Small>& tasks) {
        for (std::size_t number = 0; number < tasks.size(); ++number) {
            for (unsigned rank = 0; rank < n(); ++rank) crew_->start(rank, task(rank, number, tasks[number]));
        }
        crew_->finish();
        for (std::size_t number = 0; number < tasks.size() && !HasFatalFailure(); ++number)
            check(number, tasks[number]);
    }

    void check(std::size_t number, const Small& small) {
        std::vector<Values> inputs;
        for (unsigned rank = 0; rank < n(); ++rank) {
            const auto begin = given_[rank].begin() + static_cast<std::ptrdiff_t>(small.begin * 4);
            inputs.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(small.count * 4));
        }
        const Values first = crew_->read(0, recv_at(number), small.count * 4);
        ASSERT_EQ(wrong_element(Element::f32, Combine::sum, inputs, {}, first), "")
            << "task " << number << to_string(small.how);
        for (unsigned rank = 1; rank < n(); ++rank) {
            ASSERT_EQ(crew_->read(rank, recv_at(number), first.size()), first)
                << "task " << number << ", rank " << rank;
        }
    }

    bool start_counters_at(std::uint64_t count) {
        bool done = true;
        for (unsigned rank = 0; rank < n(); ++rank)
            done = crew_->rig().start_counters_at(crew_->seat(rank), count) && done;
        return done;
    }

    Random random_{31};
    std::unique_ptr<Crew> crew_;
    std::vector<Values> given_;
};

TEST_P(Order, ThousandsOfMixedTasksInARow) {
    run(some_tasks(8000 / n()));
}

TEST_P(Order, CountersThatWrapAround) {
    for (const std::uint64_t start :
         {(std::uint64_t{1} << 30) - 5, (std::uint64_t{1} << 31) - 5, (std::uint64_t{1} << 32) - 40}) {
        if (!start_counters_at(start)) GTEST_SKIP() << "the counters cannot be set here";
        run(some_tasks(80));
        if (HasFailure()) return;
    }
}

// The flags and parities of the first tasks come back after twice 2^32 - 1 tasks. By then what those left has
// been wiped.
TEST_P(Order, NoOldPacketIsTakenForANewOne) {
    const auto several = [&](std::uint64_t count) {
        std::vector<Small> tasks;
        for (unsigned i = 0; i < 4; ++i) {
            tasks.push_back({{.shape = i / 2 == 0 ? Shape::packets : Shape::packets_two_phase},
                             count,
                             128 * i + 5 * count});
        }
        return tasks;
    };
    constexpr std::uint64_t comes_back = 2 * std::uint64_t{0xffffffff};
    if (!start_counters_at(2)) GTEST_SKIP() << "the counters cannot be set here";
    run(several(max_count));  // epochs 2 to 5: full packets
    start_counters_at((std::uint64_t{1} << 33) - (std::uint64_t{1} << 30) - 1);
    run(several(1));
    start_counters_at(comes_back + 2);
    run(several(max_count - 1));
}

// Lines that go one way: whoever sends hears nothing of who reads, and is soon a task ahead.
TEST_P(Order, LinesFromOneRankAndToOneRank) {
    constexpr std::uint64_t count = 4096;
    constexpr unsigned times = 24;
    const auto at = [&](unsigned number) { return crew_->heap_bytes() / 2 + number * count * 4; };
    for (const bool reduces : {false, true}) {
        for (unsigned number = 0; number < times; ++number) {
            const unsigned root = number / 4 % n();
            for (unsigned rank = 0; rank < n(); ++rank) {
                CollectiveTask task;
                task.shape = Shape::lines;
                task.blocks = 2;
                task.element = reduces ? Element::f32 : Element::u8;
                task.combine = reduces ? Combine::sum : Combine::none;
                task.signature = 1 + number;
                task.send = crew_->at(rank, sends_at);
                task.recv = crew_->at(rank, at(number));
                const auto only = static_cast<std::uint16_t>(1u << root);
                for (unsigned r = 0; r < n(); ++r) {
                    task.slices[r] = even_slice(reduces ? count : count * 4, r, n());
                    (reduces ? task.slices[r].targets : task.slices[r].sources) = only;
                }
                crew_->start(rank, task);
            }
        }
        crew_->finish();
        for (unsigned number = 0; number < times; ++number) {
            const unsigned root = number / 4 % n();
            if (reduces) {
                EXPECT_EQ(wrong_element(Element::f32, Combine::sum, given_, {},
                                        crew_->read(root, at(number), count * 4)),
                          "")
                    << number;
                continue;
            }
            for (unsigned rank = 0; rank < n(); ++rank)
                EXPECT_TRUE(crew_->read(rank, at(number), count * 4) == given_[root])
                    << number << ", rank " << rank;
        }
    }
}

// A task that has ended on one rank has taken what it needs from that rank, and left there what belongs
// there: packets tell nothing of the tasks before them. Rank 0 has all the work of the slices, so that the
// others come to the packets first.
TEST_P(Order, PacketsRightAfterSlices) {
    constexpr std::uint64_t count = 100'000;
    constexpr std::uint64_t last = 64;
    const std::size_t at = 4096;
    for (const bool staged : {false, true}) {
        for (unsigned rank = 0; rank < n(); ++rank) crew_->fill(rank, at, count * 4, 1);
        for (unsigned rank = 0; rank < n(); ++rank) {
            CollectiveTask slices;
            slices.shape = Shape::slices;
            slices.element = Element::u32;
            slices.combine = Combine::sum;
            slices.signature = 1;
            slices.send = slices.recv = crew_->at(rank, at);
            if (!staged) slices.send_token = slices.recv_token = {1, at};
            slices.slices[0] = even_slice(count, 0, 1);
            slices.slices[0].sources = slices.slices[0].targets = even_slice(count, 0, n()).sources;
            crew_->start(rank, slices);
            CollectiveTask packets;
            packets.element = Element::u32;
            packets.combine = Combine::sum;
            packets.signature = 2;
            packets.send = packets.recv = crew_->at(rank, at + (count - last) * 4);
            for (unsigned r = 0; r < n(); ++r) packets.to[r] = packets.from[r] = {0, last * 4};
            crew_->start(rank, packets);
        }
        crew_->finish();
        // n, and then n times n, of each of the four bytes of 0x01010101.
        for (unsigned rank = 0; rank < n(); ++rank) {
            std::vector<std::uint32_t> found(count);
            crew_->rig().read(found.data(), crew_->at(rank, at), count * 4);
            std::vector<std::uint32_t> expected(count, 0x01010101u * n());
            std::fill(expected.end() - last, expected.end(), 0x01010101u * n() * n());
            EXPECT_TRUE(found == expected) << "rank " << rank;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Order, testing::Values(2u, 4u, 16u));

}  // namespace
}  // namespace sidestep::collective_seat::order
