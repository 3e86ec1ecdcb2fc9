// Collectives that combine nothing: every byte where it belongs.
#include <gtest/gtest.h>

#include "jobs.hpp"

namespace sidestep::collective_seat::moving {
namespace {

using protocol::Element;
using protocol::Shape;

class Moving : public testing::TestWithParam<unsigned> {
protected:
    void SetUp() override {
        if (!Crew::of(GetParam()).ready()) GTEST_SKIP() << "there are fewer than " << GetParam() << " GPUs";
    }
    Crew& crew() { return Crew::of(GetParam()); }
    unsigned n() const { return GetParam(); }

    std::vector<Values> inputs(std::uint64_t bytes) {
        std::vector<Values> all;
        for (unsigned rank = 0; rank < n(); ++rank)
            all.push_back(some_values(Element::u8, protocol::Combine::none, bytes, n(), random_));
        return all;
    }
    static std::vector<How> ways() {
        return {{.shape = Shape::packets},
                {.shape = Shape::lines},
                {.shape = Shape::lines, .blocks = 5, .send_shift = 3, .recv_shift = 11},
                {.shape = Shape::slices},
                {.shape = Shape::slices, .staged = true},
                {.shape = Shape::slices, .staged = true, .blocks = 5, .send_shift = 3, .recv_shift = 11},
                {.shape = Shape::pushed_slices},
                {.shape = Shape::pushed_slices, .blocks = 67, .send_shift = 3, .recv_shift = 11},
                {.shape = Shape::copies, .send_shift = 3, .recv_shift = 11},
                {.shape = Shape::copies, .staged = true, .send_shift = 3, .recv_shift = 11},
                {.shape = Shape::ring},
                {.shape = Shape::ring, .blocks = 5, .send_shift = 3, .recv_shift = 11}};
    }

    Random random_{11};
};

TEST_P(Moving, AllGather) {
    for (const std::uint64_t bytes : {0, 1, 7, 8, 9, 1000, 9999}) {
        const auto given = inputs(bytes);
        Values joined;
        for (const Values& part : given) joined.insert(joined.end(), part.begin(), part.end());
        for (How how : ways()) {
            if (!has_room(crew(), how)) continue;
            for (const bool in_place : {false, true}) {
                how.in_place = in_place;
                SCOPED_TRACE(to_string(how) + " " + std::to_string(bytes));
                EXPECT_EQ(all_gather(crew(), how, given), std::vector<Values>(n(), joined));
            }
        }
    }
}

TEST_P(Moving, BroadcastFromEachRoot) {
    for (unsigned root = 0; root < n(); ++root) {
        const auto given = inputs(1 + 777 * root);
        for (How how : ways()) {
            if (!has_room(crew(), how)) continue;
            SCOPED_TRACE(to_string(how));
            EXPECT_EQ(broadcast(crew(), how, root, given[root]), std::vector<Values>(n(), given[root]));
        }
    }
}

// Batches of rows in each warp, with and without a copy of the rank's own beside them.
TEST_P(Moving, LargeInLines) {
    const std::uint64_t bytes =
        std::min<std::uint64_t>(protocol::ArenaLayout{n()}.lines_payload(), 1'500'003 / n());
    const auto given = inputs(bytes);
    Values joined;
    for (const Values& part : given) joined.insert(joined.end(), part.begin(), part.end());
    for (const unsigned blocks : {1u, 6u})
        for (const bool in_place : {false, true}) {
            const How how{
                .shape = Shape::lines, .blocks = blocks, .recv_shift = blocks / 2, .in_place = in_place};
            SCOPED_TRACE(to_string(how));
            EXPECT_TRUE(all_gather(crew(), how, given) == std::vector<Values>(n(), joined));
            EXPECT_TRUE(broadcast(crew(), how, n() / 2, given[0]) == std::vector<Values>(n(), given[0]));
        }
}

// So many pieces that every slot is used several times, of slices that have more of them than others.
TEST_P(Moving, AroundTheRing) {
    const std::uint64_t bytes = protocol::ArenaLayout{n()}.ring_piece_bytes() * (n() <= 5 ? 11 : 3) + 5;
    const auto given = inputs(bytes);
    Values joined;
    for (const Values& part : given) joined.insert(joined.end(), part.begin(), part.end());
    for (const unsigned blocks : {1u, 2u}) {
        const How how{.shape = Shape::ring, .blocks = blocks};
        EXPECT_TRUE(all_gather(crew(), how, given) == std::vector<Values>(n(), joined));
        EXPECT_TRUE(broadcast(crew(), how, n() / 2, given[0]) == std::vector<Values>(n(), given[0]));
    }
}

TEST_P(Moving, AllToAll) {
    for (const std::uint64_t bytes : {0, 1, 15, 64, 4001}) {
        const auto given = inputs(bytes * n());
        std::vector<Values> expected(n());
        for (unsigned to = 0; to < n(); ++to) {
            for (unsigned from = 0; from < n(); ++from) {
                const auto block = given[from].begin() + static_cast<std::ptrdiff_t>(to * bytes);
                expected[to].insert(expected[to].end(), block, block + static_cast<std::ptrdiff_t>(bytes));
            }
        }
        EXPECT_EQ(all_to_all(crew(), {.shape = Shape::packets, .blocks = 2}, given), expected) << bytes;
        for (const bool staged : {false, true}) {
            for (const bool in_place : {false, true}) {
                const How how{.shape = Shape::copies, .staged = staged, .in_place = in_place};
                if (!has_room(crew(), how)) continue;
                EXPECT_EQ(all_to_all(crew(), how, given), expected) << bytes;
            }
        }
    }
}

// What was staged in the first block of the first pass.
Values staged_bytes(Crew& crew, unsigned rank) {
    const protocol::ArenaLayout layout{crew.ranks()};
    Values both;
    for (const std::uint64_t at : {layout.stage_out(0, 0, 0), layout.stage_in(0, 0, 0)}) {
        Values part(crew.ranks() * layout.stage_bytes());
        crew.rig().read(part.data(), static_cast<char*>(crew.seat(rank).arena().address()) + at, part.size());
        both.insert(both.end(), part.begin(), part.end());
    }
    return both;
}

// Ranks that only receive have no send buffer for the others to map, and so on.
TEST(Staging, OnlyOfMemoryThatOthersUse) {
    Crew crew(3);
    if (!crew.ready()) GTEST_SKIP() << "there are fewer than 3 GPUs";
    const Values untouched(staged_bytes(crew, 0).size(), 0);
    How how{.shape = Shape::slices};
    broadcast(crew, how, 1, Values(1000, 'a'));
    reduce(crew, how, {Element::u8, protocol::Combine::sum, {}, false}, 2,
           std::vector<Values>(3, Values(1000, 'b')));
    for (unsigned rank = 0; rank < 3; ++rank)
        EXPECT_TRUE(staged_bytes(crew, rank) == untouched) << "rank " << rank;
    how.staged = true;
    broadcast(crew, how, 1, Values(1000, 'a'));
    for (unsigned rank = 0; rank < 3; ++rank)
        EXPECT_FALSE(staged_bytes(crew, rank) == untouched) << "rank " << rank;
}

INSTANTIATE_TEST_SUITE_P(Ranks, Moving, testing::Values(1u, 2u, 3u, 4u, 5u, 8u, 16u));

}  // namespace
}  // namespace sidestep::collective_seat::moving
