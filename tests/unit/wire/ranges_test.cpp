#include "wire/ranges.hpp"

#include <random>

#include <gtest/gtest.h>

namespace sidestep::wire {
namespace {

TEST(WireRanges, NeighboursBecomeOne) {
    Ranges ranges;
    EXPECT_EQ(ranges.missing(10), (std::vector<Range>{{0, 10}}));
    EXPECT_TRUE(ranges.add({2, 4}));
    EXPECT_TRUE(ranges.add({6, 8}));
    EXPECT_EQ(ranges.missing(10), (std::vector<Range>{{0, 2}, {4, 6}, {8, 10}}));
    EXPECT_TRUE(ranges.add({4, 6}));
    EXPECT_EQ(ranges.missing(10), (std::vector<Range>{{0, 2}, {8, 10}}));
    EXPECT_TRUE(ranges.add({0, 2}));
    EXPECT_TRUE(ranges.add({8, 10}));
    EXPECT_TRUE(ranges.missing(10).empty());
    EXPECT_TRUE(Ranges().missing(0).empty());
}

// Against a list of bytes.
TEST(WireRanges, NoByteIsTakenTwice) {
    std::minstd_rand random(5);
    for (int round = 0; round < 300; ++round) {
        constexpr Bytes size = 24;
        Ranges ranges;
        std::vector<bool> there(size);
        for (int step = 0; step < 20; ++step) {
            const Bytes begin = random() % size;
            const Bytes end = begin + random() % (size - begin + 1);
            bool overlaps = false;
            for (Bytes i = begin; i < end; ++i) overlaps = overlaps || there[i];
            ASSERT_EQ(ranges.add({begin, end}), !overlaps) << begin << " to " << end;
            for (Bytes i = begin; i < end && !overlaps; ++i) there[i] = true;
            std::vector<bool> missing(size);
            for (const Range& gap : ranges.missing(size)) {
                ASSERT_LT(gap.begin, gap.end);
                for (Bytes i = gap.begin; i < gap.end; ++i) missing[i] = true;
            }
            for (Bytes i = 0; i < size; ++i) ASSERT_EQ(missing[i], !there[i]) << i;
        }
    }
}

}  // namespace
}  // namespace sidestep::wire
