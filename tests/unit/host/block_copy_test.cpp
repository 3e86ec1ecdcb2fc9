#include "backends/host/copy_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace sidestep::backends::host {
namespace {

TEST(BlockCopy, MovesTheseBytesAndNoOthers) {
    constexpr std::size_t room = 100'000;
    std::vector<unsigned char> source(room);
    for (std::size_t i = 0; i < room; ++i) source[i] = static_cast<unsigned char>(i * 7 + i / 256);
    std::vector<unsigned char> target(room, 0xEE);
    const auto check = [&](std::size_t target_at, std::size_t source_at, std::size_t bytes) {
        std::vector<unsigned char> expected(room, 0xEE);
        std::memcpy(expected.data() + target_at, source.data() + source_at, bytes);
        ASSERT_EQ(target, expected) << bytes << " bytes at " << target_at;
        std::fill(target.begin(), target.end(), 0xEE);
    };
    // Around a cache line, the unrolled step and the group of pages, at alignments of all kinds.
    for (const std::size_t bytes :
         {0, 1, 63, 64, 65, 255, 256, 257, 320, 4500, 32767, 32768, 33025, 70'000}) {
        for (const std::size_t target_at : {0, 1, 31, 32, 48, 63, 64, 4095}) {
            const std::size_t source_at = (target_at * 13) % 61;
            for (const Streamer stream : streamers()) {
                copy_around_caches(target.data() + target_at, source.data() + source_at, bytes, stream);
                check(target_at, source_at, bytes);
            }
            copy_around_caches(target.data() + target_at, source.data() + source_at, bytes);
            check(target_at, source_at, bytes);
        }
    }
}

TEST(BlockCopy, TheShareOfTheCacheStaysWithinItsBounds) {
    EXPECT_GE(cache_share(1), std::size_t{1} << 20);
    EXPECT_LE(cache_share(1), std::size_t{4} << 20);
    EXPECT_EQ(cache_share(1'000'000), std::size_t{1} << 20);
    EXPECT_LE(cache_share(64), cache_share(1));
}

}  // namespace
}  // namespace sidestep::backends::host
