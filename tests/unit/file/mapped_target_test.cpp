// Files in memory that are written through a map: what they hold, and that no signal ends the process.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <deque>

#include "backends/file/file_registration.hpp"
#include "driver/files.hpp"
#include "driver/target_map.hpp"
#include "file_test.hpp"

namespace sidestep::backends::file {
namespace {

using backend::Access;

// A file system that this thread alone sees, mounted at `path`.
bool mount_here(const char* type, const std::string& path, const char* options) {
    return ::unshare(CLONE_FS | CLONE_NEWNS) == 0 &&
           ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount(type, path.c_str(), type, 0, options) == 0;
}

// Shortens a file without a name that `registration` writes, as somebody does who finds it below /proc.
void shorten(backend::Registration& registration, Bytes size) {
    const driver::Fd& fd = dynamic_cast<FileRegistration&>(registration).fd(false);
    ASSERT_EQ(::truncate(fmt::format("/proc/self/fd/{}", fd.get()).c_str(), static_cast<off_t>(size)), 0);
}

class MappedTargetTest : public FileTest {
protected:
    void SetUp() override {
        const driver::Fd shm(::open("/dev/shm", O_RDONLY));
        if (!shm || !driver::lives_in_memory(shm)) GTEST_SKIP() << "/dev/shm is not a tmpfs";
        shm_.emplace("/dev/shm");
        open(create(FileOptions{.maps = true}));
        ASSERT_TRUE(support_.usable) << support_.reason;
        auto probe = target("probe", 1_MiB);
        ASSERT_TRUE(probe.ok());
        if (!says(note_of(**probe), "a map of it")) GTEST_SKIP() << note_of(**probe);
    }

    Result<std::unique_ptr<backend::Registration>> target(const std::string& name, Bytes size) {
        backend::AttachOptions options;
        options.expected_size = size;
        return attach(Buffer::file(*shm_ / name), Access::write, options);
    }
    static std::string note_of(const backend::Registration& file) {
        const auto notes = file.notes();
        return notes.size() == 1 ? notes[0] : fmt::format("{} notes", notes.size());
    }
    static std::string mapped(Bytes bytes, Bytes of) {
        return fmt::format(" lies in memory: {} of {} bytes were copied into a map of it", bytes, of);
    }

