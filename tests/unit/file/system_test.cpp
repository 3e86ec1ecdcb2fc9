// The file backend against real kernels: refused io_uring, full file systems, O_DIRECT.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <cstddef>
#include <cstring>
#include <optional>

#include "driver/files.hpp"
#include "driver/replaced_file.hpp"
#include "driver/uring.hpp"
#include "file_test.hpp"

namespace sidestep::backends::file {
namespace {

using backend::Access;

// Runs in a thread of its own, since what is done to it cannot be undone.
void in_a_thread(const std::function<void()>& body) {
    std::thread(body).join();
}

// Lets this call of this thread fail with EPERM, as container runtimes do.
bool forbid(unsigned call) {
    sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{sizeof code / sizeof code[0], code};
    return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

class SystemTest : public FileTest {
protected:
    std::unique_ptr<char, decltype(&std::free)> back_{static_cast<char*>(std::aligned_alloc(4096, 2_MiB)),
                                                      &std::free};
};

TEST_F(SystemTest, WhereTheKernelRefusesIoUringThreadsDoAndSaySo) {
    std::string skip;
    in_a_thread([&] {
        if (!forbid(SYS_io_uring_setup)) {
            skip = "seccomp is not to be had";
            return;
        }
        open(create(FileOptions{base::FileIo::uring}));
        EXPECT_FALSE(support_.usable);
        EXPECT_TRUE(says(support_.reason, "io_uring: Operation not permitted")) << support_.reason;
        EXPECT_NE(support_.remedy, "");
        open(create(FileOptions{base::FileIo::automatic}));
        EXPECT_TRUE(support_.usable);
        EXPECT_TRUE(says(support_.reason, "pread") && says(support_.reason, "Operation not permitted"))
            << support_.reason;
        ASSERT_TRUE(replace(folder_ / "x", text_of(5'000'000)).ok());
    });
    if (!skip.empty()) GTEST_SKIP() << skip;
    EXPECT_EQ(get(folder_ / "x"), text_of(5'000'000));
}

TEST_F(SystemTest, ThreadsAreUsedWhereAskedFor) {
    open(create(FileOptions{base::FileIo::threads}));
    EXPECT_TRUE(support_.usable);
    EXPECT_TRUE(says(support_.reason, "pread and pwrite, as asked for")) << support_.reason;
}

TEST_F(SystemTest, APieceOutlivesTheThreadThatStartedIt) {
    const std::string text = text_of(40'000'000);
    put(folder_ / "x", text);
    auto file = attach(Buffer::file(folder_ / "x", 0, text.size()), Access::read);
    std::string back(text.size(), '\0');
    auto memory = attach(Buffer::host(back.data(), back.size()), Access::write);
    ASSERT_TRUE(file.ok() && memory.ok());
    std::optional<test::StartedPiece> started;
    in_a_thread([&] {
        started.emplace(*backend_, backend::Piece{file->get(), 0, memory->get(), 0, back.size(), 0, nullptr});
    });
    const auto moved = started->wait();
    ASSERT_TRUE(moved.ok()) << moved.error().to_string();
    EXPECT_EQ(back, text);
}

// A file system of 1 MiB that this thread alone sees.
bool mount_tiny(const std::string& path) {
    return ::unshare(CLONE_FS | CLONE_NEWNS) == 0 &&
           ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount("tmpfs", path.c_str(), "tmpfs", 0, "size=1m") == 0;
}

TEST_F(SystemTest, AFullFileSystemIsFoundOutBeforeTheFirstByte) {
    std::string skip;
    in_a_thread([&] {
        if (!mount_tiny(folder_.path())) {
            skip = std::string("no file system can be mounted: ") + std::strerror(errno);
            return;
        }
        backend::AttachOptions options;
        options.expected_size = 2_MiB;
        auto file = attach(Buffer::file(folder_ / "x"), Access::write, options);
        ASSERT_FALSE(file.ok());
        EXPECT_EQ(file.error().code, ErrorCode::no_space) << file.error().to_string();
        // In place, too.
        put(folder_ / "y", "1");
        file = attach(Buffer::file(folder_ / "y", 1, 2_MiB), Access::write);
        ASSERT_FALSE(file.ok());
        EXPECT_EQ(file.error().code, ErrorCode::no_space) << file.error().to_string();
        EXPECT_EQ(folder_.names(), std::set<std::string>{"y"});
    });
    if (!skip.empty()) GTEST_SKIP() << skip;
}

TEST_F(SystemTest, AFileSystemThatFillsUpIsFoundOutByTheWrites) {
    std::string skip;
    in_a_thread([&] {
        if (!mount_tiny(folder_.path())) {
            skip = std::string("no file system can be mounted: ") + std::strerror(errno);
            return;
        }
        std::string text = text_of(2_MiB);
        for (const auto io : {base::FileIo::automatic, base::FileIo::threads}) {
            open(create(FileOptions{io}));
            auto file = attach(Buffer::file(folder_ / "x"), Access::write);
            ASSERT_TRUE(file.ok());
            const auto moved = move(**file, 0, text.data(), text.size(), true);
            ASSERT_FALSE(moved.ok());
            EXPECT_EQ(moved.error().code, ErrorCode::no_space) << moved.error().to_string();
        }
        EXPECT_TRUE(folder_.names().empty());
    });
    if (!skip.empty()) GTEST_SKIP() << skip;
}

// As in a chroot: the kernel tells nothing of a process's open files.
TEST_F(SystemTest, WithoutProcFilesGetTheirNames) {
    std::string skip;
    const std::string text = text_of(3000);
    put(folder_ / "old", "1");
    in_a_thread([&] {
        if (::unshare(CLONE_FS | CLONE_NEWNS) != 0 ||
            ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            ::mount("tmpfs", "/proc", "tmpfs", 0, nullptr) != 0) {
            skip = std::string("no file system can be mounted: ") + std::strerror(errno);
            return;
        }
        for (const char* name : {"old", "new"}) {
            const auto written = replace(folder_ / name, text);
            EXPECT_TRUE(written.ok()) << written.error().to_string();
        }
    });
    if (!skip.empty()) GTEST_SKIP() << skip;
    EXPECT_EQ(get(folder_ / "old"), text);
    EXPECT_EQ(get(folder_ / "new"), text);
    EXPECT_EQ(folder_.names(), (std::set<std::string>{"new", "old"}));
}

// Who may not read a file may not open the next one of its name either, while that has a name and not yet its mode.
TEST_F(SystemTest, WhatReplacesAPrivateFileIsPrivateAtOnce) {
    std::string skip;
    put(folder_ / "x", "old");
    ASSERT_EQ(::chmod((folder_ / "x").c_str(), 0600), 0);
    in_a_thread([&] {
        if (!forbid(SYS_fchmod)) {
            skip = "seccomp is not to be had";
            return;
        }
        const auto file = driver::ReplacedFile::begin(folder_ / "x", false);
        ASSERT_TRUE(file.ok()) << file.error().to_string();
        ASSERT_EQ(file->notes().size(), 1u) << "it cannot be given its mode";
        struct stat status {};
        EXPECT_EQ(::fstat(file->fd().get(), &status), 0);
        EXPECT_EQ(status.st_mode & 0077, 0u);
    });
    if (!skip.empty()) GTEST_SKIP() << skip;
}

// ext4 gives nothing back.
TEST_F(SystemTest, ARangeThatFailedLeavesNoBlocksBeyondTheEnd) {
    if (!driver::would_live_in_memory("/dev/shm/x")) GTEST_SKIP() << "/dev/shm is not a tmpfs";
    const Folder shm("/dev/shm");
    put(shm / "x", text_of(5000));
    const auto bytes_held = [&] {
        struct stat status {};
        EXPECT_EQ(::stat((shm / "x").c_str(), &status), 0);
        return static_cast<Bytes>(status.st_blocks) * 512;
    };
    for (const bool fails : {true, false}) {
        {
            const auto file = attach(Buffer::file(shm / "x", 5000, 8_MiB), Access::write);
            ASSERT_TRUE(file.ok()) << file.error().to_string();
            EXPECT_GT(bytes_held(), 8_MiB);
            std::string text = text_of(8_MiB);
            ASSERT_TRUE(move(**file, 0, text.data(), fails ? 3000 : 8_MiB, true).ok());
            EXPECT_TRUE(fails || (*file)->commit().ok());
        }
        EXPECT_EQ(bytes_held() > 8_MiB, !fails) << bytes_held();
    }
    EXPECT_EQ(get(shm / "x"), text_of(5000) + text_of(8_MiB));
}

TEST_F(SystemTest, ALimitOnFileSizesDoesNotEndTheProcess) {
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit low = before;
    low.rlim_cur = 1_MiB;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
    const auto written = replace(folder_ / "x", text_of(1_MiB + 1));
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    ASSERT_FALSE(written.ok());
    EXPECT_EQ(written.error().code, ErrorCode::no_space);
    EXPECT_TRUE(says(written.error().hint, "ulimit -f"));
}

// Small files are written without a backend.
TEST_F(SystemTest, ALimitOnFileSizesIsKeptByWholeRangesToo) {
    put(folder_ / "x", "");
    const driver::Fd file(::open((folder_ / "x").c_str(), O_RDWR));
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit low = before;
    low.rlim_cur = 4096;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
    const std::string text = text_of(4096);
    const auto fits = driver::write_range(file, 0, text.data(), 4096, "x");
    const auto beyond = driver::write_range(file, 1, text.data(), 4096, "x");
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_TRUE(fits.ok());
    ASSERT_FALSE(beyond.ok());
    EXPECT_EQ(beyond.error().code, ErrorCode::no_space);
    EXPECT_EQ(get(folder_ / "x"), text);
}

// The end of a file that was cut off after it was opened would be taken for zeros.
TEST_F(SystemTest, WhatWasCutOffIsNoHole) {
    put(folder_ / "x", "data");
    ASSERT_EQ(::truncate((folder_ / "x").c_str(), 64_MiB), 0);
    const auto file = attach(Buffer::file(folder_ / "x", 0, 64_MiB), Access::read);
    ASSERT_TRUE(file.ok()) << file.error().to_string();
    const auto before = (*file)->extents();
    ASSERT_TRUE(before.has_value()) << "a file system with holes, as those for temporary files are";
    EXPECT_LT(before->back().offset + before->back().size, 64_MiB);
    ASSERT_EQ(::truncate((folder_ / "x").c_str(), 32_MiB), 0);
    EXPECT_FALSE((*file)->extents().has_value());
}

TEST_F(SystemTest, RegisteredMemoryIsBounded) {
    const auto made = driver::create_uring_engine(4, 2);
    if (!made) GTEST_SKIP() << made.error().to_string();
    driver::FileIoEngine& engine = **made;
    std::unique_ptr<char, decltype(&std::free)> memory(static_cast<char*>(std::aligned_alloc(4096, 4_MiB)),
                                                       &std::free);
    const int first = engine.keep_memory(memory.get(), 4_MiB);
    if (first < 0) GTEST_SKIP() << "this kernel registers no memory";
    EXPECT_LT(engine.keep_memory(memory.get(), 512_MiB), 0) << "more than is kept altogether";
    EXPECT_LT(engine.keep_memory(nullptr, 0), 0);
    int kept = 1;
    while (kept < 1000 && engine.keep_memory(memory.get(), 4_KiB) >= 0) ++kept;
    EXPECT_EQ(kept, 64);
    engine.drop_memory(first);
    engine.drop_memory(first);
    engine.drop_memory(-1);
    EXPECT_EQ(engine.keep_memory(memory.get() + 4_KiB, 8_KiB), first);

    // And it is what requests use.
    put(folder_ / "x", text_of(3000));
    const driver::Fd file(::open((folder_ / "x").c_str(), O_RDONLY));
    driver::FileRequest request;
    request.fd = file.get();
    request.address = memory.get() + 5000;
    request.size = 3000;
    request.kept_memory = first;
    std::vector<driver::FileCompletion> ended;
    for (const Bytes outside : {Bytes{0}, 1_MiB}) {
        request.address = memory.get() + 5000 + outside;
        engine.submit(request);
        engine.flush();
        while (ended.empty()) engine.reap(ended);
        EXPECT_EQ(ended[0].result, outside == 0 ? 3000 : -EFAULT);
        ended.clear();
    }
    EXPECT_EQ(std::string(memory.get() + 5000, 3000), text_of(3000));
}

TEST_F(SystemTest, WithoutLeaveToLockMemoryItGoesOn) {
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
    rlimit none = before;
    none.rlim_cur = 0;
    const std::string text = text_of(8_MiB);
    put(folder_ / "x", text);
    ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &none), 0);
    {
        const Unprivileged nobody;
        if (const auto engine = driver::create_uring_engine(4, 2)) {
            EXPECT_LT((*engine)->keep_memory(back_.get(), 2_MiB), 0);
        }
        open(create(FileOptions{base::FileIo::automatic}));
        auto file = attach(Buffer::file(folder_ / "x", 0, text.size()), Access::read);
        auto memory = attach(Buffer::host(back_.get(), 2_MiB), Access::write);
        for (Bytes at = 0; at < text.size(); at += 2_MiB) {
            EXPECT_TRUE(move(backend::Piece{file->get(), at, memory->get(), 0, 2_MiB}).ok());
            EXPECT_EQ(text.compare(at, 2_MiB, std::string(back_.get(), 2_MiB)), 0);
        }
    }
    EXPECT_EQ(::setrlimit(RLIMIT_MEMLOCK, &before), 0);
}

class DirectTest : public FileTest {
protected:
    void SetUp() override {
        FileTest::SetUp();
        put(folder_ / "x", text_);
        const driver::Fd file(::open((folder_ / "x").c_str(), O_RDONLY | O_DIRECT));
        if (!file) GTEST_SKIP() << "the file system of " << folder_.path() << " refuses O_DIRECT";
        // tmpfs took to it with Linux 6.6, and copies all the same.
        if (driver::lives_in_memory(file)) GTEST_SKIP() << folder_.path() << " lies in memory";
        options_.page_cache = PageCache::bypass;
    }

