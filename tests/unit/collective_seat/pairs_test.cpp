// Shape::pairs: blocks of any size between any two ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "jobs.hpp"
#include "protocol/pair_blocks.hpp"

namespace sidestep::collective_seat::pairs {
namespace {

using protocol::Block;
using protocol::CollectiveTask;
using protocol::Element;
using protocol::Shape;
using protocol::Token;

constexpr std::size_t sends_at = 4096;
constexpr char poison = static_cast<char>(0xc3);

// sizes[from][to] in bytes.
using Sizes = std::vector<std::vector<std::uint64_t>>;

class Pairs : public testing::TestWithParam<unsigned> {
protected:
    void SetUp() override {
        if (!crew().ready()) GTEST_SKIP() << "there are fewer than " << GetParam() << " GPUs";
    }
    void TearDown() override {
        if (left_out_ > 0 && checked_ == 0) GTEST_SKIP() << "no room on one GPU for its ranks' thread blocks";
    }
    static Crew& crew() { return Crew::of(GetParam()); }
    static unsigned n() { return GetParam(); }
    static std::size_t recvs_at() { return crew().heap_bytes() / 2; }
    // Blocks above are not eager.
    static std::uint64_t eager() { return protocol::ArenaLayout{n()}.eager_payload(); }

    // Blocks lie one behind the other, `gap` bytes between them.
    static std::uint64_t send_offset(const Sizes& sizes, unsigned from, unsigned to, std::uint64_t gap) {
        std::uint64_t at = gap;
        for (unsigned r = 0; r < to; ++r) at += sizes[from][r] + gap;
        return at;
    }
    static std::uint64_t recv_offset(const Sizes& sizes, unsigned from, unsigned to, std::uint64_t gap) {
        std::uint64_t at = gap;
        for (unsigned r = 0; r < from; ++r) at += sizes[r][to] + gap;
        return at;
    }

    void fill(const Sizes& sizes, std::uint64_t gap) {
        given_.assign(n(), {});
        for (unsigned rank = 0; rank < n(); ++rank) {
            const std::uint64_t all = send_offset(sizes, rank, n(), gap);
            given_[rank] = some_values(Element::u8, protocol::Combine::none, all, n(), random_);
            crew().write(rank, sends_at, given_[rank]);
            crew().fill(rank, recvs_at(), recv_offset(sizes, n(), rank, gap), poison);
        }
    }

    // `staged`: bit r: rank r's memory is not mapped by the others.
    CollectiveTask task(const Sizes& sizes, unsigned rank, std::uint64_t gap, unsigned staged) const {
        CollectiveTask task;
        task.shape = Shape::pairs;
        task.signature = 77;
        task.send = crew().at(rank, sends_at);
        task.recv = crew().at(rank, recvs_at());
        task.eager_max = limit_;
        task.pair_blocks_max = most();
        unsigned blocks = 1;
        for (unsigned r = 0; r < n(); ++r) {
            task.to[r] = {send_offset(sizes, rank, r, gap), sizes[rank][r]};
            task.from[r] = {recv_offset(sizes, r, rank, gap), sizes[r][rank]};
            if ((staged >> rank & 1) == 0) task.from_tokens[r] = {1, recvs_at() + task.from[r].offset};
            if (r == rank) continue;
            for (const std::uint64_t bytes : {sizes[rank][r], sizes[r][rank]})
                blocks = std::max(blocks, protocol::pair_blocks(bytes, n(), limit_, most()));
        }
        task.blocks = static_cast<std::uint8_t>(blocks);
        return task;
    }

    // Every block is where it belongs, and nothing else was touched.
    void expect_moved(const Sizes& sizes, std::uint64_t gap) {
        for (unsigned rank = 0; rank < n(); ++rank) {
            Values expected(recv_offset(sizes, n(), rank, gap), poison);
            for (unsigned r = 0; r < n(); ++r) {
                const auto from =
                    given_[r].begin() + static_cast<std::ptrdiff_t>(send_offset(sizes, r, rank, gap));
                const auto to =
                    expected.begin() + static_cast<std::ptrdiff_t>(recv_offset(sizes, r, rank, gap));
                std::copy_n(from, sizes[r][rank], to);
            }
            EXPECT_TRUE(crew().holds(rank, recvs_at(), expected)) << "rank " << rank;
            EXPECT_TRUE(crew().holds(rank, sends_at, given_[rank])) << "rank " << rank;
        }
    }

