// What the two ends of a queue pair say first, and how a card's address is chosen.
#include "backends/verbs/greeting.hpp"

#include <functional>

#include <gtest/gtest.h>
#include "backends/verbs/message.hpp"

namespace sidestep::backends::verbs {
namespace {

Gid gid_of(const char* text) {
    return parse_gid(text).value();
}

const char* const ipv4 = "0000:0000:0000:0000:0000:ffff:0a09:0001";
const char* const ipv6 = "2001:0db8:0000:0000:0000:0000:0000:0001";
const char* const link_local = "fe80:0000:0000:0000:0000:00ff:fe00:0001";

Greeting good() {
    return {0x123456, 0xabcdef, gid_of(ipv4), 7, 3, LinkLayer::ethernet, 4096, 64, 32, {3, 4, 8}};
}

TEST(Greeting, ComesBackAsItWas) {
    const auto bytes = to_bytes(good());
    const auto parsed = parse_greeting(bytes.data());
    ASSERT_TRUE(parsed.ok()) << parsed.error().to_string();
    EXPECT_EQ(*parsed, good());
    EXPECT_EQ(std::string(bytes.begin(), bytes.begin() + 4), "SSVB");
    EXPECT_EQ(bytes[8], 0x56) << "the lowest byte first";
}

TEST(Greeting, OtherBytesAreRefused) {
    struct Case {
        std::size_t at;
        unsigned char byte;
        const char* why;
    };
    const std::vector<Case> cases = {
        {0, 'X', "it is none"},     {4, 3, "version 3"},     {6, 47, "another size"},
        {11, 1, "no queue pair"},   {15, 1, "24 bits"},      {34, 0, "packet size 0"},
        {34, 6, "packet size 6"},   {35, 0, "link layer 0"}, {35, 3, "link layer 3"},
        {37, 0, "buffers of 0"},    {39, 1, "buffers of"},   {40, 3, "3 buffers"},
        {41, 0x20, "8256 buffers"}, {42, 0, "0 offers"},     {43, 8, "2080 offers"},
        {44, 1, "mean nothing"},    {47, 1, "mean nothing"}, {48, 9, "farther away"},
        {63, 0xff, "farther away"}};
    for (const auto& [at, byte, why] : cases) {
        auto bytes = to_bytes(good());
        bytes[at] = byte;
        const auto parsed = parse_greeting(bytes.data());
        ASSERT_FALSE(parsed.ok()) << at;
        EXPECT_EQ(parsed.error().code, ErrorCode::io_error);
        EXPECT_NE(parsed.error().message.find(why), std::string::npos)
            << at << ": " << parsed.error().message;
    }
}

TEST(Greeting, NeedsAnAddress) {
    const std::vector<std::function<void(Greeting&)>> bad = {
        [](Greeting& one) { one.queue_pair = 0; },
        [](Greeting& one) { one.gid = {}; },
        [](Greeting& one) { one.gid = {}, one.lid = 0, one.layer = LinkLayer::infiniband; },
    };
    for (std::size_t i = 0; i < bad.size(); ++i) {
        Greeting greeting = good();
        bad[i](greeting);
        EXPECT_FALSE(parse_greeting(to_bytes(greeting).data()).ok()) << i;
    }
    Greeting by_lid = good();
    by_lid.gid = {};
    by_lid.layer = LinkLayer::infiniband;
    EXPECT_TRUE(parse_greeting(to_bytes(by_lid).data()).ok());
}

TEST(Greeting, BothEndsKeepToTheLess) {
    Greeting mine = good(), theirs = good();
    theirs.mtu = 5;
    theirs.eager = 2048;
    theirs.offers = 99;
    theirs.receives = 9;
    theirs.queue_pair = 1;
    const auto agreed = agree(mine, theirs);
    ASSERT_TRUE(agreed.ok());
    EXPECT_EQ(agreed->mtu, 3);
    EXPECT_EQ(agreed->eager, 2048u);
    EXPECT_EQ(agreed->offers, 32);
    EXPECT_EQ(agreed->receives, 9) << "buffers of the other end";
    EXPECT_EQ(agreed->queue_pair, 1u);
    theirs.layer = LinkLayer::infiniband;
    ASSERT_FALSE(agree(mine, theirs).ok());
    EXPECT_FALSE(agree(mine, theirs).error().hint.empty());
}

TEST(ChooseGid, RoceTwoOverIpv4First) {
    const std::vector<GidEntry> table = {
        {0, gid_of(link_local), "IB/RoCE v1"}, {1, gid_of(link_local), "RoCE v2"},
        {2, gid_of(ipv4), "IB/RoCE v1"},       {3, {}, "RoCE v2"},
        {4, gid_of(ipv6), "RoCE v2"},          {5, gid_of(ipv4), "RoCE v2"}};
    const auto chosen = [&](std::size_t count) {
        return choose_gid({table.begin(), table.begin() + static_cast<std::ptrdiff_t>(count)}, "mlx5_0");
    };
    EXPECT_EQ(chosen(6).value().index, 5);
    EXPECT_EQ(chosen(5).value().index, 4);
    EXPECT_EQ(chosen(4).value().index, 1);
    ASSERT_FALSE(chosen(1).ok());
    EXPECT_EQ(chosen(1).error().code, ErrorCode::not_found);
    EXPECT_NE(chosen(1).error().message.find("mlx5_0"), std::string::npos);
    EXPECT_FALSE(chosen(0).ok());
}

TEST(ParseGid, TakesWhatSysfsSays) {
    EXPECT_EQ(gid_of(ipv4)[15], 1);
    EXPECT_EQ(gid_of(ipv4)[11], 0xff);
    EXPECT_EQ(gid_of(link_local)[0], 0xfe);
    for (const char* text :
         {"", "fe80", "fe80:0000:0000:0000:0000:00ff:fe00", "fe80-0000:0000:0000:0000:00ff:fe00:0001",
          "fe8x:0000:0000:0000:0000:00ff:fe00:0001"})
        EXPECT_FALSE(parse_gid(text).ok()) << text;
}

TEST(Head, ComesBackAsItWas) {
    const Head head{Head::Kind::here, 0x1234, 31, 0x1122334455667788, 0xa1b2c3d4};
    unsigned char bytes[head_bytes];
    to_bytes(head, bytes);
    const auto parsed = parse_head(bytes);
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, head);
    const std::pair<std::size_t, unsigned char> wrong[] = {{0, 0}, {0, 6},  {1, 1}, {6, 1},
                                                           {7, 1}, {20, 1}, {23, 1}};
    for (const auto& [at, byte] : wrong) {
        to_bytes(head, bytes);
        bytes[at] = byte;
        EXPECT_FALSE(parse_head(bytes).ok()) << at;
    }
}

}  // namespace
}  // namespace sidestep::backends::verbs
