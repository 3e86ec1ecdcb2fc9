// Reads of files that the page cache holds wholly, in part or not at all.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>

#include <cstring>
#include <optional>
#include <random>

#include "driver/files.hpp"
#include "file_test.hpp"
#include "tests/warm_pages.hpp"

namespace sidestep::backends::file {
namespace {

using backend::Access;

// Pages with a canary on all bytes.
class Pages {
public:
    static constexpr char canary = '\x5A';

    explicit Pages(Bytes size)
        : size_((size + 4095) / 4096 * 4096),
          bytes_(static_cast<char*>(std::aligned_alloc(4096, size_)), &std::free) {
        std::memset(bytes_.get(), canary, size_);
    }
    char* at(Bytes offset = 0) const { return bytes_.get() + offset; }
    Bytes size() const { return size_; }
    std::string text(Bytes from, Bytes size) const { return {at(from), size}; }
    bool untouched(Bytes from, Bytes to) const {
        return from == to || (*at(from) == canary && std::memcmp(at(from), at(from + 1), to - from - 1) == 0);
    }

private:
    Bytes size_;
    std::unique_ptr<char, decltype(&std::free)> bytes_;
};

// What the page cache holds of a file.
Bytes held(const std::string& path) {
    const driver::Fd file(::open(path.c_str(), O_RDONLY));
    const auto part = driver::cached_part(driver::best_cache_probe(), file, 0, 1_GiB);
    return part ? part->bytes : 0;
}

class HotColdTest : public FileTest, public testing::WithParamInterface<base::FileIo> {
protected:
    void SetUp() override {
        open(create(FileOptions{GetParam()}));
        if (!support_.usable) GTEST_SKIP() << support_.reason;
        path_ = folder_ / "x";
        put(path_, text_);
        const driver::Fd file(::open(path_.c_str(), O_RDONLY | O_DIRECT));
        if (!file) GTEST_SKIP() << "the file system of " << folder_.path() << " refuses O_DIRECT";
        if (driver::lives_in_memory(file)) GTEST_SKIP() << folder_.path() << " lies in memory";
        if (!test::drop_pages(path_))
            GTEST_SKIP() << "the page cache of " << folder_.path() << " cannot be emptied";
    }

    // A piece from the file into a slot of `pages`, `at` from its start.
    Result<StorageBytes> read(Bytes offset, Bytes size, Pages& pages, Bytes at, Bytes before = 0,
                              Bytes after = 0) {
        auto file = attach(Buffer::file(path_, offset, size), Access::read, options_);
        if (!file) return file.error();
        auto memory = attach(Buffer::host(pages.at(), pages.size()), Access::write);
        backend::Piece piece{file->get(), 0, memory->get(), at, size};
        piece.room_before = before;
        piece.room_after = after;
        if (auto moved = move(piece); !moved) return moved.error();
        notes_ = (*file)->notes();
        return (*file)->storage_bytes();
    }

    // Half of the file is hot, and that half alone goes through the cache. A question by preadv2 has Linux (seen: 6.18) read a
    // cold page, which looks hot where the device is done within the call. So that one is asked again, 20 times at most.
    void expect_told_apart(const std::string& who, bool by_preadv2, bool as_nobody = false) {
        Result<StorageBytes> bytes = StorageBytes{};
        for (int tries = by_preadv2 ? 20 : 1; tries-- > 0 && bytes->o_direct != 4_MiB;) {
            ASSERT_TRUE(test::drop_pages(path_));
            const test::WarmPages warm(path_, 2_MiB, 4_MiB);
            std::optional<Unprivileged> nobody;
            if (as_nobody) nobody.emplace();
            Pages pages(8_MiB);
            bytes = read(0, 8_MiB, pages, 0);
            ASSERT_TRUE(bytes.ok()) << who << ": " << bytes.error().to_string();
            EXPECT_EQ(pages.text(0, 8_MiB), text_.substr(0, 8_MiB)) << who;
        }
        EXPECT_EQ(bytes->page_cache, 4_MiB) << who;
        EXPECT_EQ(bytes->o_direct, 4_MiB) << who;
    }

