// io_uring that takes no request any more, for good.
#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "driver/system_error.hpp"
#include "driver/uring.hpp"
#include "file_test.hpp"

namespace sidestep::backends::file {
namespace {

using backend::Access;

std::vector<int> rings() {
    std::vector<int> found;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
        if (std::filesystem::read_symlink(entry.path(), ignored) == "anon_inode:[io_uring]")
            found.push_back(std::stoi(entry.path().filename()));
    return found;
}

// What the kernel answers to a descriptor that is no ring. What rings have begun goes on.
constexpr int no_ring = EOPNOTSUPP;
void break_rings() {
    const driver::Fd other(::open("/dev/null", O_RDWR));
    for (const int ring : rings()) ASSERT_EQ(::dup2(other.get(), ring), ring);
}

// Nobody in the process opens a file any more, as long as it lives.
class NoDescriptors {
public:
    NoDescriptors() {
        EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
        rlimit none = before_;
        none.rlim_cur = 0;
        EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    }
    ~NoDescriptors() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
    NoDescriptors(const NoDescriptors&) = delete;
    NoDescriptors& operator=(const NoDescriptors&) = delete;

private:
    rlimit before_{};
};

class BrokenRingTest : public FileTest {
protected:
    void SetUp() override {
        FileTest::SetUp();
        if (!says(support_.reason, "io_uring, up to")) GTEST_SKIP() << support_.reason;
        put(folder_ / "x", text_);
        attach_file();
    }
    void attach_file() {
        backend::AttachOptions options;
        options.page_cache = PageCache::use;
        file_ = std::move(*attach(Buffer::file(folder_ / "x", 0, text_.size()), Access::read, options));
    }
    // So few bytes that the ring reads them.
    Result<void> read(backend::Registration& memory, Bytes at) {
        return move(backend::Piece{file_.get(), at, &memory, 0, piece, 0, nullptr});
    }
    bool right(const char* memory, Bytes at) const {
        return text_.compare(at, piece, std::string(memory, piece)) == 0;
    }

    static constexpr Bytes piece = 32_KiB;
    const std::string text_ = text_of(4_MiB);
    std::string back_ = std::string(2_MiB, '\0');
    std::unique_ptr<backend::Registration> file_;
};

TEST_F(BrokenRingTest, WhatIsBegunEndsAsEverAndTheRestWithTheError) {
    backend_.reset();
    const auto engine = driver::create_uring_engine(4, 2);
    ASSERT_TRUE(engine.ok());
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const driver::Fd from(ends[0]), to(ends[1]);
    char byte = 0;
    driver::FileRequest request;
    request.fd = from.get();
    request.address = &byte;
    request.size = 1;
    request.tag = 1;
    (*engine)->submit(request);
    (*engine)->flush();
    EXPECT_EQ((*engine)->broken(), 0);
    break_rings();
    std::vector<driver::FileCompletion> ended;
    for (request.tag = 2; request.tag < 4; ++request.tag) {
        (*engine)->submit(request);
        (*engine)->flush();
        (*engine)->reap(ended);
        ASSERT_EQ(ended.size(), request.tag - 1);
        EXPECT_EQ(ended.back().tag, request.tag);
        EXPECT_EQ(ended.back().result, -no_ring);
    }
    EXPECT_EQ((*engine)->broken(), no_ring);
    ASSERT_EQ(::write(to.get(), "x", 1), 1);
    while (ended.size() < 3) (*engine)->reap(ended);
    EXPECT_EQ(ended.back().tag, 1u);
    EXPECT_EQ(ended.back().result, 1);
    EXPECT_EQ(byte, 'x');
}

TEST_F(BrokenRingTest, WhatIsAskedEndsWithTheErrorAndTheNextGetsANewRing) {
    auto memory = attach(Buffer::host(back_.data(), piece), Access::write);
    for (int times = 0; times < 3; ++times) {
        ASSERT_TRUE(read(**memory, 0).ok());
        EXPECT_EQ(rings().size(), 1u);
        break_rings();
        const auto moved = read(**memory, piece);
        ASSERT_FALSE(moved.ok());
        const std::string words = "io_uring takes no request any more: cannot read 32768 bytes of ";
        EXPECT_TRUE(moved.error().message.starts_with(words)) << moved.error().message;
        EXPECT_TRUE(moved.error().message.ends_with(driver::system_words(no_ring))) << moved.error().message;
        const auto next = read(**memory, 2 * piece);
        ASSERT_TRUE(next.ok()) << next.error().to_string();
        EXPECT_TRUE(right(back_.data(), 2 * piece));
    }
}

// Their numbers are of the ring that is gone: the new one may know one of them by the other's.
TEST_F(BrokenRingTest, RegisteredMemoryIsRegisteredAnew) {
    auto first = attach(Buffer::host(back_.data(), 1_MiB), Access::write);
    auto second = attach(Buffer::host(back_.data() + 1_MiB, 1_MiB), Access::write);
    const auto reads = [&](backend::Registration& memory, const char* address) {
        for (Bytes at = 0; at < 2_MiB; at += piece) {
            const auto moved = read(memory, at);
            if (!moved || !right(address, at)) return false;
        }
        return true;
    };
    ASSERT_TRUE(reads(**first, back_.data()) && reads(**second, back_.data() + 1_MiB));
    break_rings();
    EXPECT_FALSE(read(**first, 0).ok());
    EXPECT_TRUE(reads(**second, back_.data() + 1_MiB));
    first->reset();
    EXPECT_TRUE(reads(**second, back_.data() + 1_MiB));
}

TEST_F(BrokenRingTest, WhereThereIsNoNewOneTheErrorSaysSoOrThreadsDo) {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "the undefined behaviour sanitizer, in one build with this one, takes memory for bad "
                    "where it can open no pipe";
#endif
    for (const auto io : {base::FileIo::uring, base::FileIo::automatic}) {
        file_.reset();
        open(create(FileOptions{io}));
        attach_file();
        auto memory = attach(Buffer::host(back_.data(), piece), Access::write);
        break_rings();
        ASSERT_FALSE(read(**memory, 0).ok());
        {
            const NoDescriptors none;
            const auto moved = read(**memory, 0);
            EXPECT_EQ(moved.ok(), io == base::FileIo::automatic);
            if (!moved) {
                EXPECT_EQ(moved.error().message,
                          "the kernel refuses io_uring: " + driver::system_words(EMFILE));
            }
        }
        const auto moved = read(**memory, piece);
        ASSERT_TRUE(moved.ok()) << moved.error().to_string();
        EXPECT_TRUE(right(back_.data(), piece));
        EXPECT_EQ(rings().size(), io == base::FileIo::uring ? 1u : 0u);
        const auto notes = file_->notes();
        const bool told = std::any_of(notes.begin(), notes.end(),
                                      [](const auto& note) { return says(note, "threads moved bytes of"); });
        EXPECT_EQ(told, io == base::FileIo::automatic);
    }
}

}  // namespace
}  // namespace sidestep::backends::file
