// Whole copies between files, emulated GPUs and host memory, at offsets that suit no device.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <sidestep/sidestep.hpp>

#include "tests/contents.hpp"
#include "tests/warm_pages.hpp"

namespace sidestep {
namespace {

using test::get;
using test::text_of;

class FileCopyTest : public testing::Test {
protected:
    FileCopyTest() : context_(*Context::open({"dgx-h100"})) {
        std::string name = (std::filesystem::temp_directory_path() / "sidestep-copy-XXXXXX").string();
        EXPECT_NE(::mkdtemp(name.data()), nullptr);
        folder_ = name;
        path_ = folder_ + "/x";
        std::ofstream(path_, std::ios::binary) << text_;
    }
    ~FileCopyTest() override {
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
    }

    // Whether the file system knows O_DIRECT and lets go of what it caches; where not, all goes through the
    // cache.
    bool goes_around() {
        test::drop_pages(path_);
        std::string back(1_MiB, '\0');
        const auto bytes = copy_to_gpu(0, 1_MiB);
        return bytes && bytes->storage.o_direct > 0;
    }
    // A range of the file to gpu:0 and, to see what is there, on to host memory.
    Result<Receipt> copy_to_gpu(Bytes offset, Bytes size, CopyOptions options = {}) {
        auto gpu = context_.allocate(Place::gpu(0), size);
        if (!gpu) return gpu.error();
        auto receipt = context_.copy(Buffer::file(path_, offset, size), gpu->buffer(), options).wait();
        if (!receipt) return receipt;
        std::string back(size, '\0');
        auto seen = context_.copy(gpu->buffer(), Buffer::host(back.data(), size)).wait();
        if (!seen) return seen.error();
        EXPECT_EQ(text_.compare(offset, size, back), 0) << "offset " << offset << ", " << size << " bytes";
        return receipt;
    }

