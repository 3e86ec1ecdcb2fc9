// Which cards two machines join for a rail.
#include "backends/verbs/meeting.hpp"

#include <gtest/gtest.h>

namespace sidestep::backends::verbs {
namespace {

CardAddress ethernet(int a, int b, int c, int d) {
    CardAddress card;
    card.gid[10] = card.gid[11] = 0xff;
    card.gid[12] = static_cast<unsigned char>(a);
    card.gid[13] = static_cast<unsigned char>(b);
    card.gid[14] = static_cast<unsigned char>(c);
    card.gid[15] = static_cast<unsigned char>(d);
    return card;
}

CardAddress infiniband(const char* gid) {
    return {LinkLayer::infiniband, parse_gid(gid).value()};
}

const CardAddress ib_one = infiniband("fe80:0000:0000:0000:0002:c903:0000:0001");
const CardAddress ib_two = infiniband("fe80:0000:0000:0000:0002:c903:0000:0f02");
const CardAddress ib_three = infiniband("fe80:0000:0000:0000:0002:c903:0000:0f03");

TEST(Meeting, ComesBackAsItWas) {
    const Meeting meeting{7, 3, {ethernet(10, 9, 0, 1), ib_two}};
    const auto bytes = to_bytes(meeting);
    const auto parsed = parse_meeting(bytes.data());
    ASSERT_TRUE(parsed) << parsed.error().to_string();
    EXPECT_EQ(*parsed, meeting);
}

TEST(Meeting, OtherBytesAreRefused) {
    struct Case {
        std::size_t at;
        unsigned char byte;
        const char* why;
    };
    for (const auto& [at, byte, why] :
         {Case{0, 'X', "something else"}, Case{4, 2, "another version"}, Case{6, 0, "no card"},
          Case{6, 9, "too many"}, Case{14, 1, "mean nothing"}, Case{16, 0, "of no kind"},
          Case{16, 3, "of no kind"}, Case{16 + 17, 1, "behind the last"},
          Case{meeting_bytes - 1, 1, "behind the last"}}) {
        auto bytes = to_bytes(Meeting{7, 3, {ethernet(10, 9, 0, 1)}});
        bytes[at] = byte;
        const auto parsed = parse_meeting(bytes.data());
        ASSERT_FALSE(parsed) << at;
        EXPECT_NE(parsed.error().message.find(why), std::string::npos) << at << parsed.error().message;
    }
}

// Both ends choose the same two cards; the lower lot says which rail it is.
TEST(Meeting, BothEndsChooseTheSameCards) {
    struct Case {
        const char* what;
        std::vector<CardAddress> mine;
        std::vector<CardAddress> theirs;
        std::vector<JoinedCards> rails;  // by their number
    };
    const auto a1 = ethernet(10, 9, 0, 1), b1 = ethernet(10, 9, 1, 1);
    const auto a2 = ethernet(10, 9, 0, 2), b2 = ethernet(10, 9, 1, 2);
    const std::vector<Case> cases = {
        {"one each", {a1}, {a2}, {{0, 0}, {0, 0}}},
        {"a network for each card", {a1, b1}, {a2, b2}, {{0, 0}, {1, 1}, {0, 0}}},
        {"listed the other way round", {a1, b1}, {b2, a2}, {{0, 1}, {1, 0}, {0, 1}}},
        {"a card is out there", {a1, b1}, {b2}, {{1, 0}, {1, 0}}},
        {"a card is out here", {b1}, {a2, b2}, {{0, 1}, {0, 1}}},
        {"others are out at both ends", {a1}, {b2}, {{0, 0}}},
        {"one machine", {a1, b1}, {a1, b1}, {{0, 0}, {1, 1}}},
        {"one network", {ib_one, ib_two}, {ib_three, ib_one}, {{0, 0}, {1, 1}}},
        {"of two kinds", {ib_one, a1}, {a2, ib_two}, {{0, 1}, {1, 0}}},
    };
    for (const Case& one : cases)
        for (std::size_t rail = 0; rail < one.rails.size(); ++rail)
            for (const std::uint32_t lot : {1u, 3u}) {
                // Who has the higher lot may count differently.
                const auto right = static_cast<std::uint16_t>(rail),
                           wrong = static_cast<std::uint16_t>(rail + 1);
                const Meeting mine{lot, lot < 2 ? right : wrong, one.mine};
                const Meeting theirs{2, lot < 2 ? wrong : right, one.theirs};
                const auto here = choose_cards(mine, theirs);
                const auto there = choose_cards(theirs, mine);
                ASSERT_TRUE(here && there) << one.what;
                if (lot < 2) {
                    EXPECT_EQ(*here, one.rails[rail]) << one.what << ", rail " << rail;
                }
                EXPECT_EQ(here->mine, there->theirs) << one.what;
                EXPECT_EQ(here->theirs, there->mine) << one.what;
            }
    EXPECT_FALSE(choose_cards({1, 0, {ib_one}}, {2, 0, {a1}}));
}

}  // namespace
}  // namespace sidestep::backends::verbs
