// Shape::pairs: blocks of any size between any two ranks.
#include <gtest/gtest.h>

#include <algorithm>

#include <fmt/format.h>

#include "jobs.hpp"

namespace sidestep::collective_seat {
namespace {

using backend::Block;
using backend::CollectiveTask;
using backend::Element;
using backend::Shape;
using backend::Token;

constexpr std::size_t sends_at = 4096;
constexpr char poison = static_cast<char>(0xc3);

// sizes[from][to] in bytes.
using Sizes = std::vector<std::vector<std::uint64_t>>;

class Pairs : public testing::TestWithParam<unsigned> {
protected:
    void SetUp() override {
        if (!crew().ready()) GTEST_SKIP() << "there are fewer than " << GetParam() << " GPUs";
    }
    static Crew& crew() { return Crew::of(GetParam()); }
    static unsigned n() { return GetParam(); }
    static std::size_t recvs_at() { return crew().heap_bytes() / 2; }

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
            given_[rank] = some_values(Element::u8, backend::Combine::none, all, n(), random_);
            crew().write(rank, sends_at, given_[rank]);
            crew().fill(rank, recvs_at(), recv_offset(sizes, n(), rank, gap), poison);
        }
    }

    // `staged`: bit r: rank r's memory is not mapped by the others.
    static CollectiveTask task(const Sizes& sizes, unsigned rank, std::uint64_t gap, unsigned staged) {
        CollectiveTask task;
        task.shape = Shape::pairs;
        task.signature = 77;
        task.send = crew().at(rank, sends_at);
        task.recv = crew().at(rank, recvs_at());
        unsigned blocks = 1;
        for (unsigned r = 0; r < n(); ++r) {
            task.to[r] = {send_offset(sizes, rank, r, gap), sizes[rank][r]};
            task.from[r] = {recv_offset(sizes, r, rank, gap), sizes[r][rank]};
            if ((staged >> rank & 1) == 0) task.from_tokens[r] = {1, recvs_at() + task.from[r].offset};
            if (r == rank) continue;
            for (const std::uint64_t bytes : {sizes[rank][r], sizes[r][rank]})
                blocks = std::max(blocks, backend::pair_blocks(bytes, n()));
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
            EXPECT_TRUE(crew().read(rank, recvs_at(), expected.size()) == expected) << "rank " << rank;
            EXPECT_TRUE(crew().read(rank, sends_at, given_[rank].size()) == given_[rank]) << "rank " << rank;
        }
    }

    void check(const Sizes& sizes, std::uint64_t gap, unsigned staged) {
        SCOPED_TRACE(fmt::format("gap {}, staged {:#x}", gap, staged));
        fill(sizes, gap);
        std::vector<CollectiveTask> tasks;
        for (unsigned rank = 0; rank < n(); ++rank) tasks.push_back(task(sizes, rank, gap, staged));
        crew().run(tasks);
        expect_moved(sizes, gap);
    }

    Sizes random_sizes(std::uint64_t most) {
        Sizes sizes(n(), std::vector<std::uint64_t>(n()));
        for (auto& row : sizes) {
            for (auto& size : row) size = random_() % 3 == 0 ? 0 : random_() % most;
        }
        return sizes;
    }

    std::mt19937_64 random_{23};
    std::vector<Values> given_;
};

TEST_P(Pairs, BlocksOfAllSizes) {
    const unsigned staged_ways[] = {0u, 0xffffu, 0x5555u};
    for (const unsigned staged : staged_ways) {
        for (const std::uint64_t most : {9, 100, 5000})
            check(random_sizes(most), staged == 0 ? 16 : 13, staged);
    }
}

// So that several thread blocks share a pair, and each carries several pieces.
TEST_P(Pairs, LargeBlocks) {
    const std::uint64_t most = (std::uint64_t{3} << 19) / n();
    for (const unsigned staged : {0u, 0xffffu, 0x3333u}) check(random_sizes(most), 7, staged);
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
}

TEST_P(Pairs, DirectAndStagedTakeTurns) {
    for (unsigned round = 0; round < 30; ++round)
        check(random_sizes(20'000), 16, round % 3 == 0 ? 0u : static_cast<unsigned>(random_()));
}

TEST_P(Pairs, ListsInGpuMemory) {
    const unsigned size = 4;
    for (const bool staged : {false, true}) {
        Sizes sizes = random_sizes(30'000);
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
            one.blocks = static_cast<std::uint8_t>(backend::pair_blocks(~std::uint64_t{0} >> 1, n()));
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
    for (const std::uint64_t bytes : {1, 4000, 70'001}) {
        std::vector<Values> given;
        std::vector<CollectiveTask> tasks;
        for (unsigned rank = 0; rank < n(); ++rank) {
            given.push_back(some_values(Element::u8, backend::Combine::none, bytes * n(), n(), random_));
            crew().write(rank, sends_at, given.back());
            CollectiveTask task;
            task.shape = Shape::pairs;
            task.signature = 78;
            task.blocks = static_cast<std::uint8_t>(backend::pair_blocks(bytes, n()));
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
            EXPECT_TRUE(crew().read(rank, sends_at, expected.size()) == expected)
                << "rank " << rank << ", " << bytes;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Pairs, testing::Values(1u, 2u, 3u, 4u, 5u, 8u, 16u));

}  // namespace
}  // namespace sidestep::collective_seat
