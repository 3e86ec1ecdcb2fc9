// Whole-file targets: the old file or the new one, never anything else.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>

#include <chrono>
#include <thread>

#include "driver/replaced_file.hpp"
#include "file_test.hpp"

namespace sidestep::backends::file {
namespace {

using backend::Access;
using Names = std::set<std::string>;

struct stat status_of(const std::string& path) {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
    return status;
}

class ReplaceTest : public FileTest {
protected:
    // As another process, killed once `text` is written but not committed.
    void write_and_be_killed(const std::string& path, const std::string& text) {
        int ready[2];
        ASSERT_EQ(::pipe(ready), 0);
        const pid_t child = ::fork();
        if (child == 0) {
            auto file = driver::ReplacedFile::begin(path);
            const bool written = file && ::write(file->fd().get(), text.data(), text.size()) ==
                                             static_cast<ssize_t>(text.size());
            const char answer = written ? 'y' : 'n';
            if (::write(ready[1], &answer, 1) != 1) ::_exit(1);
            for (;;) ::pause();
        }
        char answer = 0;
        ASSERT_EQ(::read(ready[0], &answer, 1), 1);
        EXPECT_EQ(answer, 'y');
        ::kill(child, SIGKILL);
        ::waitpid(child, nullptr, 0);
        ::close(ready[0]);
        ::close(ready[1]);
    }

