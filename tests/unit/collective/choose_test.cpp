// Which shape carries what, and what explain says of it.
#include "collective/choose.hpp"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "collective/tasks.hpp"
#include "protocol/pair_blocks.hpp"
#include "tests/unit/collective/choosing.hpp"

namespace sidestep::collective {
namespace {

using protocol::ArenaLayout;
using protocol::Element;
using protocol::Shape;

TEST(Choose, SmallMiddleAndLargeAllReduces) {
    EXPECT_EQ(algorithm_of(Collective::all_reduce, 8, 4), "one-shot packets");
    EXPECT_EQ(algorithm_of(Collective::all_reduce, 32 << 10, 4), "one-shot packets");
    EXPECT_EQ(algorithm_of(Collective::all_reduce, 128 << 10, 4), "lines");
    EXPECT_EQ(algorithm_of(Collective::all_reduce, 2 << 20, 4), "lines");
    EXPECT_EQ(algorithm_of(Collective::all_reduce, (4 << 20) + 1, 4), "slices");
    EXPECT_EQ(algorithm_of(Collective::all_reduce, std::uint64_t{8} << 30, 4), "pushed slices");
    EXPECT_EQ(algorithm_of(Collective::all_reduce, 128 << 10, 2), "one-shot packets");
    EXPECT_EQ(algorithm_of(Collective::all_reduce, 512 << 10, 2), "lines");
    EXPECT_EQ(algorithm_of(Collective::all_reduce, 8 << 20, 2), "slices");
    EXPECT_EQ(algorithm_of(Collective::all_reduce, 8 << 10, 8), "one-shot packets");
    EXPECT_EQ(algorithm_of(Collective::all_reduce, 64 << 10, 8), "lines");
    EXPECT_EQ(algorithm_of(Collective::all_reduce, 8 << 20, 8), "slices");
}

// What is fetched takes room in both directions; nothing is gained where bytes go one way alone.
TEST(Choose, LargeOnesArePushedWhereTheLinksCarryMoreSo) {
    const std::uint64_t large = std::uint64_t{1} << 30;
    for (const Collective collective : {Collective::all_reduce, Collective::reduce_scatter}) {
        EXPECT_EQ(algorithm_of(collective, large, 2), "pushed slices");
        EXPECT_EQ(algorithm_of(collective, large, 4), "pushed slices");
    }
    EXPECT_EQ(algorithm_of(Collective::reduce, large, 2), "slices");
    EXPECT_EQ(algorithm_of(Collective::reduce, large, 4), "pushed slices");
    for (const Collective collective : {Collective::all_gather, Collective::broadcast})
        EXPECT_EQ(algorithm_of(collective, large, 4), "slices");
    GroupFacts facts = group_of(4);
    facts.figures.push_gb_per_s = 340;
    const Choice fetched = choice_of(operation_of(Collective::all_reduce, large), facts);
    EXPECT_EQ(fetched.algorithm, "slices");
    EXPECT_EQ(refused_of(fetched, "pushed slices")->reason,
              "the links carry as much where bytes are fetched, and it has one more hop");
    facts = group_of(4);
    facts.full_mesh = false;
    EXPECT_EQ(
        refused_of(choice_of(operation_of(Collective::all_reduce, large), facts), "pushed slices")->reason,
        "slices are pushed anyway where the arenas lie in host memory");
}

TEST(Choose, WhatCombinesNothing) {
    for (const Collective collective : {Collective::all_gather, Collective::broadcast}) {
        EXPECT_EQ(algorithm_of(collective, 64, 4), "one-shot packets");
        EXPECT_EQ(algorithm_of(collective, 4 << 20, 4), "slices");
    }
    for (const Collective collective : {Collective::all_to_all, Collective::gather, Collective::scatter}) {
        EXPECT_EQ(algorithm_of(collective, 64, 4), "one-shot packets");
        EXPECT_EQ(algorithm_of(collective, 4 << 20, 4), "pairs");
    }
    EXPECT_EQ(algorithm_of(Collective::barrier, 0, 4), "one-shot packets");
    EXPECT_EQ(algorithm_of(Collective::send_recv, 0, 4), "pairs");
}

// Over all sizes: never quicker for more bytes, never back to an algorithm for smaller ones, never fewer
// blocks.
TEST(Choose, GrowsWithTheBytes) {
    for (const Wire wire : {Wire::nvlink, Wire::pcie, Wire::host_memory})
        for (const Collective collective : every)
            for (int ranks = 1; ranks <= 16; ++ranks) {
                GroupFacts facts = group_of(ranks);
                facts.emulated = ranks % 2 == 1;
                facts.wire = wire;
                facts.full_mesh = wire != Wire::host_memory;
                facts.figures = built_in_figures(wire);
                double us = 0;
                Shape shape = Shape::packets;
                int blocks = 0;
                for (double size = 1; size < 6e10; size = size * 1.07 + 1) {
                    Operation operation = operation_of(collective, static_cast<std::uint64_t>(size));
                    if (combines(collective) && ranks % 3 != 0) operation.element = Element::f8_e4m3;
                    const Choice choice = choice_of(operation, facts);
                    ASSERT_GE(choice.expected_us, us) << describe(operation) << " on " << ranks;
                    ASSERT_GE(static_cast<int>(choice.shape), static_cast<int>(shape)) << describe(operation);
                    if (choice.shape == shape) {
                        ASSERT_GE(choice.blocks, blocks) << describe(operation);
                    }
                    ASSERT_LE(choice.blocks,
                              static_cast<int>(choice.shape == Shape::pairs ? protocol::max_pair_blocks
                                                                            : protocol::max_blocks));
                    ASSERT_TRUE(carries(choice.shape, collective));
                    us = choice.expected_us;
                    shape = choice.shape;
                    blocks = choice.blocks;
                }
            }
}

TEST(Choose, PacketsStayWithinTheirLanes) {
    for (const Collective collective : every)
        for (int ranks = 2; ranks <= 16; ++ranks) {
            GroupFacts facts = group_of(ranks);
            // Packets at any size, if the price alone decided.
            facts.figures.packet_gb_per_s = facts.figures.block_gb_per_s = 1e6;
            const std::uint64_t held = ArenaLayout{static_cast<unsigned>(ranks)}.packet_payload();
            if (collective == Collective::barrier) continue;
            EXPECT_EQ(choice_of(operation_of(collective, held), facts).algorithm, "one-shot packets");
            const Choice above = choice_of(operation_of(collective, held + 1), facts);
            ASSERT_NE(above.algorithm, "one-shot packets");
            EXPECT_NE(refused_of(above, "one-shot packets")->reason.find("the arena holds"),
                      std::string::npos);
            const Choice far =
                choice_of(operation_of(collective, held * static_cast<std::uint64_t>(ranks) + 1), facts);
            EXPECT_NE(far.algorithm, "two-phase packets");
            if (collective != Collective::all_reduce) continue;
            const std::uint64_t in_lines =
                ArenaLayout{static_cast<unsigned>(ranks)}.lines_payload() * static_cast<std::uint64_t>(ranks);
            const Choice beyond = choice_of(operation_of(collective, in_lines + 1), facts);
            EXPECT_NE(refused_of(beyond, "lines")->reason.find("the arena holds lines of"),
                      std::string::npos);
        }
}

TEST(Choose, DependsOnNothingThatRanksDoNotShare) {
    char memory[64];
    for (const Collective collective : every)
        for (const std::uint64_t bytes : {8u, 100'000u, 10'000'000u}) {
            Operation one = operation_of(collective, bytes), other = one;
            other.send = memory + 1;
            other.recv = memory + 33;
            other.scale = 7;
            other.device_scale = memory;
            const Choice a = choice_of(one, group_of(4)), b = choice_of(other, group_of(4));
            EXPECT_EQ(a.shape, b.shape);
            EXPECT_EQ(a.blocks, b.blocks);
            EXPECT_EQ(a.expected_us, b.expected_us);
            EXPECT_EQ(a.reason, b.reason);
            EXPECT_EQ(a.refused, b.refused);
        }
}

TEST(Choose, EveryOtherAlgorithmSaysWhyNot) {
    for (const Collective collective : every)
        for (const int ranks : {1, 2, 4, 16})
            for (const std::uint64_t bytes : {1u, 100'000u, 100'000'000u}) {
                const Choice choice = choice_of(operation_of(collective, bytes), group_of(ranks));
                std::set<std::string> names = {choice.algorithm};
                for (const Refused& one : choice.refused) {
                    names.insert(one.path);
                    EXPECT_GT(one.reason.size(), 10u);
                }
                EXPECT_EQ(names, (std::set<std::string>{"one-shot packets", "one-shot Lamport",
                                                        "two-phase packets", "lines", "slices",
                                                        "pushed slices", "pairs", "ring", "copy engines"}));
                EXPECT_GT(choice.reason.size(), 10u);
            }
    const Choice choice = choice_of(operation_of(Collective::all_reduce, 8), group_of(4));
    EXPECT_NE(refused_of(choice, "slices")->reason.find("slower"), std::string::npos);
    EXPECT_GT(refused_of(choice, "slices")->gb_per_s, 0);
    EXPECT_EQ(refused_of(choice, "pairs")->reason, "blocks of pairs are not combined");
}

TEST(Choose, TheOnlyRankLeavesItsLinksAlone) {
    for (const Collective collective : every) {
        const Choice choice = choice_of(operation_of(collective, 1 << 20), group_of(1));
        EXPECT_LT(choice.expected_us, 4) << to_string(collective);
        EXPECT_NE(choice.reason.find("only rank"), std::string::npos);
    }
}

TEST(Choose, FiguresMayEndPacketsEarlierOrLater) {
    GroupFacts facts = group_of(4);
    facts.figures.one_shot_max = 4 << 10;
    facts.figures.packets_max = 64 << 10;
    facts.figures.lines_max = 512 << 10;
    const auto algorithm = [&](std::uint64_t bytes) {
        return choice_of(operation_of(Collective::all_reduce, bytes), facts).algorithm;
    };
    EXPECT_EQ(algorithm(4 << 10), "one-shot packets");
    EXPECT_EQ(algorithm((4 << 10) + 1), "two-phase packets");
    EXPECT_EQ(algorithm(64 << 10), "two-phase packets");
    EXPECT_EQ(algorithm((64 << 10) + 1), "lines");
    EXPECT_EQ(algorithm(512 << 10), "lines");
    EXPECT_EQ(algorithm((512 << 10) + 1), "slices");
    facts.figures.one_shot_max = 1 << 30;
    EXPECT_EQ(algorithm(128 << 10), "one-shot packets") << "as far as an arena holds them";
    EXPECT_EQ(algorithm((128 << 10) + 1), "lines");
    facts.figures.one_shot_max = 0;
    facts.figures.packets_max = 1 << 30;
    EXPECT_EQ(algorithm(512 << 10), "two-phase packets");
    EXPECT_EQ(algorithm((512 << 10) + 1), "slices");
    facts.figures.one_shot_max = facts.figures.packets_max = 1;
    facts.figures.lines_max = 1 << 30;
    facts.figures.link_gb_per_s = facts.figures.push_gb_per_s = 1;  // by price slices, which carry no flags
    EXPECT_EQ(algorithm(8), "lines") << "whatever they cost";
    EXPECT_EQ(algorithm(4 << 20), "lines");
    EXPECT_EQ(algorithm((4 << 20) + 1), "slices");
}

// Two H200: quicker than packets from 512 B on, and than lines up to 256 KiB (docs/lab-book.md, "Lamport").
TEST(Choose, SmallReductionsOfFloatsTakeLamport) {
    for (const Collective collective :
         {Collective::all_reduce, Collective::reduce, Collective::reduce_scatter})
        for (const Element element :
             {Element::f32, Element::bf16, Element::f16, Element::f8_e4m3, Element::f8_e5m2})
            for (const std::uint64_t bytes : {1u << 10, 8u << 10})
                EXPECT_EQ(choice_of(reduction_of(collective, bytes, element), group_of(4)).algorithm,
                          "one-shot Lamport");
    const auto algorithm = [](std::uint64_t bytes, int ranks) {
        return choice_of(reduction_of(Collective::all_reduce, bytes, Element::f32), group_of(ranks))
            .algorithm;
    };
    EXPECT_EQ(algorithm(256 << 10, 2), "one-shot Lamport");
    EXPECT_EQ(algorithm(512 << 10, 2), "lines");
    EXPECT_EQ(algorithm(128, 2), "one-shot packets");
    EXPECT_EQ(algorithm(128 << 10, 4), "one-shot Lamport");
    EXPECT_EQ(algorithm(512 << 10, 4), "lines");
    for (const Element element : {Element::f64, Element::i32, Element::u8}) {
        const Choice choice = choice_of(reduction_of(Collective::all_reduce, 64, element), group_of(4));
        EXPECT_EQ(choice.algorithm, "one-shot packets");
        EXPECT_NE(refused_of(choice, "one-shot Lamport")->reason.find("are free to say"), std::string::npos);
    }
    EXPECT_EQ(refused_of(choice_of(operation_of(Collective::all_gather, 64), group_of(4)), "one-shot Lamport")
                  ->reason,
              "the bytes have to arrive as they are, and it changes some NaNs into others");
}

TEST(Choose, FiguresMayEndLamport) {
    GroupFacts facts = group_of(4);
    const auto choice = [&](std::uint64_t bytes) {
        return choice_of(reduction_of(Collective::all_reduce, bytes, Element::f32), facts);
    };
    facts.figures.lamport_max = 4 << 10;
    EXPECT_EQ(choice(4 << 10).algorithm, "one-shot Lamport");
    EXPECT_EQ(refused_of(choice(4 << 10), "one-shot packets")->reason,
              "up to 4 KiB the figures of this machine take one-shot Lamport");
    EXPECT_NE(choice((4 << 10) + 4).algorithm, "one-shot Lamport");
    EXPECT_EQ(refused_of(choice((4 << 10) + 4), "one-shot Lamport")->reason,
              "above 4 KiB, where the figures of this machine end it");
    facts.figures.lamport_min = 1 << 10;
    EXPECT_EQ(choice(1 << 10).algorithm, "one-shot Lamport");
    EXPECT_EQ(refused_of(choice(4 << 10), "one-shot packets")->reason,
              "from 1 KiB up to 4 KiB the figures of this machine take one-shot Lamport");
    EXPECT_EQ(choice(1020).algorithm, "one-shot packets");
    EXPECT_EQ(refused_of(choice(1020), "one-shot Lamport")->reason,
              "below 1 KiB, where the figures of this machine begin it");
    facts.figures.lamport_min = 0;
    facts.figures.lamport_max = 1 << 30;
    facts.figures.one_shot_max = facts.figures.packets_max = facts.figures.lines_max = 1 << 30;
    EXPECT_EQ(choice(192 << 10).algorithm, "one-shot Lamport") << "as far as an arena holds it";
    EXPECT_EQ(choice((192 << 10) + 4).algorithm, "two-phase packets");
    EXPECT_EQ(refused_of(choice((192 << 10) + 4), "one-shot Lamport")
                  ->reason.find("192 KiB for each rank: the arena"),
              0u);
    facts.figures.lamport_max = 0;
    EXPECT_EQ(choice(8).algorithm, "one-shot packets") << "what a file of before says of packets still holds";
}

TEST(Choose, OtherCollectivesHaveAFigureOfTheirOwn) {
    GroupFacts facts = group_of(4);
    facts.figures.one_shot_max = facts.figures.packets_max = 1;
    facts.figures.others_lines_max = 1;
    EXPECT_EQ(choice_of(operation_of(Collective::all_gather, 4096), facts).algorithm, "one-shot packets");
    facts.figures.others_max = 4095;
    EXPECT_EQ(choice_of(operation_of(Collective::all_gather, 4096), facts).algorithm, "slices");
    EXPECT_EQ(choice_of(operation_of(Collective::all_to_all, 4096), facts).algorithm, "pairs");
    EXPECT_EQ(choice_of(operation_of(Collective::all_to_all, 4095), facts).algorithm, "one-shot packets");
    EXPECT_EQ(choice_of(operation_of(Collective::barrier, 0), facts).algorithm, "one-shot packets");
    facts.figures.others_max = 1 << 30;
    EXPECT_EQ(choice_of(operation_of(Collective::broadcast, 128 << 10), facts).algorithm, "one-shot packets");
    EXPECT_EQ(choice_of(operation_of(Collective::broadcast, (128 << 10) + 1), facts).algorithm, "slices");
}

TEST(Choose, EmulatedGpusUseFewBlocks) {
    GroupFacts facts = group_of(4);
    EXPECT_EQ(choice_of(operation_of(Collective::all_reduce, 1 << 30), facts).blocks, 128);
    EXPECT_EQ(choice_of(operation_of(Collective::all_gather, 1 << 30), facts).blocks, 64);
    facts.emulated = true;
    EXPECT_EQ(choice_of(operation_of(Collective::all_reduce, 1 << 30), facts).blocks, 4);
    facts.emulated = false;
    facts.figures.max_blocks = 7;
    EXPECT_EQ(choice_of(operation_of(Collective::all_reduce, 1 << 30), facts).blocks, 7);
    EXPECT_EQ(choice_of(operation_of(Collective::all_reduce, 8), facts).blocks, 1);
}

TEST(Choose, SaysWhichRanksShareAGpu) {
    GroupFacts facts = group_of(4);
    facts.shared_gpu = "rank 0 and rank 1 are on one GPU";
    for (const Collective collective : every) {
        const Choice choice = choice_of(operation_of(collective, 1 << 20), facts);
        EXPECT_NE(choice.reason.find("; " + facts.shared_gpu), std::string::npos) << choice.reason;
    }
}

TEST(Choose, SaysWhyArenasLieInHostMemory) {
    GroupFacts facts = group_of(4);
    facts.full_mesh = false;
    facts.wire = Wire::host_memory;
    facts.figures = built_in_figures(facts.wire);
    facts.why_not = "gpu:0 and gpu:3 have no peer access (different sockets)";
    for (const Collective collective : every) {
        const auto choice = choose(operation_of(collective, 1 << 20), facts, GroupPolicy::automatic);
        ASSERT_TRUE(choice.ok());
        EXPECT_NE(choice->reason.find("; the arenas lie in host memory: " + facts.why_not), std::string::npos)
            << choice->reason;
        GroupFacts mesh = group_of(4);
        const auto with_nvlink = choose(operation_of(collective, 1 << 20), mesh, GroupPolicy::automatic);
        EXPECT_EQ(with_nvlink->reason.find("host memory"), std::string::npos);
        EXPECT_GT(choice->expected_us, with_nvlink->expected_us);
        const auto by_engines = choose(operation_of(collective, 1 << 20), facts, GroupPolicy::zero_sm);
        ASSERT_FALSE(by_engines.ok());
        EXPECT_EQ(by_engines.error().code, ErrorCode::unsupported);
        if (combines(collective)) continue;
        EXPECT_NE(by_engines.error().message.find("the arenas lie in host memory (" + facts.why_not),
                  std::string::npos)
            << by_engines.error().message;
    }
    facts.ranks = 1;
    const Choice alone = choice_of(operation_of(Collective::all_reduce, 8), facts);
    EXPECT_EQ(alone.reason, "the only rank: nothing leaves its GPU");
}

TEST(Choose, ARingWhereLinksAreShared) {
    for (const Wire wire : {Wire::pcie, Wire::host_memory}) {
        GroupFacts facts = group_of(4);
        facts.wire = wire;
        facts.full_mesh = wire == Wire::pcie;
        facts.figures = built_in_figures(wire);
        for (const Collective collective : {Collective::all_reduce, Collective::reduce, Collective::broadcast,
                                            Collective::all_gather, Collective::reduce_scatter}) {
            const Choice choice = choice_of(operation_of(collective, 64 << 20), facts);
            // Results that one rank wants pass more links on a ring than they have to.
            const bool one_wants =
                collective == Collective::reduce || collective == Collective::reduce_scatter;
            EXPECT_EQ(choice.algorithm, one_wants && facts.full_mesh ? "slices" : "ring")
                << to_string(collective);
            EXPECT_EQ(choice.blocks, choice.algorithm == "ring" ? 16 : 32);
            EXPECT_EQ(choice.reason.find("the quickest at this size: "), 0u) << choice.reason;
            EXPECT_NE(choice_of(operation_of(collective, 64), facts).algorithm, "ring");
        }
        EXPECT_EQ(choice_of(operation_of(Collective::all_to_all, 64 << 20), facts).algorithm, "pairs");
        // Measured figures say of neighbours what they say of all, unless they were measured too.
        facts.figures.ring_gb_per_s = 0;
        const Choice measured = choice_of(operation_of(Collective::all_reduce, 64 << 20), facts);
        EXPECT_EQ(measured.algorithm, "slices");
        ASSERT_NE(refused_of(measured, "ring"), nullptr);
        EXPECT_NE(refused_of(measured, "ring")->reason.find("has more hops"), std::string::npos);
    }
    GroupFacts two = group_of(2);
    two.wire = Wire::pcie;
    two.figures = built_in_figures(two.wire);
    EXPECT_EQ(choice_of(operation_of(Collective::all_reduce, 64 << 20), two).algorithm, "slices");
}

// Sums of floats of 8 and 16 bits travel in 32.
TEST(Choose, ARingIsPricedByWhatTravels) {
    GroupFacts facts = group_of(4);
    facts.wire = Wire::pcie;
    facts.figures = built_in_figures(facts.wire);
    Operation operation = operation_of(Collective::all_reduce, 64 << 20);
    operation.element = Element::f8_e4m3;
    const Choice choice = choice_of(operation, facts);
    EXPECT_EQ(choice.algorithm, "slices");
    ASSERT_NE(refused_of(choice, "ring"), nullptr);
    EXPECT_NE(refused_of(choice, "ring")->reason.find("320 MiB through the links"), std::string::npos)
        << refused_of(choice, "ring")->reason;
}

constexpr Collective moving[] = {Collective::broadcast, Collective::all_gather, Collective::all_to_all,
                                 Collective::gather,    Collective::scatter,    Collective::barrier};

TEST(ZeroSm, TakesCopyEnginesWhateverTheyCost) {
    for (const Collective collective : moving)
        for (const int ranks : {1, 2, 4, 16})
            for (const bool emulated : {false, true}) {
                GroupFacts facts = group_of(ranks);
                facts.emulated = emulated;
                double us = 0;
                for (const std::uint64_t bytes : {1u, 4096u, 100'000u, 100'000'000u}) {
                    const auto choice = choose(operation_of(collective, bytes), facts, GroupPolicy::zero_sm);
                    ASSERT_TRUE(choice.ok()) << choice.error().to_string();
                    EXPECT_EQ(choice->shape, Shape::copies);
                    EXPECT_EQ(choice->algorithm, "copy engines");
                    EXPECT_EQ(choice->blocks, 0);
                    EXPECT_GE(choice->expected_us, us);
                    us = choice->expected_us;
                    std::set<std::string> names;
                    for (const Refused& one : choice->refused) names.insert(one.path);
                    EXPECT_EQ(names, (std::set<std::string>{"one-shot packets", "one-shot Lamport",
                                                            "two-phase packets", "lines", "slices",
                                                            "pushed slices", "pairs", "ring"}));
                }
            }
    const auto choice =
        choose(operation_of(Collective::all_gather, 1 << 20), group_of(4), GroupPolicy::zero_sm);
    EXPECT_EQ(choice->reason,
              "policy zero_sm leaves all thread blocks to others, but for the driver's own copy of a block "
              "that stays on its GPU "
              "and is not in place; 1 hop between GPUs, 3 MiB through the links out of or into the busiest");
    const Refused* slices = refused_of(*choice, "slices");
    ASSERT_NE(slices, nullptr);
    EXPECT_EQ(slices->reason.find("policy zero_sm: it takes thread blocks; "), 0u) << slices->reason;
    EXPECT_NE(slices->reason.find(" quicker: "), std::string::npos) << slices->reason;
    EXPECT_GT(slices->gb_per_s, 0);
    EXPECT_NE(plan_of(operation_of(Collective::all_gather, 1 << 20), *choice, 4, "")
                  .to_string()
                  .find("no thread block"),
              std::string::npos);
}

TEST(ZeroSm, IsOnlyForThosePoliciesAndSaysSo) {
    for (const Collective collective : moving) {
        if (collective == Collective::barrier) continue;
        const Choice choice = choice_of(operation_of(collective, 1 << 20), group_of(4));
        EXPECT_NE(choice.shape, Shape::copies);
        const Refused* copies = refused_of(choice, "copy engines");
        ASSERT_NE(copies, nullptr);
        EXPECT_EQ(copies->reason.find("policy zero_sm alone takes them"), 0u) << copies->reason;
        EXPECT_GT(copies->gb_per_s, 0);
    }
}

TEST(ZeroSm, RefusesWhatItCannotCarry) {
    const auto refused = [](const Operation& operation, int ranks) {
        const auto choice = choose(operation, group_of(ranks), GroupPolicy::zero_sm);
        EXPECT_FALSE(choice.ok());
        if (!choice.ok()) {
            EXPECT_EQ(choice.error().code, ErrorCode::unsupported);
        }
        return choice.ok() ? std::string() : choice.error().message;
    };
    for (const Collective collective :
         {Collective::reduce, Collective::all_reduce, Collective::reduce_scatter})
        EXPECT_EQ(refused(operation_of(collective, 8), 4),
                  "policy zero_sm: " + std::string(to_string(collective)) +
                      ": it combines elements, which copy engines cannot do");
    EXPECT_NE(refused(operation_of(Collective::send_recv, 0), 4).find("one pair would wait for another"),
              std::string::npos);
    // Blocks of any size.
    EXPECT_TRUE(choose(operation_of(Collective::all_gather, std::uint64_t{1} << 40), group_of(16),
                       GroupPolicy::zero_sm)
                    .ok());
    std::uint64_t counts[4] = {0, 1 << 20, 0, 1ull << 40};
    Operation lists = operation_of(Collective::all_to_all_v, 0);
    lists.blocks = {counts, counts, counts, counts, false};
    EXPECT_TRUE(choose(lists, group_of(4), GroupPolicy::zero_sm).ok());
    lists.blocks.on_device = true;
    EXPECT_NE(refused(lists, 4).find("known on the GPU only"), std::string::npos);
}

TEST(Choose, PairsArePricedByTheBytesThatThisRankKnows) {
    const std::uint64_t counts[4] = {0, 1 << 20, 0, 5};
    Operation operation = operation_of(Collective::all_to_all_v, 0);
    operation.blocks = {counts, counts, counts, counts, false};
    const double us = choice_of(operation, group_of(4)).expected_us;
    operation.blocks.on_device = true;
    EXPECT_LT(choice_of(operation, group_of(4)).expected_us, us);
    EXPECT_NE(choice_of(operation, group_of(4)).reason.find("known on the GPU"), std::string::npos);
    operation = operation_of(Collective::send_recv, 0);
    operation.pairs = {{true, 1, nullptr, 1 << 20}, {false, 3, nullptr, 1 << 10}};
    EXPECT_NEAR(choice_of(operation, group_of(4)).expected_us, us, 0.1);
}

}  // namespace
}  // namespace sidestep::collective
