#include "backends/host/block_copy.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace sidestep::backends::host {
namespace {

TEST(BlockCopy, MovesTheseBytesAndNoOthers) {
    std::vector<unsigned char> source(5000);
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<unsigned char>(i * 7 + i / 256);
    // Around the size of a cache line and of the unrolled step, at every alignment of the target.
    for (const std::size_t bytes : {0, 1, 63, 64, 65, 255, 256, 257, 319, 320, 1000, 4096, 4500}) {
        for (std::size_t target_at = 0; target_at < 64; ++target_at) {
            const std::size_t source_at = (target_at * 13) % 61;
            std::vector<unsigned char> target(5000, 0xEE);
            std::vector<unsigned char> expected = target;
            std::memcpy(expected.data() + target_at, source.data() + source_at, bytes);
            copy_around_caches(target.data() + target_at, source.data() + source_at, bytes);
            ASSERT_EQ(target, expected) << bytes << " bytes at " << target_at;
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