    const std::string text_ = text_of(8_MiB + 1234);
    std::string path_;
    backend::AttachOptions options_;
    std::vector<std::string> notes_;
};

INSTANTIATE_TEST_SUITE_P(Io, HotColdTest, testing::Values(base::FileIo::uring, base::FileIo::threads),
                         [](const auto& io) {
                             return io.param == base::FileIo::uring ? "uring" : "threads";
                         });

TEST_P(HotColdTest, WhatIsCachedIsCopiedAndTheRestReadAroundTheCache) {
    const test::WarmPages warm(path_, 2_MiB, 4_MiB);
    Pages pages(8_MiB);
    const auto bytes = read(0, 8_MiB, pages, 0);
    ASSERT_TRUE(bytes.ok()) << bytes.error().to_string();
    EXPECT_EQ(pages.text(0, 8_MiB), text_.substr(0, 8_MiB));
    EXPECT_EQ(bytes->o_direct, 4_MiB);
    EXPECT_EQ(bytes->page_cache, 4_MiB);
    EXPECT_EQ(bytes->gpu_direct, 0u);
    EXPECT_EQ(held(path_), 4_MiB) << "reading around the cache fills it with nothing";
    EXPECT_TRUE(notes_.empty());
}

// Of a slice that is mostly cached the rest is read through the cache: that and nothing behind it.
TEST_P(HotColdTest, AFewWarmPagesBringNoOthersIntoTheCache) {
    const test::WarmPages warm(path_, 2_MiB, 1_MiB + 640_KiB);
    Pages pages(8_MiB);
    const auto bytes = read(0, 8_MiB, pages, 0);
    ASSERT_TRUE(bytes.ok()) << bytes.error().to_string();
    EXPECT_EQ(pages.text(0, 8_MiB), text_.substr(0, 8_MiB));
    EXPECT_EQ(bytes->page_cache, 2_MiB);
    // What came along is locked by nobody: a kernel that reclaims early (warm_pages.hpp) may have taken it back.
    EXPECT_LE(held(path_), 2_MiB);
    EXPECT_GE(held(path_), 1_MiB + 640_KiB);
}

TEST_P(HotColdTest, ColdBytesLeaveTheCacheEmptyAndHotOnesTheDeviceAlone) {
    Pages pages(8_MiB);
    EXPECT_EQ(read(0, 8_MiB, pages, 0)->o_direct, 8_MiB);
    EXPECT_EQ(held(path_), 0u);
    const test::WarmPages warm(path_, 0, 8_MiB);
    EXPECT_EQ(read(0, 8_MiB, pages, 0)->page_cache, 8_MiB);
}

TEST_P(HotColdTest, TheOtherModesAskNobody) {
    Pages pages(8_MiB);
    options_.page_cache = PageCache::use;
    EXPECT_EQ(read(0, 2_MiB, pages, 0)->page_cache, 2_MiB);
    const test::WarmPages warm(path_, 0, 8_MiB);
    options_.page_cache = PageCache::bypass;
    EXPECT_EQ(read(0, 8_MiB, pages, 0)->o_direct, 8_MiB);
    EXPECT_EQ(pages.text(0, 8_MiB), text_.substr(0, 8_MiB));
}

TEST_P(HotColdTest, ASlotTakesWholeBlocksFromAnyOffset) {
    constexpr Bytes offset = 1'234'567, size = 3'000'001, at = 8192 + offset % 4096;
    Pages pages(4_MiB);
    const auto bytes = read(offset, size, pages, at, offset % 4096, 4095);
    ASSERT_TRUE(bytes.ok()) << bytes.error().to_string();
    EXPECT_EQ(pages.text(at, size), text_.substr(offset, size));
    EXPECT_EQ(bytes->o_direct, size) << "just what was asked for";
    EXPECT_EQ(bytes->page_cache, 0u);
    EXPECT_EQ(held(path_), 0u);
    EXPECT_TRUE(pages.untouched(0, 8192) && pages.untouched(at + size + 4095, pages.size()));
}

TEST_P(HotColdTest, WithoutRoomNoByteBesideTheTargetIsTouched) {
    constexpr Bytes offset = 1'234'567, size = 3'000'001, at = 8192 + offset % 4096;
    Pages pages(4_MiB);
    const auto bytes = read(offset, size, pages, at);
    ASSERT_TRUE(bytes.ok()) << bytes.error().to_string();
    EXPECT_EQ(pages.text(at, size), text_.substr(offset, size));
    EXPECT_TRUE(pages.untouched(0, at) && pages.untouched(at + size, pages.size()));
    const Bytes ends = (4096 - offset % 4096) + (offset + size) % 4096;
    EXPECT_EQ(bytes->page_cache, ends);
    EXPECT_EQ(bytes->o_direct, size - ends);
}

TEST_P(HotColdTest, RoomBeyondTheMemoryIsNone) {
    // The registered memory begins and ends within a block.
    constexpr Bytes offset = 100, size = 2_MiB - 200;
    Pages pages(2_MiB);
    auto file = attach(Buffer::file(path_, offset, size), Access::read);
    auto memory = attach(Buffer::host(pages.at(offset - 50), size + 100), Access::write);
    backend::Piece piece{file->get(), 0, memory->get(), 50, size};
    piece.room_before = 1_MiB;
    piece.room_after = 1_MiB;
    ASSERT_TRUE(move(piece).ok());
    EXPECT_EQ(pages.text(offset, size), text_.substr(offset, size));
    EXPECT_TRUE(pages.untouched(0, offset - 50) && pages.untouched(offset + size + 50, pages.size()));
    EXPECT_EQ((*file)->storage_bytes().o_direct, 2_MiB - 8_KiB);
}

TEST_P(HotColdTest, TheLastBlockOfAFileMayBeShort) {
    constexpr Bytes offset = 4_MiB + 5, size = 4_MiB + 1234 - 5;
    Pages pages(6_MiB);
    const auto bytes = read(offset, size, pages, 5, 5, 1_MiB);
    ASSERT_TRUE(bytes.ok()) << bytes.error().to_string();
    EXPECT_EQ(bytes->o_direct, size);
    EXPECT_EQ(pages.text(5, size), text_.substr(offset, size));
    EXPECT_EQ(held(path_), 0u);
}

TEST_P(HotColdTest, MemoryThatLiesDifferentlyIsServedByTheCache) {
    Pages pages(4_MiB);
    const auto bytes = read(0, 2_MiB, pages, 1);
    ASSERT_TRUE(bytes.ok());
    EXPECT_EQ(bytes->page_cache, 2_MiB);
    EXPECT_EQ(pages.text(1, 2_MiB), text_.substr(0, 2_MiB));
}

TEST_P(HotColdTest, TheDeviceSaysHowMemoryMustLie) {
    const auto wants = driver::direct_alignment(driver::Fd(::open(path_.c_str(), O_RDONLY)));
    if (!wants || wants->memory >= 4096) GTEST_SKIP() << "nobody says, or whole pages are wanted";
    Pages pages(4_MiB);
    const auto bytes = read(0, 2_MiB, pages, wants->memory);
    ASSERT_TRUE(bytes.ok());
    EXPECT_EQ(bytes->o_direct, 2_MiB);
    EXPECT_EQ(pages.text(wants->memory, 2_MiB), text_.substr(0, 2_MiB));
}

TEST_P(HotColdTest, ASmallReadMayFillTheCache) {
    Pages pages(64_KiB);
    EXPECT_EQ(read(4_KiB, 60_KiB, pages, 0)->page_cache, 60_KiB);
    EXPECT_EQ(pages.text(0, 60_KiB), text_.substr(4_KiB, 60_KiB));
}

TEST_P(HotColdTest, HolesAreZeros) {
    ASSERT_EQ(::truncate(path_.c_str(), 40_MiB), 0);
    Pages pages(8_MiB);
    const auto bytes = read(6_MiB, 8_MiB, pages, 0);
    ASSERT_TRUE(bytes.ok()) << bytes.error().to_string();
    std::string expected = text_.substr(6_MiB);
    expected.resize(8_MiB);
    EXPECT_EQ(pages.text(0, 8_MiB), expected);
    EXPECT_EQ(bytes->total(), 8_MiB);
}

TEST_P(HotColdTest, AFileThatShrinksIsNamedWithTheByte) {
    auto file = attach(Buffer::file(path_, 0, 8_MiB), Access::read);
    ASSERT_TRUE(file.ok());
    ASSERT_EQ(::truncate(path_.c_str(), 5'000'001), 0);
    Pages pages(8_MiB);
    for (const Bytes offset : {Bytes{0}, 6_MiB}) {
        const auto moved = move(**file, offset, pages.at(), 8_MiB - offset, false);
        ASSERT_FALSE(moved.ok());
        EXPECT_EQ(moved.error().code, ErrorCode::end_of_file) << moved.error().to_string();
        EXPECT_TRUE(says(moved.error().message, path_)) << moved.error().message;
        EXPECT_TRUE(says(moved.error().message, "5000001 bytes")) << moved.error().message;
    }
    EXPECT_TRUE(move(**file, 0, pages.at(), 4_MiB, false).ok()) << "what is left can be read";
}

TEST_P(HotColdTest, AFileThatGrowsKeepsItsBytes) {
    auto file = attach(Buffer::file(path_, 0, text_.size()), Access::read);
    ASSERT_EQ(::truncate(path_.c_str(), 20_MiB), 0);
    Pages pages(text_.size());
    ASSERT_TRUE(move(**file, 0, pages.at(), text_.size(), false).ok());
    EXPECT_EQ(pages.text(0, text_.size()), text_);
}

TEST_P(HotColdTest, EveryWayToAskTellsHotFromCold) {
    for (const auto probe :
         {driver::CacheProbe::cachestat, driver::CacheProbe::mincore, driver::CacheProbe::nowait}) {
        const std::string name(driver::to_string(probe));
        open(create(FileOptions{GetParam(), probe}));
        EXPECT_TRUE(says(support_.reason, name)) << support_.reason;
        expect_told_apart(name, probe == driver::CacheProbe::nowait);
    }
}

// Whoever may only read a file is told by cachestat nothing, and by mincore that all is there.
TEST_P(HotColdTest, OfFilesOfOthersToo) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root has files that are foreign to another user";
    ASSERT_EQ(::chmod(path_.c_str(), 0644), 0);
    expect_told_apart("another user", true, true);
}

// cachestat finds no page of an overlay's files, though they are cached.
TEST_P(HotColdTest, OfFilesOfAnOverlay) {
    std::string skip;
    std::thread([&] {
        for (const char* name : {"lower", "upper", "work", "merged"})
            std::filesystem::create_directory(folder_ / name);
        std::filesystem::rename(path_, folder_ / "lower/x");
        const std::string layers = "lowerdir=" + (folder_ / "lower") + ",upperdir=" + (folder_ / "upper") +
                                   ",workdir=" + (folder_ / "work");
        if (::unshare(CLONE_FS | CLONE_NEWNS) != 0 ||
            ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            ::mount("overlay", (folder_ / "merged").c_str(), "overlay", 0, layers.c_str()) != 0) {
            skip = std::string("no overlay can be mounted: ") + std::strerror(errno);
            return;
        }
        path_ = folder_ / "merged/x";
        Pages pages(8_MiB);
        const auto cold = read(0, 8_MiB, pages, 0);
        EXPECT_EQ(cold ? cold->o_direct : 0, 8_MiB);
        const test::WarmPages warm(path_, 0, 8_MiB);
        const auto hot = read(0, 8_MiB, pages, 0);
        EXPECT_EQ(hot ? hot->page_cache : 0, 8_MiB);
        ::umount((folder_ / "merged").c_str());
    }).join();
    if (!skip.empty()) GTEST_SKIP() << skip;
}

TEST_P(HotColdTest, WritesGoAroundTheCacheWhereTheyAreFlushedAnyway) {
    Pages pages(4_MiB);
    std::memcpy(pages.at(), text_.data(), 4_MiB);
    for (const bool sync : {false, true}) {
        options_.sync_file = sync;
        options_.expected_size = 3'000'001;
        auto file = attach(Buffer::file(folder_ / "y"), Access::write, options_);
        ASSERT_TRUE(file.ok());
        ASSERT_TRUE(move(**file, 0, pages.at(), 3'000'001, true).ok());
        ASSERT_TRUE((*file)->commit().ok());
        EXPECT_EQ(get(folder_ / "y"), text_.substr(0, 3'000'001));
        EXPECT_EQ((*file)->storage_bytes().o_direct, sync ? 3'000'001 / 4096 * 4096 : 0);
        EXPECT_EQ((*file)->storage_bytes().total(), 3'000'001u);
        EXPECT_TRUE((*file)->notes().empty()) << "nobody insisted";
    }
}

TEST_P(HotColdTest, MemoryThatIsUsedAgainAndAgain) {
    // Past its first pass it is registered with the kernel; bytes stay right, also for what comes after it.
    Pages pages(2_MiB);
    for (int round = 0; round < 2; ++round) {
        auto memory = attach(Buffer::host(pages.at(), pages.size()), Access::write);
        auto file = attach(Buffer::file(path_, 0, 8_MiB), Access::read);
        for (int pass = 0; pass < 12; ++pass) {
            const Bytes offset = static_cast<Bytes>(pass % 4) * 2_MiB;
            std::memset(pages.at(), 0, pages.size());
            ASSERT_TRUE(move(backend::Piece{file->get(), offset, memory->get(), 0, 2_MiB}).ok());
            EXPECT_EQ(pages.text(0, 2_MiB), text_.substr(offset, 2_MiB)) << pass;
        }
        EXPECT_EQ((*file)->storage_bytes().o_direct, 24_MiB);
    }
}

TEST_P(HotColdTest, AnyReadGivesJustItsBytes) {
    std::mt19937 random(GetParam() == base::FileIo::uring ? 1 : 2);
    const auto below = [&](Bytes bound) { return bound == 0 ? 0 : random() % bound; };
    Bytes around = 0, through = 0;
    for (int round = 0; round < 200; ++round) {
        if (below(3) == 0) {
            EXPECT_TRUE(test::drop_pages(path_));
        }
        for (Bytes i = below(4); i-- > 0;) {
            const Bytes begin = below(text_.size());
            const test::WarmPages warm(path_, begin, std::min<Bytes>(below(3_MiB) + 1, text_.size() - begin));
        }
        constexpr PageCache modes[] = {PageCache::automatic, PageCache::automatic, PageCache::use,
                                       PageCache::bypass};
        options_.page_cache = modes[below(4)];
        const Bytes offset = below(text_.size());
        const Bytes max = below(2) == 0 ? 20'000 : text_.size();
        const Bytes size = below(std::min(max, text_.size() - offset)) + 1;
        // Often alike within a block, often with room.
        const Bytes at = 8192 + (below(4) != 0 ? offset % 4096 : below(4096));
        const Bytes before = below(2) == 0 ? 0 : below(8192), after = below(2) == 0 ? 0 : below(8192);
        Pages pages(at + size + 16384);
        const auto bytes = read(offset, size, pages, at, before, after);
        ASSERT_TRUE(bytes.ok()) << bytes.error().to_string();
        const std::string where =
            std::to_string(round) + ": " + std::to_string(offset) + "+" + std::to_string(size);
        ASSERT_EQ(std::memcmp(pages.at(at), text_.data() + offset, size), 0) << where;
        ASSERT_TRUE(pages.untouched(0, at - before) && pages.untouched(at + size + after, pages.size()))
            << where;
        ASSERT_EQ(bytes->total(), size) << where;
        around += bytes->o_direct;
        through += bytes->page_cache;
    }
    EXPECT_GT(around, 0u);
    EXPECT_GT(through, 0u);
}

// A file system in memory has nothing to go around.
class InMemoryTest : public FileTest {
protected:
    void SetUp() override {
        FileTest::SetUp();
        const driver::Fd shm(::open("/dev/shm", O_RDONLY));
        if (!shm || !driver::lives_in_memory(shm)) GTEST_SKIP() << "/dev/shm is not a tmpfs";
        shm_.emplace("/dev/shm");
        put(*shm_ / "x", text_);
    }
    std::optional<Folder> shm_;
    const std::string text_ = text_of(3'000'001);
    Pages pages_{4_MiB};
};

TEST_F(InMemoryTest, BytesComeFromTheCacheHolesToo) {
    ASSERT_EQ(::truncate((*shm_ / "x").c_str(), 4_MiB), 0);
    auto file = attach(Buffer::file(*shm_ / "x", 0, 4_MiB), Access::read);
    ASSERT_TRUE(move(**file, 0, pages_.at(), 4_MiB, false).ok());
    EXPECT_EQ((*file)->storage_bytes().page_cache, 4_MiB);
    EXPECT_EQ((*file)->storage_bytes().o_direct, 0u);
    EXPECT_TRUE((*file)->notes().empty());
    EXPECT_EQ(pages_.text(0, text_.size()), text_);
}

TEST_F(InMemoryTest, WhoInsistsIsTold) {
    backend::AttachOptions options;
    options.page_cache = PageCache::bypass;
    auto file = attach(Buffer::file(*shm_ / "x", 0, 1_MiB), Access::read, options);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(move(**file, 0, pages_.at(), 1_MiB, false).ok());
    ASSERT_EQ((*file)->notes().size(), 1u);
    EXPECT_TRUE(says((*file)->notes()[0], "lies in memory")) << (*file)->notes()[0];
    EXPECT_EQ((*file)->storage_bytes().page_cache, 1_MiB);
    options.strict = true;
    file = attach(Buffer::file(*shm_ / "x", 0, 1_MiB), Access::read, options);
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.error().code, ErrorCode::path_unavailable);
}

}  // namespace
}  // namespace sidestep::backends::file
