// Where lines are taken: over which links, and at which sizes. Where two-phase packets do what lines cannot.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "tests/unit/collective/choosing.hpp"

namespace sidestep::collective {
namespace {

using protocol::Element;

// Between two H200 512 KiB to each take 5.1 us with 48 to 64 thread blocks, and 6.2 with 32; 256 KiB are as
// quick with 32.
TEST(Choose, LinesInOnePhaseTakeMoreBlocksWhereTheyAreLong) {
    for (const Collective collective :
         {Collective::reduce, Collective::broadcast, Collective::reduce_scatter, Collective::all_gather}) {
        EXPECT_EQ(choice_of(operation_of(collective, 256 << 10), group_of(2)).blocks, 32);
        EXPECT_EQ(choice_of(operation_of(collective, 512 << 10), group_of(2)).blocks, 64);
        EXPECT_EQ(choice_of(operation_of(collective, 512 << 10), group_of(2)).algorithm, "lines");
    }
}

TEST(Choose, LinesGoOverNVLinkOnly) {
    GroupFacts facts = group_of(4);
    const Operation operation = operation_of(Collective::all_reduce, 256 << 10);
    EXPECT_EQ(choice_of(operation, facts).algorithm, "lines");
    facts.figures.lines_max = 1 << 30;
    for (const Wire wire : {Wire::nvlink, Wire::pcie, Wire::host_memory})
        for (const bool mesh : {false, true}) {
            facts.wire = wire;
            facts.full_mesh = mesh;
            const Choice choice = choice_of(operation, facts);
            if (wire == Wire::nvlink && mesh) {
                EXPECT_EQ(choice.algorithm, "lines");
                continue;
            }
            ASSERT_NE(refused_of(choice, "lines"), nullptr);
            EXPECT_EQ(refused_of(choice, "lines")->reason,
                      "a line of 128 bytes arrives as a whole over NVLink only");
        }
}

// What two-phase packets are there for. Over NVLink they gain next to nothing (docs/lab-book.md, "Two-phase
// packets, and why they stay").
TEST(Choose, TwoPhasePacketsAreWorthHavingWhereNoLinesGo) {
    struct Case {
        Wire wire;
        int ranks;
        Element element;
        std::uint64_t bytes;
        double least_gain;
    };
    for (const Case& one : {Case{Wire::pcie, 4, Element::i32, 7 << 10, 1.1},
                            {Wire::pcie, 8, Element::i32, 2560, 1.4},
                            {Wire::pcie, 8, Element::f64, 16 << 10, 1.05},
                            {Wire::pcie, 16, Element::bf16, 7 << 10, 1.3},
                            {Wire::pcie, 16, Element::i32, 10 << 10, 1.1},
                            {Wire::host_memory, 4, Element::f64, 32 << 10, 1.2},
                            {Wire::host_memory, 8, Element::i32, 4 << 10, 1.4}}) {
        GroupFacts facts = group_of(one.ranks);
        facts.wire = one.wire;
        facts.full_mesh = one.wire != Wire::host_memory;
        facts.figures = built_in_figures(one.wire);
        const auto gain = [&] {
            const Operation operation = reduction_of(Collective::all_reduce, one.bytes, one.element);
            const Choice choice = choice_of(operation, facts);
            if (choice.algorithm != "two-phase packets") return 0.0;
            double next = 0;
            for (const Refused& other : choice.refused) next = std::max(next, other.gb_per_s);
            return bus_rate(operation, one.ranks, choice.expected_us) / next;
        };
        EXPECT_GT(gain(), one.least_gain) << one.bytes << " bytes, " << one.ranks << " ranks";
        facts = group_of(one.ranks);
        EXPECT_LT(gain(), 1.01) << one.bytes << " bytes, " << one.ranks << " ranks, NVLink";
    }
}

// Where one algorithm ends and the next one begins, as measured (docs/lab-book.md, "Lines with more
// warps").
TEST(Choose, BetweenTwoAsMeasured) {
    const auto chosen = [](Collective collective, std::uint64_t kib) {
        return choice_of(reduction_of(collective, kib << 10, Element::f32), group_of(2)).algorithm;
    };
    for (const std::uint64_t kib : {512, 1024, 2048}) {
        EXPECT_EQ(chosen(Collective::all_reduce, kib), "lines") << kib;
        EXPECT_EQ(chosen(Collective::reduce, kib), "lines") << kib;
        EXPECT_EQ(chosen(Collective::broadcast, kib), "lines") << kib;
        EXPECT_EQ(chosen(Collective::reduce_scatter, kib), "lines") << kib;
    }
    for (const Collective collective : {Collective::all_reduce, Collective::reduce}) {
        EXPECT_EQ(chosen(collective, 256), "one-shot Lamport");
        EXPECT_EQ(chosen(collective, 4096), "slices");
        EXPECT_EQ(chosen(collective, 8192), "slices");
    }
    EXPECT_EQ(chosen(Collective::broadcast, 128), "one-shot packets");
    EXPECT_EQ(chosen(Collective::broadcast, 4096), "slices");
    EXPECT_EQ(chosen(Collective::all_gather, 128), "one-shot packets");
    EXPECT_EQ(chosen(Collective::all_gather, 256), "lines");
    EXPECT_EQ(chosen(Collective::all_gather, 1024), "lines");
    EXPECT_EQ(chosen(Collective::all_gather, 4096), "slices");
}

// Two H200: 5 to 9 us from 512 KiB to 2 MiB, where slices take 9 to 14 (docs/lab-book.md, "Two H200").
TEST(Choose, OtherCollectivesTakeLinesOfMiddleSizes) {
    for (const int ranks : {2, 4, 8})
        for (const Collective collective : {Collective::reduce, Collective::reduce_scatter,
                                            Collective::broadcast, Collective::all_gather}) {
            GroupFacts facts = group_of(ranks);
            const std::uint64_t bytes = (ranks == 2 ? 512 : 128) << 10;
            const Operation operation = operation_of(collective, bytes);
            EXPECT_EQ(choice_of(operation, facts).algorithm, "lines")
                << to_string(collective) << " of " << ranks;
            facts.figures.others_lines_max = bytes;
            EXPECT_EQ(choice_of(operation, facts).algorithm, "lines")
                << to_string(collective) << " of " << ranks;
            EXPECT_EQ(refused_of(choice_of(operation_of(collective, bytes + 1), facts), "lines")->reason,
                      fmt::format("above {} KiB, where the figures of this machine end it", bytes >> 10));
            facts.wire = Wire::pcie;
            EXPECT_EQ(refused_of(choice_of(operation, facts), "lines")->reason,
                      "a line of 128 bytes arrives as a whole over NVLink only");
        }
    EXPECT_EQ(refused_of(choice_of(operation_of(Collective::all_to_all, 64), group_of(4)), "lines")->reason,
              "every pair of ranks has a block of its own");
}

}  // namespace
}  // namespace sidestep::collective