    // Thread blocks for all pairs of a rank, as its group has it: two run on a multiprocessor at a time, and those of all
    // ranks of a GPU have to.
    static std::uint64_t most() {
        const unsigned multiprocessors = crew().seat(0).multiprocessors();
        if (multiprocessors == 0) return protocol::max_blocks;
        return std::clamp(2 * multiprocessors / crew().max_on_a_gpu(), 1u, protocol::max_blocks);
    }

    // Of eager blocks there are more, which this counts, and where all are eager one alone runs on a multiprocessor.
    bool has_room(const Sizes& sizes) const {
        const unsigned together = crew().max_on_a_gpu(), multiprocessors = crew().seat(0).multiprocessors();
        unsigned max = 0;
        for (unsigned rank = 0; rank < n(); ++rank) {
            unsigned blocks = 0;
            bool all = true;
            for (unsigned r = 0; r < n(); ++r) {
                if (r == rank) continue;
                const std::uint64_t longest = std::max(sizes[rank][r], sizes[r][rank]);
                all = all && protocol::is_eager(longest, n(), limit_);
                if (longest > protocol::eager_share / 2 || (!all && longest > 0))
                    blocks += protocol::pair_blocks(longest, n(), limit_, most());
            }
            max = std::max(max, all ? 2 * blocks : blocks);
        }
        if (together <= 1 || multiprocessors == 0 || max * together <= 2 * multiprocessors) return true;
        fmt::print("left out, with {} ranks on one GPU: {} thread blocks each\n", together, max);
        return false;
    }

    void check(const Sizes& sizes, std::uint64_t gap, unsigned staged) {
        SCOPED_TRACE(fmt::format("gap {}, staged {:#x}", gap, staged));
        if (!has_room(sizes)) {
            ++left_out_;
            return;
        }
        ++checked_;
        fill(sizes, gap);
        std::vector<CollectiveTask> tasks;
        for (unsigned rank = 0; rank < n(); ++rank) tasks.push_back(task(sizes, rank, gap, staged));
        crew().run(tasks);
        expect_moved(sizes, gap);
    }

    // Every pair has a block of `bytes`, save for ranks with themselves.
    static Sizes even_sizes(std::uint64_t bytes) {
        Sizes sizes(n(), std::vector<std::uint64_t>(n(), bytes));
        for (unsigned rank = 0; rank < n(); ++rank) sizes[rank][rank] = 0;
        return sizes;
    }

    Sizes random_sizes(std::uint64_t max) {
        Sizes sizes(n(), std::vector<std::uint64_t>(n()));
        for (auto& row : sizes) {
            for (auto& size : row) size = random_() % 3 == 0 ? 0 : random_() % max;
        }
        return sizes;
    }