    const std::string text_ = text_of(24_MiB + 77);
    std::string folder_, path_;
    Context context_;
};

// Pieces of bytes in a file of holes, copied to another file.
TEST_F(FileCopyTest, HolesStayHoles) {
    constexpr Bytes size = 32_MiB + 12'345;
    const auto blocks = [](const std::string& path) {
        struct stat status {};
        EXPECT_EQ(::stat(path.c_str(), &status), 0);
        return static_cast<Bytes>(status.st_blocks) * 512;
    };
    struct Case {
        const char* what;
        std::vector<std::pair<Bytes, Bytes>> pieces;  // offset, size
    };
    const Case cases[] = {
        {"nothing but a hole", {}},
        {"at the beginning", {{0, 5'000}}},
        {"in the middle, larger than a chunk", {{10_MiB + 77, 9_MiB}}},
        {"at the end", {{size - 100, 100}}},
        {"everywhere", {{0, 1}, {1_MiB, 70'000}, {10_MiB, 5_MiB + 1}, {25_MiB - 1, 4'097}, {size - 1, 1}}},
    };
    for (const Case& each : cases)
        for (const bool verify : {false, true}) {
            SCOPED_TRACE(fmt::format("{}, verify {}", each.what, verify));
            const std::string source = folder_ + "/sparse", target = folder_ + "/copy";
            std::filesystem::remove(source);
            std::ofstream file(source, std::ios::binary);
            for (const auto& [offset, bytes] : each.pieces) {
                file.seekp(static_cast<std::streamoff>(offset));
                file.write(text_.data(), static_cast<std::streamsize>(bytes));
            }
            file.close();
            std::filesystem::resize_file(source, size);
            if (blocks(source) > size / 2) GTEST_SKIP() << folder_ << " keeps no holes";
            CopyOptions options;
            options.verify = verify;
            options.sync_file = verify;
            Transfer transfer = context_.copy(Buffer::file(source), Buffer::file(target), options);
            const auto copied = transfer.wait();
            ASSERT_TRUE(copied) << copied.error().to_string();
            EXPECT_EQ(copied->bytes, size);
            EXPECT_LT(copied->lane_bytes.at(0), size / 2) << "no lane carries a hole";
            EXPECT_EQ(transfer.bytes_done(), size);
            EXPECT_TRUE(test::get(target) == test::get(source));
            EXPECT_LE(blocks(target), blocks(source) + 1_MiB);
            EXPECT_TRUE(std::any_of(copied->notes.begin(), copied->notes.end(), [](const std::string& note) {
                return note.ends_with("are holes, which stay holes in the target");
            }));
        }
}

TEST_F(FileCopyTest, AnyRangeOfAColdFileGoesAroundTheCacheToAGpu) {
    if (!goes_around()) GTEST_SKIP() << folder_ << " refuses O_DIRECT, or keeps files in its cache";
    for (const Bytes offset : {Bytes{0}, Bytes{1}, Bytes{5000}, Bytes{1'234'567}, 8_MiB + 4095}) {
        test::drop_pages(path_);
        const Bytes size = 15_MiB + 333;
        const auto receipt = copy_to_gpu(offset, size);
        ASSERT_TRUE(receipt) << receipt.error().to_string();
        EXPECT_EQ(receipt->storage.total(), size);
        EXPECT_LT(receipt->storage.page_cache, 64_KiB) << "at most one small rest";
    }
}

TEST_F(FileCopyTest, VerificationReadsTheSameBlocksAndIsNotCounted) {
    for (const Bytes offset : {Bytes{0}, Bytes{1}, Bytes{1'234'567}}) {
        CopyOptions options;
        options.verify = true;
        const auto receipt = copy_to_gpu(offset, 13'000'001, options);
        ASSERT_TRUE(receipt) << receipt.error().to_string();
        EXPECT_TRUE(receipt->verified);
        EXPECT_EQ(receipt->storage.total(), 13'000'001u);
    }
}

TEST_F(FileCopyTest, HotAndColdInOneCopy) {
    if (!goes_around()) GTEST_SKIP() << folder_ << " refuses O_DIRECT, or keeps files in its cache";
    test::drop_pages(path_);
    const test::WarmPages warm(path_, 0, 12_MiB);
    const auto receipt = copy_to_gpu(0, 24_MiB);
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_EQ(receipt->storage.page_cache, 12_MiB);
    EXPECT_EQ(receipt->storage.o_direct, 12_MiB);
}

TEST_F(FileCopyTest, IntoARangeOfAFileAndBetweenFiles) {
    for (const PageCache page_cache : {PageCache::automatic, PageCache::bypass}) {
        const std::string target = folder_ + "/y";
        const std::string before = text_of(20_MiB).substr(1);
        std::ofstream(target, std::ios::binary) << before;
        CopyOptions options;
        options.page_cache = page_cache;
        options.verify = true;
        constexpr Bytes size = 9'000'001, from = 777, to = 1'000'001;
        auto receipt =
            context_.copy(Buffer::file(path_, from, size), Buffer::file(target, to, size), options).wait();
        ASSERT_TRUE(receipt) << receipt.error().to_string();
        std::string expected = before;
        expected.replace(to, size, text_, from, size);
        EXPECT_TRUE(get(target) == expected);
        EXPECT_EQ(receipt->storage.total(), 2 * size);

        auto gpu = context_.allocate(Place::gpu(0), size);
        ASSERT_TRUE(context_.copy(Buffer::file(path_, 0, size), gpu->buffer()).wait());
        receipt = context_.copy(gpu->buffer(), Buffer::file(target, 4095, size), options).wait();
        ASSERT_TRUE(receipt) << receipt.error().to_string();
        expected.replace(4095, size, text_, 0, size);
        EXPECT_TRUE(get(target) == expected);
        EXPECT_EQ(receipt->storage.total(), size);
    }
}

TEST_F(FileCopyTest, APureReadIsCounted) {
    std::string back(5'000'001, '\0');
    const auto receipt =
        context_.copy(Buffer::file(path_, 3, back.size()), Buffer::host(back.data(), back.size())).wait();
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_EQ(receipt->storage.total(), back.size());
    EXPECT_EQ(text_.compare(3, back.size(), back), 0);
}

// One chunk more than its size tells, since the first one begins within a block.
TEST_F(FileCopyTest, MoreChunksThanTheSizeTells) {
    std::string back(4_MiB, '\0');
    const auto receipt =
        context_.copy(Buffer::file(path_, 4095, back.size()), Buffer::host(back.data(), back.size())).wait();
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_EQ(text_.compare(4095, back.size(), back), 0);
}

}  // namespace
}  // namespace sidestep
