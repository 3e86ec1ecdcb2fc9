// Pages that are there at once.
#include "driver/memory_map.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>

namespace sidestep::driver {
namespace {

std::string setting_of_huge_pages() {
    std::string setting;
    std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"), setting);
    return setting;
}

Bytes resident() {
    Bytes pages = 0;
    Bytes resident = 0;
    std::ifstream("/proc/self/statm") >> pages >> resident;
    return resident * page_size();
}

TEST(MemoryMapTest, PopulatedPagesAreThereAndZero) {
    for (const int threads : {1, 3}) {
        const Bytes before = resident();
        const auto map = MemoryMap::populated(100_MiB + 4096, -1, threads);
        ASSERT_TRUE(map) << map.error().to_string();
        EXPECT_GE(resident(), before + 90_MiB);
        const auto* bytes = static_cast<const char*>(map->address());
        for (Bytes i = 0; i < 100_MiB + 4096; i += 4096) ASSERT_EQ(bytes[i], 0);
    }
}

TEST(MemoryMapTest, SmallMapsWorkToo) {
    for (const Bytes bytes : {Bytes{1}, 64_KiB, 2_MiB}) {
        const auto map = MemoryMap::populated(bytes, -1, 8);
        ASSERT_TRUE(map);
        std::memset(map->address(), 1, bytes);
    }
    EXPECT_FALSE(MemoryMap::populated(Bytes{1} << 63, -1, 8));
}

TEST(MemoryMapTest, HugePagesAreCounted) {
    const std::string setting = setting_of_huge_pages();
    if (setting.empty() || setting.find("[never]") != std::string::npos)
        GTEST_SKIP() << "this kernel gives no huge pages: transparent_hugepage/enabled is '" << setting
                     << "'";
    const auto map = MemoryMap::populated(64_MiB, -1, 2);
    ASSERT_TRUE(map);
    EXPECT_NE(map->pages(), PageKind::ordinary);
    EXPECT_GT(huge_bytes(map->address(), 64_MiB), 0u);
    EXPECT_LE(huge_bytes(map->address(), 64_MiB), 64_MiB);
    const auto small = MemoryMap::populated(64_KiB, -1, 1);
    EXPECT_EQ(small->pages(), PageKind::ordinary);
}

}  // namespace
}  // namespace sidestep::driver
