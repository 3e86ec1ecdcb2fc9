// The file of a machine's figures: read back as written, and every mistake named.
#include <gtest/gtest.h>

#include "collective/choose.hpp"

namespace sidestep::collective {
namespace {

TEST(FiguresFile, ReadsWhatItWrites) {
    Figures figures;
    figures.launch_us = 1.25;
    figures.hop_us = 0.75;
    figures.link_gb_per_s = 123.5;
    figures.local_gb_per_s = 4000;
    figures.packet_gb_per_s = 55;
    figures.block_gb_per_s = 0.1;
    figures.one_shot_most = 12345;
    figures.lamport_most = 54321;
    figures.packets_most = std::uint64_t{1} << 33;
    figures.lines_most = std::uint64_t{1} << 34;
    figures.others_most = 7;
    figures.others_lines_most = 9;
    figures.most_blocks = 64;
    const auto read = parse_figures(to_json(figures, "4 x H200 \"quoted\" \xff"));
    ASSERT_TRUE(read.ok()) << read.error().to_string();
    EXPECT_EQ(read->launch_us, 1.25);
    EXPECT_EQ(read->hop_us, 0.75);
    EXPECT_EQ(read->link_gb_per_s, 123.5);
    EXPECT_EQ(read->local_gb_per_s, 4000);
    EXPECT_EQ(read->packet_gb_per_s, 55);
    EXPECT_EQ(read->block_gb_per_s, 0.1);
    EXPECT_EQ(read->one_shot_most, 12345u);
    EXPECT_EQ(read->lamport_most, 54321u);
    EXPECT_EQ(read->packets_most, std::uint64_t{1} << 33);
    EXPECT_EQ(read->lines_most, std::uint64_t{1} << 34);
    EXPECT_EQ(read->others_most, 7u);
    EXPECT_EQ(read->others_lines_most, 9u);
    EXPECT_EQ(read->most_blocks, 64);
}

TEST(FiguresFile, WhatItLeavesOutStaysBuiltIn) {
    const auto read = parse_figures(R"({"version": 1, "machine": "m", "hop_us": 2})");
    ASSERT_TRUE(read.ok());
    EXPECT_EQ(read->hop_us, 2);
    EXPECT_EQ(read->launch_us, Figures{}.launch_us);
    EXPECT_EQ(read->most_blocks, Figures{}.most_blocks);
    EXPECT_EQ(parse_figures(R"({"version": 1})")->push_gb_per_s, Figures{}.push_gb_per_s);
    EXPECT_EQ(parse_figures(R"({"version": 1, "link_gb_per_s": 20})")->push_gb_per_s, 0);
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
        {R"({"version": 1, "hops": 2})", "\"hops\" is no figure"},
        {R"({"version": 1, "hop_us": 2, "hop_us": 3})", "\"hop_us\" stands there twice"},
        {R"({"version": 1, "hop_us": "2"})", "\"hop_us\" is no number"},
        {R"({"version": 1, "hop_us": null})", "\"hop_us\" is no number"},
        {R"({"version": 1, "hop_us": -0.1})", "\"hop_us\" is -0.1: from 0 to 10000"},
        {R"({"version": 1, "link_gb_per_s": 0})", "\"link_gb_per_s\" is 0"},
        {R"({"version": 1, "link_gb_per_s": 1e300})", "\"link_gb_per_s\" is 1e+300"},
        {R"({"version": 1, "link_gb_per_s": 1e999})", "no JSON"},
        {R"({"version": 1, "most_blocks": 65})", "\"most_blocks\" is 65: from 1 to 64"},
        {R"({"version": 1, "most_blocks": 0})", "\"most_blocks\" is 0"},
        {R"({"version": 1, "most_blocks": 8.5})", "\"most_blocks\" is no whole number"},
        {R"({"version": 1, "one_shot_most": -1})", "\"one_shot_most\" is -1"},
        {R"({"version": 1, "packets_most": 99999999999999})", "\"packets_most\" is 99999999999999"},
        {R"({"version": 1, "machine": 4})", "\"machine\" is no text"},
        {std::string(70'000, ' '), "at most 64 KiB"},
    };
    for (const auto& [text, words] : files) {
        const auto read = parse_figures(text);
        ASSERT_FALSE(read.ok()) << text.substr(0, 80);
        EXPECT_EQ(read.error().code, ErrorCode::invalid_argument);
        EXPECT_NE(read.error().message.find(words), std::string::npos)
            << read.error().message << "\n  instead of " << words;
        EXPECT_FALSE(read.error().where.empty());
    }
}

}  // namespace
}  // namespace sidestep::collective
