#include "backends/file/slices.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace sidestep::backends::file {
namespace {

char* address(std::uintptr_t number) {
    return reinterpret_cast<char*>(number);
}

// What was asked for follows one another in file and memory; requests are no larger than they may be, stay
// within the room, and those around the page cache are whole blocks.
void expect_seamless(const std::vector<Slice>& slices, const Stretch& stretch, Bytes memory_alignment,
                     Bytes largest = slice_size) {
    Bytes sum = 0;
    for (const Slice& slice : slices) {
        EXPECT_EQ(slice.address + slice.before, stretch.address + sum);
        EXPECT_EQ(slice.offset + slice.before, stretch.offset + sum);
        EXPECT_GT(slice.asked(), 0u);
        EXPECT_LT(slice.size, largest + min_question);
        EXPECT_GE(slice.address, stretch.address - stretch.room_before);
        EXPECT_LE(slice.address + slice.size, stretch.address + stretch.size + stretch.room_after);
        if (slice.direct) {
            EXPECT_EQ(slice.offset % direct_block, 0u);
            EXPECT_EQ(slice.size % direct_block, 0u);
            EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slice.address) % memory_alignment, 0u);
        } else {
            EXPECT_EQ(slice.before + slice.after, 0u);
        }
        sum += slice.asked();
    }
    EXPECT_EQ(sum, stretch.size);
}

TEST(Slices, CoverThePieceExactly) {
    constexpr std::uintptr_t base = std::uintptr_t{1} << 30;
    for (const Bytes size : {Bytes{1}, Bytes{4095}, 4_KiB, 4_KiB + 1, 2_MiB, 2_MiB + 1, 9_MiB + 7})
        for (const Bytes offset : {Bytes{0}, Bytes{1}, 4_KiB, 1_MiB + 5, 1_GiB * 4096 + 17})
            for (const std::uintptr_t at : {base, base + offset % 4096, base + offset % 512})
                for (const Bytes before : {Bytes{0}, Bytes{16}, Bytes{4095}})
                    for (const Bytes after : {Bytes{0}, Bytes{100}, Bytes{4095}})
                        for (const Bytes alignment : {Bytes{4}, Bytes{512}, Bytes{4096}}) {
                            const Stretch stretch{address(at), offset, size, before, after};
                            expect_seamless(cut(stretch, false), stretch, alignment);
                            if (!can_go_direct(stretch, alignment)) continue;
                            expect_seamless(cut(stretch, true), stretch, alignment);
                            expect_seamless(cut(stretch, true, written_slice_size), stretch, alignment,
                                            written_slice_size);
                        }
}

TEST(Slices, OnlyTheEndsOfADirectPieceGoThroughTheCache) {
    const auto slices = cut({address(0x10000FF0), 0xFF0, 3_MiB}, true);
    ASSERT_EQ(slices.size(), 4u);
    EXPECT_FALSE(slices[0].direct);
    EXPECT_EQ(slices[0].size, 16u);
    EXPECT_TRUE(slices[1].direct && slices[2].direct);
    EXPECT_FALSE(slices[3].direct);
    EXPECT_EQ(slices[3].size, 0xFF0u);
}

TEST(Slices, WhereThereIsRoomTheEndsGoAroundToo) {
    // Three bytes, anywhere in a file, with a whole block on either side of them to spare.
    auto slices = cut({address(0x10000FF0), 0xFF0, 3, 0xFF0, 0xD}, true);
    ASSERT_EQ(slices.size(), 1u);
    EXPECT_TRUE(slices[0].direct);
    EXPECT_EQ(slices[0].address, address(0x10000000));
    EXPECT_EQ(slices[0].offset, 0u);
    EXPECT_EQ(slices[0].size, 4_KiB);
    EXPECT_EQ(slices[0].before, 0xFF0u);
    EXPECT_EQ(slices[0].after, 0xDu);
    slices[0].go_through_cache();
    EXPECT_EQ(slices[0].address, address(0x10000FF0));
    EXPECT_EQ(slices[0].offset, 0xFF0u);
    EXPECT_EQ(slices[0].size, 3u);
    EXPECT_EQ(slices[0].asked(), 3u);
    // One byte short of room: that end goes through the cache.
    slices = cut({address(0x10000FF0), 0xFF0, 4_MiB, 0xFEF, 0x10}, true);
    ASSERT_EQ(slices.size(), 3u);
    EXPECT_FALSE(slices[0].direct);
    EXPECT_TRUE(slices[2].direct);
    EXPECT_EQ(slices[2].after, 0x10u);
}