    const std::string text_ = text_of(5'000'001);
    std::unique_ptr<char, decltype(&std::free)> memory_{static_cast<char*>(std::aligned_alloc(4096, 8_MiB)),
                                                        &std::free};
    backend::AttachOptions options_;
};

TEST_F(DirectTest, WholeBlocksGoAroundTheCacheAndTheRestIsNoted) {
    auto file = attach(Buffer::file(folder_ / "x", 0, text_.size()), Access::read, options_);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(move(**file, 0, memory_.get(), 4_MiB, false).ok());
    EXPECT_TRUE((*file)->notes().empty());
    ASSERT_TRUE(move(**file, 4_MiB, memory_.get() + 4_MiB, text_.size() - 4_MiB, false).ok());
    EXPECT_EQ(std::string(memory_.get(), text_.size()), text_);
    ASSERT_EQ((*file)->notes().size(), 1u);
    EXPECT_TRUE((*file)->notes()[0].starts_with("2881 bytes of")) << (*file)->notes()[0];  // 5000001 % 4096
}

TEST_F(DirectTest, WritesToo) {
    std::memcpy(memory_.get(), text_.data(), text_.size());
    options_.expected_size = text_.size();
    auto file = attach(Buffer::file(folder_ / "y"), Access::write, options_);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(move(**file, 0, memory_.get(), text_.size(), true).ok());
    ASSERT_TRUE((*file)->commit().ok());
    EXPECT_EQ(get(folder_ / "y"), text_);
    EXPECT_EQ((*file)->notes().size(), 1u);
}

TEST_F(DirectTest, UnalignedMemoryIsNotedOrRefused) {
    auto file = attach(Buffer::file(folder_ / "x", 0, text_.size()), Access::read, options_);
    ASSERT_TRUE(move(**file, 0, memory_.get() + 1, 1_MiB, false).ok());
    EXPECT_EQ(std::string(memory_.get() + 1, 1_MiB), text_.substr(0, 1_MiB));
    ASSERT_EQ((*file)->notes().size(), 1u);
    EXPECT_TRUE(says((*file)->notes()[0], "1048576 bytes"));
    options_.strict = true;
    file = attach(Buffer::file(folder_ / "x", 0, text_.size()), Access::read, options_);
    const auto moved = move(**file, 0, memory_.get() + 1, 1_MiB, false);
    ASSERT_FALSE(moved.ok());
    EXPECT_EQ(moved.error().code, ErrorCode::path_unavailable);
}

TEST_F(SystemTest, AFileSystemWithoutDirectIoIsNotedOrRefused) {
    // Files of /sys never take O_DIRECT; tmpfs took to it with Linux 6.6.
    const Buffer buffer = Buffer::file("/sys/devices/system/cpu/online", 0, 1);
    backend::AttachOptions options;
    options.page_cache = PageCache::bypass;
    auto file = attach(buffer, Access::read, options);
    ASSERT_TRUE(file.ok()) << file.error().to_string();
    ASSERT_EQ((*file)->notes().size(), 1u);
    EXPECT_TRUE(says((*file)->notes()[0], "refuses O_DIRECT")) << (*file)->notes()[0];
    char byte = 0;
    ASSERT_TRUE(move(**file, 0, &byte, 1, false).ok());
    EXPECT_NE(byte, 0);
    options.strict = true;
    file = attach(buffer, Access::read, options);
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.error().code, ErrorCode::path_unavailable);
}

}  // namespace
}  // namespace sidestep::backends::file
