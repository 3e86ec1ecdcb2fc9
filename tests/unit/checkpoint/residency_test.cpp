// Loads of files that the page cache holds in part: what the table says that a device delivered is what the device counts, and
// the rest of the file stays out of the cache, whatever the kernel reads ahead.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <fstream>
#include <list>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <sidestep/sidestep.hpp>
#include "tests/contents.hpp"
#include "tests/mounted.hpp"
#include "tests/warm_pages.hpp"

namespace sidestep {
namespace {

constexpr Bytes tensor_size = 16_MiB;
constexpr std::size_t tensor_count = 8;

// That the device has read since it was made.
Bytes read_by(const std::string& device) {
    std::ifstream stat(device + "/stat");
    Bytes requests = 0, merged = 0, sectors = 0;
    stat >> requests >> merged >> sectors;
    EXPECT_TRUE(stat) << device;
    return sectors * 512;
}

Bytes resident(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDONLY);
    const auto size = static_cast<std::size_t>(::lseek(file, 0, SEEK_END));
    void* const map = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
    ::close(file);
    std::vector<unsigned char> pages(size / 4096 + 1);
    EXPECT_EQ(::mincore(map, size, pages.data()), 0);
    ::munmap(map, size);
    return static_cast<Bytes>(
               std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; })) *
           4096;
}

class Residency : public testing::TestWithParam<int> {
protected:
    void SetUp() override {
        if (!disk_.why_not().empty()) GTEST_SKIP() << disk_.why_not();
        const std::string bytes = test::text_of(tensor_count * tensor_size);
        std::vector<TensorToSave> list;
        for (std::size_t i = 0; i < tensor_count; ++i)
            list.push_back({fmt::format("t{}", i),
                            Dtype::u8,
                            {tensor_size},
                            Buffer::host(bytes.data() + i * tensor_size, tensor_size)});
        SaveOptions options;
        options.sync_file = true;
        const auto saved = context_.save(list, path_, options).wait();
        ASSERT_TRUE(saved) << saved.error().to_string();
        std::ofstream setting(disk_.block_device() + "/queue/read_ahead_kb");
        setting << GetParam() << std::flush;
        ASSERT_TRUE(setting) << disk_.block_device();
    }

    // Seven pieces, of which four fill a slice of 2 MiB to seven eighths: these slices are read through the page cache, and
    // what is missing of them must not bring its neighbours along.
    void warm_some() {
        ASSERT_TRUE(test::drop_pages(path_));
        for (const Bytes at : {Bytes{1_MiB}, 17_MiB, 33_MiB + 4096, 40_MiB, 64_MiB, 90_MiB, 110_MiB})
            warm_.emplace_back(path_, at, 7_MiB / 4);
    }

    test::Mounted disk_{"ext4"};
    const std::string path_ = disk_.path() + "/model.safetensors";
    std::list<test::WarmPages> warm_;
    Context context_ = std::move(Context::open({"dgx-h100"})).value();
};

TEST_P(Residency, TheTableSaysWhatTheDeviceCounts) {
    for (const PageCache cache : {PageCache::automatic, PageCache::use, PageCache::bypass}) {
        SCOPED_TRACE(static_cast<int>(cache));
        warm_.clear();
        warm_some();
        const Checkpoint checkpoint = Checkpoint::open(path_).value();
        const Bytes held = resident(path_), before = read_by(disk_.block_device());
        LoadOptions options;
        options.page_cache = cache;
        const auto loaded = context_.load(checkpoint, options).wait();
        ASSERT_TRUE(loaded) << loaded.error().to_string();
        const StorageBytes& storage = loaded->receipt().storage;
        const auto counted = static_cast<double>(read_by(disk_.block_device()) - before);
        // The file system reads a little of its own.
        EXPECT_NEAR(counted, static_cast<double>(storage.device()), 1e6) << loaded->report();
        EXPECT_EQ(storage.total(), checkpoint.bytes());
        if (cache == PageCache::automatic) {
            EXPECT_LT(resident(path_), held + 4_MiB) << "what is missing of slices that are nearly whole";
            EXPECT_GT(storage.total() - storage.device(), 6_MiB);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(ReadAheadKb, Residency, testing::Values(0, 128, 2560, 16384));

}  // namespace
}  // namespace sidestep
