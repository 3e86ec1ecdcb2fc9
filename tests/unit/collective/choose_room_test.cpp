// What runs at a time on GPUs with few multiprocessors.
#include <algorithm>

#include <fmt/format.h>

#include "protocol/pair_blocks.hpp"
#include "tests/unit/collective/choosing.hpp"

namespace sidestep::collective {
namespace {

using protocol::ArenaLayout;
using protocol::Shape;

// Thread blocks wait for those of the same number on other GPUs: all of them run at a time, beside another group's.
TEST(Choose, AllThreadBlocksFindRoomOnTheSmallestGpu) {
    for (const int multiprocessors : {2, 14, 16, 28, 60, 108, 132})
        for (const Wire wire : {Wire::nvlink, Wire::pcie})
            for (const Collective collective : every)
                for (const unsigned ranks : {2u, 3u, 8u, 16u})
                    for (std::uint64_t bytes = 1; bytes <= std::uint64_t{1} << 30; bytes *= 8) {
                        GroupFacts facts = group_of(static_cast<int>(ranks));
                        facts.wire = wire;
                        facts.figures = built_in_figures(wire);
                        const Operation operation = operation_of(collective, bytes);
                        const Choice anywhere = choice_of(operation, facts);
                        facts.multiprocessors = multiprocessors;
                        const Choice choice = choice_of(operation, facts);
                        SCOPED_TRACE(fmt::format("{} of {} bytes by {} on {} multiprocessors: {}",
                                                 to_string(collective), bytes, ranks, multiprocessors,
                                                 choice.algorithm));
                        const auto half = static_cast<unsigned>(multiprocessors) / 2, others = ranks - 1;
                        const std::uint64_t eager =
                            std::min(choice.eager_max, ArenaLayout{ranks}.eager_payload());
                        EXPECT_LE(protocol::pair_blocks(eager, ranks, eager) * others,
                                  std::max(half, others));
                        EXPECT_LE(protocol::pair_blocks(~std::uint64_t{0} >> 1, ranks, choice.eager_max,
                                                        choice.pair_blocks_max) *
                                      others,
                                  std::max((ranks > protocol::ranks_of_few_pairs ? 3 : 2) * half, others));
                        const bool two_share = choice.shape == Shape::pushed_slices;
                        const int rows = choice.shape == Shape::ring ? 2 : 1;
                        if (choice.shape != Shape::pairs) {
                            EXPECT_LE(choice.blocks * rows, std::max<int>(half * (two_share ? 2 : 1), rows));
                        }
                        if (multiprocessors < 132) continue;
                        EXPECT_EQ(choice.algorithm, anywhere.algorithm);
                        EXPECT_EQ(choice.blocks, anywhere.blocks);
                        EXPECT_EQ(choice.eager_max, anywhere.eager_max);
                        EXPECT_EQ(choice.pair_blocks_max, anywhere.pair_blocks_max);
                    }
}

// A program that computes meanwhile says how many it can spare. Few fetch more than they push.
TEST(Choose, NoMoreThreadBlocksThanTheProgramAllows) {
    for (const int most : {1, 2, 8, 16, 32, 127})
        for (const Wire wire : {Wire::nvlink, Wire::pcie})
            for (const Collective collective : every)
                for (const unsigned ranks : {2u, 4u, 16u})
                    for (std::uint64_t bytes = 1; bytes <= std::uint64_t{1} << 30; bytes *= 8) {
                        GroupFacts facts = group_of(static_cast<int>(ranks));
                        facts.wire = wire;
                        facts.figures = built_in_figures(wire);
                        facts.max_blocks = most;
                        const Choice choice = choice_of(operation_of(collective, bytes), facts);
                        SCOPED_TRACE(fmt::format("{} of {} bytes by {}, {} blocks: {}", to_string(collective),
                                                 bytes, ranks, most, choice.algorithm));
                        EXPECT_NE(choice.shape, Shape::pushed_slices);
                        const int rows = choice.shape == Shape::ring    ? 2
                                         : choice.shape == Shape::pairs ? static_cast<int>(ranks - 1)
                                                                        : 1;
                        const int blocks = choice.shape == Shape::ring ? 2 * choice.blocks : choice.blocks;
                        EXPECT_LE(blocks, std::max(most, rows));
                        EXPECT_LE(choice.pair_blocks_max, static_cast<std::uint64_t>(most));
                    }
    // As many as there are at all are no bound.
    GroupFacts facts = group_of(4);
    const Operation operation = operation_of(Collective::all_reduce, std::uint64_t{1} << 30);
    facts.max_blocks = protocol::max_blocks;
    EXPECT_EQ(choice_of(operation, facts).blocks, choice_of(operation, group_of(4)).blocks);
    EXPECT_EQ(choice_of(operation, facts).shape, Shape::pushed_slices);
}

}  // namespace
}  // namespace sidestep::collective