    Random random_{23};
    std::uint64_t limit_ = ~std::uint64_t{0};  // CollectiveTask::eager_max
    std::vector<Values> given_;
    int left_out_ = 0, checked_ = 0;
};

TEST_P(Pairs, BlocksOfAllSizes) {
    const unsigned staged_ways[] = {0u, 0xffffu, 0x5555u};
    for (const unsigned staged : staged_ways) {
        for (const std::uint64_t max : {9, 100, 5000})
            check(random_sizes(max), staged == 0 ? 16 : 13, staged);
    }
}

TEST_P(Pairs, EagerBlocksUpToTheLargest) {
    for (const std::uint64_t bytes : {protocol::eager_share - 1, protocol::eager_share,
                                      protocol::eager_share + 1, eager() - 8, eager(), eager() + 1})
        for (const std::uint64_t gap : {3, 16}) check(even_sizes(bytes), gap, 0);
}

// One direction of a pair is eager, the other is not, and the next time it is the other way round.
TEST_P(Pairs, EagerAndLargerBlocksTakeTurns) {
    for (unsigned round = 0; round < 12; ++round) {
        Sizes sizes = even_sizes(eager() / 3 + round);
        for (unsigned from = 0; from < n(); ++from)
            for (unsigned to = 0; to < n(); ++to)
                if (from != to && (from < to) == (round % 2 == 0))
                    sizes[from][to] = eager() + 100 * from + to + 1;
        check(sizes, 16, round % 3 == 0 ? 0u : round % 3 == 1 ? 0xffffu : 0x5555u);
    }
}

// Nobody looks before all have been enqueued, so that a rank may be done with a message while the other end
// has not yet heard of it.
TEST_P(Pairs, ManyEagerBlocksInARow) {
    constexpr unsigned times = 3000, bytes = 64;
    if (n() == 1) GTEST_SKIP() << "a rank alone sends no packets";
    for (const bool both_ways : {true, false}) {
        Sizes sizes = even_sizes(bytes);
        for (unsigned from = 0; from < n(); ++from)
            for (unsigned to = 0; to < n(); ++to)
                if (to != (from + 1) % n() && (!both_ways || from != (to + 1) % n())) sizes[from][to] = 0;
        fill(sizes, 16);
        for (unsigned i = 0; i < times / n(); ++i)
            for (unsigned rank = 0; rank < n(); ++rank) crew().start(rank, task(sizes, rank, 16, 0));
        crew().finish();
        expect_moved(sizes, 16);
    }
}

TEST_P(Pairs, ALowerLimitOfTheTask) {
    for (const std::uint64_t limit : {std::uint64_t{0}, std::uint64_t{1000}, std::uint64_t{8192}}) {
        limit_ = limit;
        for (const std::uint64_t bytes : {1, 999, 1000, 1001, 8192, 8193}) check(even_sizes(bytes), 16, 0);
        check(random_sizes(20'000), 16, 0x5555u);
    }
}

// Slots of messages come back, and their flags do after 2^32 - 1 of them. Receivers come first: what is there
// already they take at once.
TEST_P(Pairs, NoOldEagerPacketIsTakenForANewOne) {
    if (n() == 1) GTEST_SKIP() << "a rank alone sends no packets";
    Crew own(n(), std::uint64_t{30'000'000'000});
    const auto start_at = [&](std::uint64_t count) {
        bool done = true;
        for (unsigned rank = 0; rank < n(); ++rank)
            done = own.rig().start_counters_at(own.seat(rank), count) && done;
        return done;
    };
    const auto send_twice = [&](std::uint64_t bytes) {
        for (int i = 0; i < 2; ++i) {
            const Values given = some_values(Element::u8, protocol::Combine::none, bytes, n(), random_);
            own.write(0, sends_at, given);
            for (unsigned rank = n(); rank-- > 0;) {
                CollectiveTask one;
                one.shape = Shape::pairs;
                one.signature = 79;
                one.send = own.at(rank, sends_at);
                one.recv = own.at(rank, recvs_at());
                if (rank == 0) {
                    std::fill(one.to + 1, one.to + n(), Block{0, bytes});
                    std::this_thread::sleep_for(std::chrono::milliseconds(20));
                } else {
                    one.from[0] = {0, bytes};
                }
                own.start(rank, one);
            }
            own.finish();
            for (unsigned rank = 1; rank < n(); ++rank)
                EXPECT_TRUE(own.holds(rank, recvs_at(), given)) << rank;
        }
    };
    if (!start_at(2)) GTEST_SKIP() << "the counters cannot be set here";
    send_twice(eager());
    start_at((std::uint64_t{1} << 33) - (std::uint64_t{1} << 30) - 1);
    // What is not eager leaves what lies in the slots, and has as many thread blocks.
    send_twice(eager() + 1);
    start_at(2 * std::uint64_t{0xffffffff} + 2);
    send_twice(eager());
    // And these wipe what they themselves bring.
    start_at((std::uint64_t{1} << 34) - (std::uint64_t{1} << 30) - 1);
    send_twice(eager());
    start_at((std::uint64_t{1} << 34) - (std::uint64_t{1} << 30) - 1 + 2 * std::uint64_t{0xffffffff});
    send_twice(eager());
}

// So that several thread blocks share a pair, and each carries several pieces.
TEST_P(Pairs, LargeBlocks) {
    const std::uint64_t max = (std::uint64_t{3} << 19) / n();
    for (const unsigned staged : {0u, 0xffffu, 0x3333u}) check(random_sizes(max), 7, staged);
}

// Source and target lie differently to a boundary of 16, and a thread block has more than it moves at a time.
TEST_P(Pairs, OneLargeBlockAtOddAddresses) {
    Sizes sizes(n(), std::vector<std::uint64_t>(n()));
    sizes[0][n() - 1] = 1'900'003;
    for (const std::uint64_t gap : {4, 7, 13}) check(sizes, gap, 0);
}

TEST_P(Pairs, OneBlockAmongIdleRanks) {
    Sizes sizes(n(), std::vector<std::uint64_t>(n()));
    sizes[0][n() - 1] = 12'345;
    for (const unsigned staged : {0u, 0xffffu}) check(sizes, 16, staged);
    sizes[0][n() - 1] = 123'456;
    for (const unsigned staged : {0u, 0xffffu}) check(sizes, 16, staged);
}

TEST_P(Pairs, EagerDirectAndStagedTakeTurns) {
    for (unsigned round = 0; round < 30; ++round)
        check(random_sizes(3 * eager()), 16, round % 3 == 0 ? 0u : static_cast<unsigned>(random_()));
}

TEST_P(Pairs, ListsInGpuMemory) {
    const unsigned size = 4;
    for (const bool staged : {false, true}) {
        Sizes sizes = random_sizes(2 * eager());
        for (auto& row : sizes) {
            for (auto& bytes : row) bytes = bytes / size * size;
        }
        fill(sizes, 16);
        std::vector<CollectiveTask> tasks;
        for (unsigned rank = 0; rank < n(); ++rank) {
            CollectiveTask one = task(sizes, rank, 16, 0xffff);
            std::vector<std::uint64_t> lists[4];
            for (unsigned r = 0; r < n(); ++r) {
                lists[0].push_back(one.to[r].offset / size);
                lists[1].push_back(one.to[r].bytes / size);
                lists[2].push_back(one.from[r].offset / size);
                lists[3].push_back(one.from[r].bytes / size);
                one.to[r] = one.from[r] = {};
            }
            const std::uint64_t* at[4];
            for (unsigned list = 0; list < 4; ++list) {
                char* const to = crew().at(rank, 512 + list * 256);
                crew().rig().write(to, lists[list].data(), n() * sizeof(std::uint64_t));
                at[list] = reinterpret_cast<const std::uint64_t*>(to);
            }
            one.element = Element::f32;
            one.blocks = static_cast<std::uint8_t>(protocol::pair_blocks(~std::uint64_t{0} >> 1, n()));
            one.device_send_offsets = at[0];
            one.device_send_counts = at[1];
            one.device_recv_offsets = at[2];
            one.device_recv_counts = at[3];
            if (!staged) one.recv_token = {1, recvs_at()};
            tasks.push_back(one);
        }
        crew().run(tasks);
        expect_moved(sizes, 16);
    }
}

// Blocks are sent from where they are received, as an all-to-all in place does: no memory counts as mapped.
TEST_P(Pairs, InPlace) {
    for (const std::uint64_t bytes : {1, 4000, 20'001, 70'001}) {
        std::vector<Values> given;
        std::vector<CollectiveTask> tasks;
        for (unsigned rank = 0; rank < n(); ++rank) {
            given.push_back(some_values(Element::u8, protocol::Combine::none, bytes * n(), n(), random_));
            crew().write(rank, sends_at, given.back());
            CollectiveTask task;
            task.shape = Shape::pairs;
            task.signature = 78;
            task.pair_blocks_max = most();
            task.blocks = static_cast<std::uint8_t>(protocol::pair_blocks(bytes, n(), limit_, most()));
            task.send = task.recv = crew().at(rank, sends_at);
            for (unsigned r = 0; r < n(); ++r) task.to[r] = task.from[r] = {r * bytes, bytes};
            tasks.push_back(task);
        }
        crew().run(tasks);
        for (unsigned rank = 0; rank < n(); ++rank) {
            Values expected;
            for (unsigned r = 0; r < n(); ++r) {
                const auto block = given[r].begin() + static_cast<std::ptrdiff_t>(rank * bytes);
                expected.insert(expected.end(), block, block + static_cast<std::ptrdiff_t>(bytes));
            }
            EXPECT_TRUE(crew().holds(rank, sends_at, expected)) << "rank " << rank << ", " << bytes;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Pairs, testing::Values(1u, 2u, 3u, 4u, 5u, 8u, 16u));

}  // namespace
}  // namespace sidestep::collective_seat::pairs