TEST(Slices, WhatLiesDifferentlyCannotGoDirect) {
    EXPECT_TRUE(can_go_direct({address(0x10000000), 4_KiB, 4_KiB}, 4_KiB));
    EXPECT_FALSE(can_go_direct({address(0x10000001), 4_KiB, 4_KiB}, 4_KiB));
    EXPECT_TRUE(can_go_direct({address(0x10000001), 4_KiB + 1, 8_KiB}, 4_KiB));
    EXPECT_FALSE(can_go_direct({address(0x10000001), 4_KiB + 1, 4_KiB}, 4_KiB));  // no whole block in it
    EXPECT_TRUE(can_go_direct({address(0x10000001), 4_KiB + 1, 1, 1, 4_KiB}, 4_KiB));
    // A device that takes memory at multiples of 4 or 512.
    EXPECT_TRUE(can_go_direct({address(0x10000010), 4_KiB, 4_KiB}, 4));
    EXPECT_TRUE(can_go_direct({address(0x10000200), 4_KiB, 4_KiB}, 512));
    EXPECT_FALSE(can_go_direct({address(0x10000010), 4_KiB, 4_KiB}, 512));
}

// A page cache that holds what a test says.
struct Cache {
    struct Held {
        Bytes begin = 0;
        Bytes end = 0;
        bool dirty = false;
    };
    std::vector<Held> held;
    bool tells = true;
    int questions = 0;

    AskCache ask() {
        return [this](Bytes offset, Bytes size) -> std::optional<driver::CachedPart> {
            ++questions;
            if (!tells) return std::nullopt;
            driver::CachedPart part;
            for (const Held& range : held) {
                const Bytes begin = std::max(range.begin, offset), end = std::min(range.end, offset + size);
                if (begin >= end) continue;
                part.bytes += end - begin;
                part.dirty |= range.dirty;
            }
            return part;
        };
    }
};

// 'd' for each slice around the page cache, 'c' for each through it.
std::string ways(const std::vector<Slice>& slices) {
    std::string text;
    for (const Slice& slice : slices) text += slice.direct ? 'd' : 'c';
    return text;
}

std::string decided(Cache& cache, Bytes size = 8_MiB) {
    auto slices = cut({address(0x10000000), 0, size}, true);
    use_cache_where_cheaper(slices, cache.ask());
    return ways(slices);
}

TEST(Slices, OneQuestionDoesWhereAllIsHotOrCold) {
    Cache cold;
    EXPECT_EQ(decided(cold), "dddd");
    EXPECT_EQ(cold.questions, 1);
    Cache hot{{{0, 8_MiB}}};
    EXPECT_EQ(decided(hot), "cccc");
    EXPECT_EQ(hot.questions, 1);
}

TEST(Slices, EachIsDecidedForItself) {
    // The second is there, the third nearly, the fourth half.
    Cache cache{{{2_MiB, 4_MiB}, {4_MiB, 5_MiB + 512_KiB}, {6_MiB, 7_MiB}}};
    EXPECT_EQ(decided(cache), "dccd");
    EXPECT_EQ(cache.questions, 5);
    Cache just_less{{{4_MiB, 5_MiB + 508_KiB}}};
    EXPECT_EQ(decided(just_less), "dddd");
}

TEST(Slices, WhatIsNotOnTheDeviceYetIsReadFromTheCache) {
    Cache cache{{{4_MiB, 4_MiB + 4_KiB, true}}};
    EXPECT_EQ(decided(cache), "ddcd");
}

TEST(Slices, WhereNobodyTellsAllGoThroughTheCache) {
    Cache cache;
    cache.tells = false;
    EXPECT_EQ(decided(cache), "cccc");
    EXPECT_EQ(cache.questions, 1);
}

TEST(Slices, SmallOnesAreNotAskedAbout) {
    Cache cold;
    EXPECT_EQ(decided(cold, 60_KiB), "c");
    EXPECT_EQ(cold.questions, 0);
    EXPECT_EQ(decided(cold, 64_KiB), "d");
    EXPECT_EQ(decided(cold, 2_MiB + 60_KiB), "d") << "a small rest goes along";
    EXPECT_EQ(decided(cold, 2_MiB + 64_KiB), "dd");
}

}  // namespace
}  // namespace sidestep::backends::file