    // Whether the folder's file system has files without a name.
    bool has_unnamed_files() const {
        const driver::Fd file(::open(folder_.path().c_str(), O_TMPFILE | O_WRONLY, 0600));
        return static_cast<bool>(file);
    }
};

TEST_F(ReplaceTest, ANewFileAppearsWithCommit) {
    const mode_t before = ::umask(027);
    std::string text = text_of(3'000'001);
    {
        auto file = attach(Buffer::file(folder_ / "new"), Access::write);
        ASSERT_TRUE(file.ok()) << file.error().to_string();
        ASSERT_TRUE(move(**file, 0, text.data(), text.size(), true).ok());
        EXPECT_FALSE(std::filesystem::exists(folder_ / "new"));
        ASSERT_TRUE((*file)->commit().ok());
        EXPECT_EQ(get(folder_ / "new"), text);
    }
    ::umask(before);
    EXPECT_EQ(folder_.names(), Names{"new"});
    EXPECT_EQ(status_of(folder_ / "new").st_mode & 07777, 0640u);
}

TEST_F(ReplaceTest, WithoutCommitThereIsNoTrace) {
    put(folder_ / "old", "old");
    for (const std::string name : {"old", "new"}) {
        auto file = attach(Buffer::file(folder_ / name), Access::write);
        ASSERT_TRUE(file.ok());
        std::string text = "something else";
        ASSERT_TRUE(move(**file, 0, text.data(), text.size(), true).ok());
    }
    EXPECT_EQ(folder_.names(), Names{"old"});
    EXPECT_EQ(get(folder_ / "old"), "old");
}

TEST_F(ReplaceTest, WhatIsWrittenCanBeReadBeforeCommit) {
    auto file = attach(Buffer::file(folder_ / "new"), Access::write);
    ASSERT_TRUE(file.ok());
    std::string text = text_of(100'000);
    ASSERT_TRUE(move(**file, 0, text.data(), text.size(), true).ok());
    std::string back(text.size(), '\0');
    ASSERT_TRUE(move(**file, 0, back.data(), back.size(), false).ok());
    EXPECT_EQ(back, text);
}

TEST_F(ReplaceTest, AShorterFileReplacesALongerOneWhole) {
    put(folder_ / "x", text_of(10'000));
    ASSERT_TRUE(replace(folder_ / "x", "short").ok());
    EXPECT_EQ(get(folder_ / "x"), "short");
}

TEST_F(ReplaceTest, ModeAndOwnerStay) {
    put(folder_ / "x", "old");
    ASSERT_EQ(::chmod((folder_ / "x").c_str(), 0604), 0);
    const bool root = ::geteuid() == 0;
    ASSERT_TRUE(!root || ::chown((folder_ / "x").c_str(), 65534, 65533) == 0);
    ASSERT_TRUE(replace(folder_ / "x", "new").ok());
    const struct stat status = status_of(folder_ / "x");
    EXPECT_EQ(get(folder_ / "x"), "new");
    EXPECT_EQ(status.st_mode & 07777, 0604u);
    EXPECT_TRUE(!root || (status.st_uid == 65534 && status.st_gid == 65533));
}

TEST_F(ReplaceTest, ALostOwnerIsNoted) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can make a file of another user";
    ASSERT_EQ(::chmod(folder_.path().c_str(), 0777), 0);
    put(folder_ / "x", "old");
    ASSERT_EQ(::chmod((folder_ / "x").c_str(), 0666), 0);
    const Unprivileged nobody;
    auto file = attach(Buffer::file(folder_ / "x"), Access::write);
    ASSERT_TRUE(file.ok()) << file.error().to_string();
    ASSERT_EQ((*file)->notes().size(), 1u);
    EXPECT_TRUE(says((*file)->notes()[0], "belongs to user 65534")) << (*file)->notes()[0];
}

// A program that ran with its owner's rights must not run with those of whoever replaced it.
TEST_F(ReplaceTest, ALostOwnerLendsNobodyRights) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can make a file of another user";
    ASSERT_EQ(::chmod(folder_.path().c_str(), 0777), 0);
    put(folder_ / "x", "old");
    ASSERT_EQ(::chmod((folder_ / "x").c_str(), 06767), 0);
    {
        const Unprivileged nobody;
        ASSERT_TRUE(replace(folder_ / "x", "new").ok());
    }
    EXPECT_EQ(status_of(folder_ / "x").st_uid, 65534u);
    EXPECT_EQ(status_of(folder_ / "x").st_mode & 07777, 0767u);
}

TEST_F(ReplaceTest, LinksStay) {
    std::filesystem::create_directory(folder_ / "real");
    put(folder_ / "real/x", "old");
    std::filesystem::create_symlink("real/x", folder_ / "near");
    std::filesystem::create_symlink(folder_ / "near", folder_ / "far");
    std::filesystem::create_symlink("real/dangling", folder_ / "nowhere");
    ASSERT_TRUE(replace(folder_ / "far", "new").ok());
    EXPECT_EQ(get(folder_ / "real/x"), "new");
    ASSERT_TRUE(replace(folder_ / "nowhere", "made").ok());
    EXPECT_EQ(get(folder_ / "real/dangling"), "made");
    for (const std::string name : {"near", "far", "nowhere"}) {
        EXPECT_TRUE(std::filesystem::is_symlink(folder_ / name)) << name;
    }
    EXPECT_EQ(folder_.names(), (Names{"real", "near", "far", "nowhere"}));
}

TEST_F(ReplaceTest, SyncedFilesArriveToo) {
    backend::AttachOptions options;
    options.sync_file = true;
    ASSERT_TRUE(replace(folder_ / "x", "flushed", options).ok());
    EXPECT_EQ(get(folder_ / "x"), "flushed");
}

TEST_F(ReplaceTest, WorksWithoutUnnamedFiles) {
    for (const std::string name : {"old", "new"}) {
        put(folder_ / "old", "old");
        auto file = driver::ReplacedFile::begin(folder_ / name, false);
        ASSERT_TRUE(file.ok()) << file.error().to_string();
        ASSERT_EQ(::write(file->fd().get(), "text", 4), 4);
        Names names = folder_.names();
        EXPECT_EQ(names.size(), 2u);
        EXPECT_TRUE(names.begin()->starts_with("." + name + ".sidestep-")) << *names.begin();
        ASSERT_TRUE(file->commit(false).ok());
        EXPECT_EQ(get(folder_ / name), "text");
    }
    EXPECT_EQ(folder_.names(), (Names{"old", "new"}));
    {
        const auto dropped = driver::ReplacedFile::begin(folder_ / "old", false);
        ASSERT_TRUE(dropped.ok());
    }
    EXPECT_EQ(folder_.names(), (Names{"old", "new"}));
}

// What killed processes left is removed by the next file of that name, or all at once; what is being written stays.
TEST_F(ReplaceTest, LeftoversAreRemovedAndNothingElse) {
    put(folder_ / "old", "old");
    const auto being_written = driver::ReplacedFile::begin(folder_ / "old", false);
    ASSERT_TRUE(being_written.ok());
    put(folder_ / ".old.sidestep-1", "left");
    put(folder_ / ".other.sidestep-17", "left");
    put(folder_ / ".old.sidestep-x", "of somebody else");
    put(folder_ / ".sidestep-1", "of somebody else");
    std::filesystem::create_symlink("old", folder_ / ".link.sidestep-0");
    for (const bool unnamed : {false, true}) {
        auto next = driver::ReplacedFile::begin(folder_ / "old", unnamed);
        ASSERT_TRUE(next.ok()) << next.error().to_string();
        ASSERT_EQ(::write(next->fd().get(), "new", 3), 3);
        ASSERT_TRUE(next->commit(false).ok());
        EXPECT_EQ(get(folder_ / "old"), "new");
        EXPECT_FALSE(folder_.names().contains(".old.sidestep-1"));
        put(folder_ / ".old.sidestep-1", "left");
    }
    const auto removed = driver::remove_leftovers(folder_.path(), std::chrono::milliseconds(0));
    ASSERT_TRUE(removed.ok()) << removed.error().to_string();
    EXPECT_EQ(*removed, (std::vector<std::string>{".old.sidestep-1", ".other.sidestep-17"}));
    EXPECT_EQ(folder_.names(),
              (Names{".link.sidestep-0", ".old.sidestep-0", ".old.sidestep-x", ".sidestep-1", "old"}));
}

// A lock that goes a moment after its process went.
TEST_F(ReplaceTest, LocksAreWaitedFor) {
    put(folder_ / ".old.sidestep-0", "left");
    const driver::Fd held(::open((folder_ / ".old.sidestep-0").c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);
    std::thread goes([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        ::flock(held.get(), LOCK_UN);
    });
    const auto removed = driver::remove_leftovers(folder_.path(), std::chrono::seconds(60));
    goes.join();
    ASSERT_TRUE(removed.ok()) << removed.error().to_string();
    EXPECT_EQ(*removed, std::vector<std::string>{".old.sidestep-0"});
}

// Where anybody may make links, only one's own are followed, and those of whom the folder belongs to.
TEST_F(ReplaceTest, LinksOfOthersInASharedFolderAreNotFollowed) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root makes links of other users";
    constexpr uid_t somebody = 12345;
    struct Case {
        mode_t mode;
        uid_t folder, link;
        bool followed;
    };
    for (const auto& [mode, owner, link, followed] :
         {Case{01777, 0, somebody, false}, Case{01777, 0, 0, true}, Case{01777, somebody, somebody, true},
          Case{0755, 0, somebody, true}, Case{0777, 0, somebody, true}, Case{01775, 0, somebody, true}}) {
        const std::string shared = folder_ / "shared";
        std::filesystem::create_directory(shared);
        put(folder_ / "target", "old");
        std::filesystem::create_symlink(folder_ / "target", shared + "/name");
        ASSERT_EQ(::lchown((shared + "/name").c_str(), link, link), 0);
        ASSERT_EQ(::chown(shared.c_str(), owner, owner), 0);
        ASSERT_EQ(::chmod(shared.c_str(), mode), 0);
        const auto done = replace(shared + "/name", "new");
        EXPECT_EQ(done.ok(), followed) << mode << " " << owner << " " << link;
        if (!followed) {
            EXPECT_EQ(done.error().code, ErrorCode::permission_denied);
        }
        EXPECT_EQ(get(folder_ / "target"), followed ? "new" : "old");
        std::filesystem::remove_all(shared);
    }
}

TEST_F(ReplaceTest, AFileMadeMeanwhileIsReplaced) {
    auto file = driver::ReplacedFile::begin(folder_ / "x");
    ASSERT_TRUE(file.ok());
    ASSERT_EQ(::write(file->fd().get(), "mine", 4), 4);
    put(folder_ / "x", "theirs");
    ASSERT_TRUE(file->commit(false).ok());
    EXPECT_EQ(get(folder_ / "x"), "mine");
    EXPECT_EQ(folder_.names(), Names{"x"});
}

TEST_F(ReplaceTest, ANameAsLongAsTheyGet) {
    const std::string name(255, 'n');
    ASSERT_TRUE(replace(folder_ / name, "1").ok());
    ASSERT_TRUE(replace(folder_ / name, "2").ok());
    EXPECT_EQ(get(folder_ / name), "2");
}

TEST_F(ReplaceTest, AKilledProcessLeavesTheOldFile) {
    if (!has_unnamed_files()) GTEST_SKIP() << "the file system of " << folder_.path() << " lacks O_TMPFILE";
    put(folder_ / "x", "old");
    write_and_be_killed(folder_ / "x", "half of the new");
    write_and_be_killed(folder_ / "y", "half of the new");
    EXPECT_EQ(get(folder_ / "x"), "old");
    EXPECT_EQ(folder_.names(), Names{"x"});
}

TEST_F(ReplaceTest, PermissionsAreHeeded) {
    ASSERT_EQ(::chmod(folder_.path().c_str(), 0777), 0);
    put(folder_ / "read-only", "old");
    ASSERT_EQ(::chmod((folder_ / "read-only").c_str(), 0444), 0);
    std::filesystem::create_directory(folder_ / "closed");
    ASSERT_EQ(::chmod((folder_ / "closed").c_str(), 0555), 0);
    const Unprivileged nobody;
    auto written = replace(folder_ / "read-only", "new");
    ASSERT_FALSE(written.ok());
    EXPECT_EQ(written.error().code, ErrorCode::permission_denied);
    written = replace(folder_ / "closed/x", "new");
    ASSERT_FALSE(written.ok());
    EXPECT_EQ(written.error().code, ErrorCode::permission_denied) << written.error().to_string();
    EXPECT_EQ(get(folder_ / "read-only"), "old");
}

TEST_F(ReplaceTest, ARangeIsWrittenInPlace) {
    put(folder_ / "x", "0123456789");
    const auto inode = status_of(folder_ / "x").st_ino;
    auto file = attach(Buffer::file(folder_ / "x", 3, 4), Access::write);
    ASSERT_TRUE(file.ok());
    char text[] = "abcd";
    ASSERT_TRUE(move(**file, 0, text, 4, true).ok());
    ASSERT_TRUE((*file)->commit().ok());
    EXPECT_EQ(get(folder_ / "x"), "012abcd789");
    EXPECT_EQ(status_of(folder_ / "x").st_ino, inode);
    // Beyond the end from the end on, but not with a hole.
    file = attach(Buffer::file(folder_ / "x", 10, 4), Access::write);
    ASSERT_TRUE(file.ok()) << file.error().to_string();
    EXPECT_EQ(get(folder_ / "x").size(), 10u);  // room was taken, the size stays
    ASSERT_TRUE(move(**file, 0, text, 4, true).ok());
    EXPECT_EQ(get(folder_ / "x"), "012abcd789abcd");
    file = attach(Buffer::file(folder_ / "x", 15, 4), Access::write);
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.error().code, ErrorCode::end_of_file);
}

}  // namespace
}  // namespace sidestep::backends::file
