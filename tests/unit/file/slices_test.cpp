#include "backends/file/slices.hpp"

#include <gtest/gtest.h>

namespace sidestep::backends::file {
namespace {

char* address(std::uintptr_t number) {
    return reinterpret_cast<char*>(number);
}

// The slices follow one another in file and memory, and are no larger than they may be.
void expect_seamless(const std::vector<Slice>& slices, char* at, Bytes offset, Bytes size) {
    Bytes sum = 0;
    for (const Slice& slice : slices) {
        EXPECT_EQ(slice.address, at + sum);
        EXPECT_EQ(slice.offset, offset + sum);
        EXPECT_GT(slice.size, 0u);
        EXPECT_LE(slice.size, slice_size);
        if (slice.direct) {
            EXPECT_EQ(slice.offset % direct_block, 0u);
            EXPECT_EQ(slice.size % direct_block, 0u);
            EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slice.address) % direct_block, 0u);
        }
        sum += slice.size;
    }
    EXPECT_EQ(sum, size);
}

TEST(Slices, CoverThePieceExactly) {
    for (const bool direct : {false, true}) {
        for (const Bytes size : {Bytes{1}, Bytes{4095}, 4_KiB, 4_KiB + 1, 2_MiB, 2_MiB + 1, 9_MiB + 7}) {
            for (const Bytes offset : {Bytes{0}, Bytes{1}, 4_KiB, 1_MiB + 5}) {
                // Lying alike within a block, and not.
                for (const std::uintptr_t at :
                     {std::uintptr_t{1} << 30, (std::uintptr_t{1} << 30) + offset % 4096}) {
                    expect_seamless(cut(address(at), offset, size, direct), address(at), offset, size);
                }
            }
        }
    }
}

TEST(Slices, OnlyTheEndsOfADirectPieceGoThroughTheCache) {
    const auto slices = cut(address(0x10000FF0), 0xFF0, 3_MiB, true);
    ASSERT_EQ(slices.size(), 4u);
    EXPECT_FALSE(slices[0].direct);
    EXPECT_EQ(slices[0].size, 16u);
    EXPECT_TRUE(slices[1].direct && slices[2].direct);
    EXPECT_FALSE(slices[3].direct);
    EXPECT_EQ(slices[3].size, 0xFF0u);
}

TEST(Slices, WhatLiesDifferentlyWithinABlockCannotGoDirect) {
    EXPECT_TRUE(can_go_direct(address(0x10000000), 4_KiB, 4_KiB));
    EXPECT_FALSE(can_go_direct(address(0x10000001), 4_KiB, 4_KiB));
    EXPECT_TRUE(can_go_direct(address(0x10000001), 4_KiB + 1, 8_KiB));
    EXPECT_FALSE(can_go_direct(address(0x10000001), 4_KiB + 1, 4_KiB));  // no whole block in it
    for (const Slice& slice : cut(address(0x10000001), 4_KiB, 4_MiB, true)) EXPECT_FALSE(slice.direct);
}

}  // namespace
}  // namespace sidestep::backends::file
