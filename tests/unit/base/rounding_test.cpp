#include "base/rounding.hpp"

#include <gtest/gtest.h>

namespace sidestep::base {
namespace {

static_assert(round_up(1, 4096) == 4096);

TEST(RoundUp, GivesTheNextMultiple) {
    EXPECT_EQ(round_up(0, 4096), 0u);
    EXPECT_EQ(round_up(4096, 4096), 4096u);
    EXPECT_EQ(round_up(4097, 4096), 8192u);
    EXPECT_EQ(round_up(10, 3), 12u);
    EXPECT_EQ(round_up(7, 1), 7u);
}

TEST(RoundUp, NeverOverflows) {
    constexpr Bytes most = ~Bytes{0};
    EXPECT_EQ(round_up(most, 4096), most - 4095);
    EXPECT_EQ(round_up(most - 4095, 4096), most - 4095);
    EXPECT_EQ(round_up(most - 4096, 4096), most - 4095);
    EXPECT_EQ(round_up(most, 1), most);
    EXPECT_EQ(round_up(most, most), most);
    EXPECT_EQ(round_up(1, most), most);
    EXPECT_EQ(round_up(most, Bytes{1} << 63), Bytes{1} << 63);
    EXPECT_EQ(round_up((Bytes{1} << 63) + 1, Bytes{1} << 63), Bytes{1} << 63);
}

}  // namespace
}  // namespace sidestep::base
