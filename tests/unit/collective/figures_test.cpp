// The file of a machine's figures: read back as written, and every mistake named.
#include <gtest/gtest.h>

#include "collective/choose.hpp"

namespace sidestep::collective {
namespace {

TEST(FiguresFile, EveryFigureIsReadAndReachesTheOtherRanks) {
    const auto handed_on =
        figures_for_others(R"({"version": 1, "machine": "4 x H200 \"quoted\"", "launch_us": 1.25,
        "hop_us": 0.75, "link_gb_per_s": 123.5, "push_gb_per_s": 140, "ring_gb_per_s": 150.25, "local_gb_per_s": 4000,
        "packet_gb_per_s": 55, "block_gb_per_s": 0.1, "one_shot_max": 12345, "lamport_min": 54, "lamport_max": 54321,
        "packets_max": 8589934592, "lines_max": 17179869184, "others_max": 7, "others_lines_max": 9,
        "max_blocks": 48})");
    ASSERT_TRUE(handed_on.ok()) << handed_on.error().to_string();
    EXPECT_EQ(handed_on->find("H200"), std::string::npos) << "for people alone";
    const auto read = parse_figures(*handed_on, Wire::nvlink);
    ASSERT_TRUE(read.ok()) << read.error().to_string();
    EXPECT_EQ(read->launch_us, 1.25);
    EXPECT_EQ(read->hop_us, 0.75);
    EXPECT_EQ(read->link_gb_per_s, 123.5);
    EXPECT_EQ(read->push_gb_per_s, 140);
    EXPECT_EQ(read->ring_gb_per_s, 150.25);
    EXPECT_EQ(read->local_gb_per_s, 4000);
    EXPECT_EQ(read->packet_gb_per_s, 55);
    EXPECT_EQ(read->block_gb_per_s, 0.1);
    EXPECT_EQ(read->one_shot_max, 12345u);
    EXPECT_EQ(read->lamport_min, 54u);
    EXPECT_EQ(read->lamport_max, 54321u);
    EXPECT_EQ(read->packets_max, std::uint64_t{1} << 33);
    EXPECT_EQ(read->lines_max, std::uint64_t{1} << 34);
    EXPECT_EQ(read->others_max, 7u);
    EXPECT_EQ(read->others_lines_max, 9u);
    EXPECT_EQ(read->max_blocks, 48);
}

TEST(FiguresFile, WhatItLeavesOutStaysBuiltInForWhatJoinsTheGpus) {
    for (const Wire wire : {Wire::nvlink, Wire::pcie, Wire::host_memory}) {
        const Figures built_in = built_in_figures(wire);
        const auto handed_on = figures_for_others(R"({"version": 1, "machine": "m", "launch_us": 9})");
        ASSERT_TRUE(handed_on.ok());
        const auto read = parse_figures(*handed_on, wire);
        ASSERT_TRUE(read.ok());
        EXPECT_EQ(read->launch_us, 9);
        EXPECT_EQ(read->hop_us, built_in.hop_us);
        EXPECT_EQ(read->push_gb_per_s, built_in.push_gb_per_s);
        EXPECT_EQ(read->ring_gb_per_s, built_in.ring_gb_per_s);
        EXPECT_EQ(read->max_blocks, built_in.max_blocks);
        EXPECT_EQ(parse_figures(R"({"version": 1, "link_gb_per_s": 20})", wire)->push_gb_per_s, 0);
        EXPECT_EQ(parse_figures(R"({"version": 1, "link_gb_per_s": 20})", wire)->ring_gb_per_s,
                  built_in.ring_gb_per_s);
    }
}

TEST(FiguresFile, NamesWhatIsWrong) {
    const std::pair<std::string, std::string> files[] = {
        {"", "no JSON"},
        {"{\n\"version\": 1,\n\"hop_us\" 2}", "line 3"},
        {"[1]", "no object"},
        {"7", "no object"},
        {R"({"hop_us": 2})", "has no \"version\""},
        {R"({"version": 2})", "\"version\" is 2, and this program reads 1"},
        {R"({"version": "1"})", "\"version\" is \"1\""},
        {R"({"version": 1.0})", "\"version\" is 1.0"},
        {R"({"version": 1, "hops": 2})", "\"hops\" is not a figure"},
        {R"({"version": 1, "hop_us": 2, "hop_us": 3})", "\"hop_us\" appears twice"},
        {R"({"version": 1, "hop_us": "2"})", "\"hop_us\" is not a number"},
        {R"({"version": 1, "hop_us": null})", "\"hop_us\" is not a number"},
        {R"({"version": 1, "hop_us": -0.1})", "\"hop_us\" is -0.1: from 0 to 10000"},
        {R"({"version": 1, "link_gb_per_s": 0})", "\"link_gb_per_s\" is 0"},
        {R"({"version": 1, "link_gb_per_s": 1e300})", "\"link_gb_per_s\" is 1e+300"},
        {R"({"version": 1, "link_gb_per_s": 1e999})", "no JSON"},
        {R"({"version": 1, "max_blocks": 65})", "\"max_blocks\" is 65: from 1 to 64"},
        {R"({"version": 1, "max_blocks": 0})", "\"max_blocks\" is 0"},
        {R"({"version": 1, "max_blocks": 8.5})", "\"max_blocks\" is not a whole number"},
        {R"({"version": 1, "one_shot_max": -1})", "\"one_shot_max\" is -1"},
        {R"({"version": 1, "packets_max": 99999999999999})", "\"packets_max\" is 99999999999999"},
        {R"({"version": 1, "lamport_min": 4096, "lamport_max": 4095})",
         "\"lamport_min\" is 4096, above \"lamport_max\", 4095"},
        {R"({"version": 1, "lamport_min": 1})", "above \"lamport_max\", 0"},
        {R"({"version": 1, "machine": 4})", "\"machine\" is not a string"},
        {std::string(70'000, ' '), "at most 64 KiB"},
    };
    for (const auto& [text, words] : files) {
        EXPECT_FALSE(figures_for_others(text).ok()) << text.substr(0, 80);
        const auto read = parse_figures(text, Wire::nvlink);
        ASSERT_FALSE(read.ok()) << text.substr(0, 80);
        EXPECT_EQ(read.error().code, ErrorCode::invalid_argument);
        EXPECT_NE(read.error().message.find(words), std::string::npos)
            << read.error().message << "\n  instead of " << words;
        EXPECT_FALSE(read.error().where.empty());
    }
}

}  // namespace
}  // namespace sidestep::collective