    std::optional<Folder> shm_;
};

TEST_F(MappedTargetTest, EveryOffsetAndSize) {
    std::string text = text_of(9'000'001);
    auto file = target("x", text.size());
    ASSERT_TRUE(file.ok()) << file.error().to_string();
    // Pieces whose ends lie within pages that they share, small ones, and one of several slices.
    Bytes at = 0;
    Bytes large = 0;
    for (const Bytes size : {Bytes{1}, Bytes{100'000}, Bytes{4095}, Bytes{65'536}, Bytes{65'537},
                             Bytes{2'097'153}, Bytes{3}, Bytes{5'000'000}, Bytes{1'667'676}}) {
        ASSERT_TRUE(move(**file, at, text.data() + at, size, true).ok()) << at;
        at += size;
        if (size > 65'536) large += size;
    }
    ASSERT_EQ(at, text.size());
    EXPECT_TRUE(says(note_of(**file), mapped(large, text.size()))) << note_of(**file);
    EXPECT_EQ((*file)->storage_bytes().page_cache, text.size());
    // Read again through what wrote it, before it has its name; that counts nowhere.
    std::string back(text.size(), '\0');
    ASSERT_TRUE(move(**file, 0, back.data(), back.size(), false).ok());
    EXPECT_EQ(back, text);
    EXPECT_EQ((*file)->storage_bytes().page_cache, text.size());
    EXPECT_TRUE(says(note_of(**file), mapped(large, text.size()))) << note_of(**file);
    EXPECT_TRUE(shm_->names().empty());
    ASSERT_TRUE((*file)->commit().ok());
    file->reset();
    EXPECT_EQ(shm_->names(), std::set<std::string>{"x"});
    EXPECT_EQ(get(*shm_ / "x"), text);
}

TEST_F(MappedTargetTest, ReplacesAndFlushes) {
    put(*shm_ / "x", text_of(5'000'000));
    ASSERT_EQ(::chmod((*shm_ / "x").c_str(), 0604), 0);
    backend::AttachOptions options;
    options.sync_file = true;
    std::string text = text_of(3'000'000);
    std::reverse(text.begin(), text.end());
    ASSERT_TRUE(replace(*shm_ / "x", text, options).ok());
    EXPECT_EQ(get(*shm_ / "x"), text);
    EXPECT_EQ(std::filesystem::status(*shm_ / "x").permissions(), static_cast<std::filesystem::perms>(0604));
    EXPECT_EQ(shm_->names(), std::set<std::string>{"x"});
}

TEST_F(MappedTargetTest, WithoutCommitTheOldFileStays) {
    put(*shm_ / "x", "old");
    std::string text = text_of(3'000'000);
    {
        auto file = target("x", text.size());
        ASSERT_TRUE(file.ok() && move(**file, 0, text.data(), text.size(), true).ok());
    }
    EXPECT_EQ(get(*shm_ / "x"), "old");
    EXPECT_EQ(shm_->names(), std::set<std::string>{"x"});
}

// Whoever gives up waits for what is in flight, and drops the file.
TEST_F(MappedTargetTest, PiecesThatNobodyWaitsForEndBeforeTheMapGoes) {
    std::string text = text_of(40'000'000);
    auto file = target("x", text.size());
    auto source = attach(Buffer::host(text.data(), text.size()), Access::read);
    ASSERT_TRUE(file.ok() && source.ok());
    const test::StartedPiece started(*backend_, {source->get(), 0, file->get(), 0, text.size(), 1, nullptr});
    ASSERT_TRUE(started.begun().ok());
    backend_.reset();
    file->reset();
    EXPECT_TRUE(shm_->names().empty());
}

TEST_F(MappedTargetTest, SeveralFilesAtOnce) {
    std::string text = text_of(6'000'000);
    std::vector<std::unique_ptr<backend::Registration>> files;
    std::vector<std::unique_ptr<backend::Registration>> sources;
    std::deque<test::StartedPiece> started;
    for (std::size_t i = 0; i < 5; ++i) {
        const Bytes size = text.size() - 1000 * i;
        files.push_back(std::move(*target(std::to_string(i), size)));
        sources.push_back(std::move(*attach(Buffer::host(text.data() + i, size), Access::read)));
        started.emplace_back(*backend_,
                             backend::Piece{sources[i].get(), 0, files[i].get(), 0, size, 1, nullptr});
    }
    for (std::size_t i = 0; i < files.size(); ++i) {
        ASSERT_TRUE(started[i].wait().ok());
        ASSERT_TRUE(files[i]->commit().ok());
        EXPECT_EQ(get(*shm_ / std::to_string(i)), text.substr(i, text.size() - 1000 * i));
    }
}

TEST_F(MappedTargetTest, WhatIsNotMapped) {
    // Too small to be worth it, empty, of a size that nobody knows, or part of a file that others may
    // shorten.
    std::string text = text_of(2_MiB);
    for (const Bytes size : {Bytes{0}, Bytes{1}, 1_MiB - 1}) {
        auto file = target("x", size);
        ASSERT_TRUE(file.ok() && move(**file, 0, text.data(), size, true).ok());
        EXPECT_TRUE((*file)->notes().empty()) << note_of(**file);
        ASSERT_TRUE((*file)->commit().ok());
        EXPECT_EQ(get(*shm_ / "x"), text.substr(0, size));
    }
    auto file = attach(Buffer::file(*shm_ / "y"), Access::write);
    ASSERT_TRUE(move(**file, 0, text.data(), text.size(), true).ok() && (*file)->commit().ok());
    EXPECT_EQ(get(*shm_ / "y"), text);
    file = attach(Buffer::file(*shm_ / "y", 1, 2_MiB - 1), Access::write);
    ASSERT_TRUE(move(**file, 0, text.data(), text.size() - 1, true).ok());
    EXPECT_TRUE((*file)->notes().empty()) << note_of(**file);
    EXPECT_EQ(get(*shm_ / "y"), text[0] + text.substr(0, text.size() - 1));
}

TEST_F(MappedTargetTest, MoreThanWasExpectedGoesBesideTheMap) {
    std::string text = text_of(5'000'000);
    auto file = target("x", 3'000'000);
    ASSERT_TRUE(move(**file, 0, text.data(), text.size(), true).ok());
    ASSERT_TRUE((*file)->commit().ok());
    EXPECT_EQ(get(*shm_ / "x"), text);
    EXPECT_TRUE(says(note_of(**file), mapped(2_MiB, text.size()))) << note_of(**file);
}

TEST_F(MappedTargetTest, AFileThatSomebodyShortensIsWrittenAllTheSame) {
    std::string text = text_of(8'000'000);
    auto file = target("x", text.size());
    ASSERT_TRUE(file.ok() && move(**file, 0, text.data(), 4_MiB, true).ok());
    shorten(**file, 4_MiB);
    ASSERT_TRUE(move(**file, 4_MiB, text.data() + 4_MiB, text.size() - 4_MiB, true).ok());
    ASSERT_TRUE((*file)->commit().ok());
    EXPECT_EQ(get(*shm_ / "x"), text);
    EXPECT_TRUE(
        says(note_of(**file), mapped(4_MiB, text.size()) + ", the rest with pwrite, since pages of the map"))
        << note_of(**file);
}

TEST_F(MappedTargetTest, AFullFileSystemIsAnErrorAndNoSignal) {
    std::string skip;
    std::thread([&] {
        if (!mount_here("tmpfs", shm_->path(), "size=8m")) {
            skip = std::string("no file system can be mounted: ") + std::strerror(errno);
            return;
        }
        // Before the first byte.
        const auto refused = target("x", 9_MiB);
        ASSERT_FALSE(refused.ok());
        EXPECT_EQ(refused.error().code, ErrorCode::no_space);
        EXPECT_TRUE(says(refused.error().message, fmt::format("no room for 9 MiB in {}", *shm_ / "x")))
            << refused.error().message;
        EXPECT_FALSE(target("x", 8_MiB + 1).ok()) << "a page too many";
        // Just enough room, which somebody else takes after all.
        std::string text = text_of(8_MiB);
        auto file = target("x", text.size());
        ASSERT_TRUE(file.ok()) << file.error().to_string();
        ASSERT_TRUE(move(**file, 0, text.data(), 4_MiB, true).ok());
        put(*shm_ / "thief", text_of(4_MiB));
        const auto moved = move(**file, 4_MiB, text.data() + 4_MiB, 4_MiB, true);
        ASSERT_FALSE(moved.ok());
        EXPECT_EQ(moved.error().code, ErrorCode::no_space) << moved.error().to_string();
        EXPECT_TRUE(says(moved.error().message, fmt::format("bytes of {} at offset", *shm_ / "x")))
            << moved.error().message;
        file->reset();
        EXPECT_EQ(shm_->names(), std::set<std::string>{"thief"});
    }).join();
    if (!skip.empty()) GTEST_SKIP() << skip;
}

TEST_F(MappedTargetTest, AMountWithoutALimitHasRoom) {
    std::string skip;
    std::thread([&] {
        if (!mount_here("ramfs", shm_->path(), "")) {
            skip = std::string("no file system can be mounted: ") + std::strerror(errno);
            return;
        }
        std::string text = text_of(3'000'000);
        auto file = target("x", text.size());
        ASSERT_TRUE(file.ok() && move(**file, 0, text.data(), text.size(), true).ok());
        ASSERT_TRUE((*file)->commit().ok());
        EXPECT_EQ(get(*shm_ / "x"), text);
        EXPECT_TRUE(says(note_of(**file), mapped(text.size(), text.size()))) << note_of(**file);
    }).join();
    if (!skip.empty()) GTEST_SKIP() << skip;
}

TEST_F(MappedTargetTest, HugePagesAreFilledToo) {
    std::string skip;
    std::thread([&] {
        if (!mount_here("tmpfs", shm_->path(), "size=64m,huge=always")) {
            skip = std::string("no tmpfs with huge pages can be mounted: ") + std::strerror(errno);
            return;
        }
        std::string text = text_of(20'000'001);
        ASSERT_TRUE(replace(*shm_ / "x", text).ok());
        EXPECT_EQ(get(*shm_ / "x"), text);
    }).join();
    if (!skip.empty()) GTEST_SKIP() << skip;
}

// A file that is shorter than what is to be mapped: touching the rest would end the process.
TEST(TargetMap, RefusesWhatCouldEndInASignal) {
    if (!std::filesystem::is_directory("/dev/shm")) GTEST_SKIP() << "there is no /dev/shm";
    const Folder folder("/dev/shm");
    const driver::Fd file(::open((folder / "x").c_str(), O_RDWR | O_CREAT, 0600));
    ASSERT_TRUE(file);
    if (!driver::lives_in_memory(file)) GTEST_SKIP() << "/dev/shm is not a tmpfs";
    ASSERT_EQ(::ftruncate(file.get(), 2_MiB), 0);
    EXPECT_FALSE(driver::TargetMap::create(file, 2_MiB + 1, "x").ok()) << "it is shorter";
    const auto whole = driver::TargetMap::create(file, 2_MiB, "x");
    if (!whole && says(whole.error().message, "MADV_POPULATE_WRITE")) GTEST_SKIP() << whole.error().message;
    ASSERT_TRUE(whole.ok()) << whole.error().to_string();
    EXPECT_NE(whole->at(0, 2_MiB), nullptr);
    EXPECT_EQ(whole->at(1, 2_MiB), nullptr);
    EXPECT_EQ(whole->at(~Bytes{0}, 2), nullptr);
    EXPECT_TRUE(driver::copy_into_map(whole->at(5, 3), "abc", 3));
    EXPECT_EQ(get(folder / "x").substr(4, 5), std::string("\0abc\0", 5));
    ASSERT_EQ(::ftruncate(file.get(), 1_MiB), 0);
    EXPECT_FALSE(driver::copy_into_map(whole->at(1_MiB, 3), "abc", 3));
}

}  // namespace
}  // namespace sidestep::backends::file
