// Files to and from the stand-in for device memory: what goes directly, what does not, and what kernels
// refuse.
#include "p2pmem_test.hpp"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

namespace sidestep::backends::p2pmem {
namespace {

using backend::Access;

constexpr const char* device = "0000:03:00.0";
constexpr std::size_t read_file = 0;
constexpr std::size_t write_file = 1;

// One pread or pwrite.
struct FileCall {
    bool write = false;
    int fd = -1;
    char* address = nullptr;
    Bytes size = 0;
    Bytes offset = 0;
};

// Moves bytes, unless the script answers with how many it moved, or -errno. Any thread.
struct Script {
    std::function<std::optional<std::int64_t>(const FileCall&)> answer;
    Bytes max = 1_GiB;  // bytes moved by one call
    std::mutex mutex;   // guards the next
    std::vector<FileCall> seen;
    std::atomic<unsigned> outstanding{0};
    std::atomic<bool> hangs{false};

    std::int64_t make(const FileCall& call) {
        {
            const std::lock_guard lock(mutex);
            seen.push_back(call);
        }
        ++outstanding;
        while (hangs) std::this_thread::yield();
        auto result = answer ? answer(call) : std::nullopt;
        if (!result) {
            // Whole blocks, as O_DIRECT wants it; less of them is told.
            const auto bytes = std::min(call.size, (max + 4_KiB - 1) / 4_KiB * 4_KiB);
            result = ::syscall(call.write ? SYS_pwrite64 : SYS_pread64, call.fd, call.address, bytes,
                               static_cast<off_t>(call.offset));
            result = *result < 0 ? -errno : std::min(*result, static_cast<std::int64_t>(max));
        }
        --outstanding;
        return *result;
    }
};

std::mutex mutex;  // guards the next
std::shared_ptr<Script> current;

void follow(std::shared_ptr<Script> script) {
    const std::lock_guard lock(mutex);
    current = std::move(script);
}

class P2pmemFile : public P2pmemTest {
protected:
    void SetUp() override {
        add_device(device, 16_MiB, 16_MiB);
        ASSERT_TRUE(open(create(options())).usable);
        put(*this / "x", text_);
        auto memory = backend_->allocator()->allocate(Place::p2pmem(device), 8_MiB, MemoryKind::p2pmem);
        ASSERT_TRUE(memory.ok()) << memory.error().to_string();
        memory_ = std::move(*memory);
        follow(script_);
    }
    void TearDown() override {
        follow(nullptr);
        memory_ = Allocation();
    }
    char* address() const { return static_cast<char*>(memory_.address()); }

    // `size` bytes of the file from `offset` on, to `at` in the memory.
    Result<void> read(Bytes offset, Bytes size, Bytes at, bool strict = false) {
        backend::AttachOptions options;
        options.strict = strict;
        file_ = std::move(*attach(Buffer::file(*this / "x", offset, size), Access::read, options));
        auto target = attach(memory_.buffer().slice(at, size), Access::write);
        return move(*file_, 0, **target, 0, size, read_file);
    }

    std::shared_ptr<Script> script_ = std::make_shared<Script>();
    const std::string text_ = text_of(3'000'001);
    Allocation memory_;
    std::unique_ptr<backend::Registration> file_;
};

TEST_F(P2pmemFile, WholeBlocksGoDirectlyAndTheRestThroughHostMemory) {
    ASSERT_TRUE(read(0, 1_MiB, 0).ok());
    EXPECT_EQ(file_->storage_bytes().gpu_direct, 1_MiB);
    EXPECT_EQ(file_->storage_bytes().page_cache, 0u);
    EXPECT_TRUE(file_->notes().empty());
    EXPECT_EQ(std::memcmp(address(), text_.data(), 1_MiB), 0);

    // From within one block to within another.
    std::memset(address(), 0, 1_MiB);
    ASSERT_TRUE(read(4096 + 100, 100'000, 4096 + 100).ok());
    EXPECT_EQ(std::memcmp(address() + 4196, text_.data() + 4196, 100'000), 0);
    const StorageBytes bytes = file_->storage_bytes();
    EXPECT_EQ(bytes.gpu_direct, 23 * 4_KiB);
    EXPECT_EQ(bytes.total(), 100'000u);
    ASSERT_EQ(file_->notes().size(), 1u);
    EXPECT_TRUE(says(file_->notes()[0], "5792 bytes")) << file_->notes()[0];
    for (const FileCall& request : script_->seen) {
        const auto* at = static_cast<const char*>(request.address);
        const bool in_device = at >= address() && at < address() + 8_MiB;
        EXPECT_EQ(in_device, request.offset % 4_KiB == 0 && request.size % 4_KiB == 0) << request.offset;
    }
}

TEST_F(P2pmemFile, WhatLiesDifferentlyInABlockGoesThroughHostMemoryOrIsRefused) {
    ASSERT_TRUE(read(0, 200'000, 1).ok());
    EXPECT_EQ(file_->storage_bytes().gpu_direct, 0u);
    EXPECT_EQ(file_->storage_bytes().page_cache, 200'000u);
    EXPECT_EQ(std::memcmp(address() + 1, text_.data(), 200'000), 0);
    const auto refused = read(0, 200'000, 1, true);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::path_unavailable);
}

// With it the host memory into which a drive reads what is no whole block.
TEST_F(P2pmemFile, ACallThatHangsOutlivesTheBackend) {
    script_->hangs = true;  // nothing ends
    file_ = std::move(*attach(Buffer::file(*this / "x", 1, 100), Access::read));
    auto target = attach(memory_.buffer().slice(1, 100), Access::write);
    const test::StartedPiece started(*backend_, {file_.get(), 0, target->get(), 0, 100, read_file, nullptr});
    ASSERT_TRUE(started.begun());
    while (script_->outstanding == 0) std::this_thread::yield();
    backend_.reset();
    EXPECT_EQ(script_->outstanding, 1u);
    std::memset(script_->seen.back().address, 1, script_->seen.back().size);
    script_->hangs = false;
    while (!started.told()) std::this_thread::yield();
    EXPECT_EQ(std::memcmp(address() + 1, text_.data() + 1, 100), 0);
}

TEST_F(P2pmemFile, ShortTransfersAreCarriedOn) {
    script_->max = 10'000;
    ASSERT_TRUE(read(0, text_.size(), 0).ok());
    EXPECT_EQ(std::memcmp(address(), text_.data(), text_.size()), 0);
    EXPECT_EQ(file_->storage_bytes().total(), text_.size());
}

TEST_F(P2pmemFile, WhatTheKernelRefusesIsAReasonWithItsRule) {
    struct Case {
        int number;
        const char* reason;
        const char* remedy;
    };
    for (const Case& one :
         {Case{EINVAL, "share no PCIe switch", "below one PCIe switch"},
          Case{EREMOTEIO, "takes no pages of p2pmem:0000:03:00.0", "PCIe NVMe drive"},
          Case{EFAULT, "registered buffers", "plain reads"}, Case{EOPNOTSUPP, "no direct I/O", "ext4"}}) {
        script_->answer = [&](const FileCall& request) -> std::optional<std::int64_t> {
            return request.size >= 4_KiB ? std::optional<std::int64_t>(-one.number) : std::nullopt;
        };
        const auto moved = read(0, 3'000'000, 0);
        ASSERT_FALSE(moved.ok());
        EXPECT_EQ(moved.error().code, ErrorCode::path_unavailable) << moved.error().to_string();
        EXPECT_TRUE(says(moved.error().message, one.reason)) << moved.error().message;
        EXPECT_TRUE(says(moved.error().hint, one.remedy)) << moved.error().hint;
        EXPECT_EQ(script_->outstanding, 0u) << "something is in flight after the error";
        EXPECT_EQ(file_->storage_bytes().gpu_direct, 0u);
    }
}

TEST_F(P2pmemFile, AFaultOfTheDriveNamesFileAndBytes) {
    script_->answer = [](const FileCall&) { return -EIO; };
    const auto moved = read(8_KiB, 16_KiB, 0);
    ASSERT_FALSE(moved.ok());
    EXPECT_EQ(moved.error().code, ErrorCode::io_error);
    EXPECT_TRUE(says(moved.error().message, "16384 bytes of " + (*this / "x") + " at offset 8192"))
        << moved.error().message;
}

TEST_F(P2pmemFile, AFileThatShrinksIsNoEndlessRead) {
    auto target = attach(memory_.buffer().slice(0, 1_MiB), Access::write);
    for (const Bytes from : {0_KiB, 64_KiB})
        for (const Bytes left : {4_KiB, Bytes{7}}) {
            put(*this / "x", text_);
            file_ = std::move(*attach(Buffer::file(*this / "x", 0, 1_MiB), Access::read));
            std::filesystem::resize_file(*this / "x", left);
            const auto moved = move(*file_, from, **target, from, 1_MiB - from, read_file);
            ASSERT_FALSE(moved.ok());
            EXPECT_EQ(moved.error().code, ErrorCode::end_of_file) << moved.error().to_string();
            EXPECT_TRUE(says(moved.error().message,
                             fmt::format("ended at byte {}, {} bytes early", left, 1_MiB - left)))
                << moved.error().message;
        }
}

TEST_F(P2pmemFile, AWriteThatGetsNowhereIsAFault) {
    script_->answer = [](const FileCall&) { return 0; };
    auto target = attach(Buffer::file(*this / "y"), Access::write);
    auto source = attach(memory_.buffer().slice(0, 16_KiB), Access::read);
    const auto moved = move(**source, 0, **target, 0, 16_KiB, write_file);
    ASSERT_FALSE(moved.ok());
    EXPECT_EQ(moved.error().code, ErrorCode::io_error) << moved.error().to_string();
    EXPECT_TRUE(says(moved.error().message, "cannot write 16384 bytes")) << moved.error().message;
}

TEST_F(P2pmemFile, AWrittenFileAppearsWithItsName) {
    std::memcpy(address(), text_.data(), text_.size());
    backend::AttachOptions options;
    options.expected_size = text_.size();
    auto target = attach(Buffer::file(*this / "y"), Access::write, options);
    ASSERT_TRUE(target.ok()) << target.error().to_string();
    auto source = attach(memory_.buffer().slice(0, text_.size()), Access::read);
    ASSERT_TRUE(move(**source, 0, **target, 0, text_.size(), write_file).ok());
    EXPECT_FALSE(std::filesystem::exists(*this / "y"));
    ASSERT_TRUE((*target)->commit().ok());
    EXPECT_EQ(get(*this / "y"), text_);
    EXPECT_EQ((*target)->storage_bytes().gpu_direct, text_.size() / 4_KiB * 4_KiB);

    target = attach(Buffer::file(*this / "z"), Access::write, options);
    ASSERT_TRUE(target.ok());
    ASSERT_TRUE(move(**source, 0, **target, 0, text_.size(), write_file).ok());
    target->reset();
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
        EXPECT_FALSE(says(entry.path().filename().string(), "z")) << "left over: " << entry.path();
}

TEST_F(P2pmemFile, FilesThatAreNotThereAreRefused) {
    EXPECT_EQ(attach(Buffer::file(*this / "no", 0, 1), Access::read).error().code, ErrorCode::not_found);
    EXPECT_EQ(attach(Buffer::file(*this / "x", 3'000'000, 2), Access::read).error().code,
              ErrorCode::end_of_file);
    EXPECT_EQ(attach(Buffer::file(folder_, 0, 1), Access::read).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(attach(Buffer::file(*this / "x", 4_MiB, 2), Access::write).error().code,
              ErrorCode::end_of_file);
    EXPECT_EQ(attach(Buffer::gpu(0, address(), 1), Access::read).error().code, ErrorCode::unsupported);
}

}  // namespace

static ssize_t made_by_script(bool write, int fd, void* address, std::size_t bytes, off_t offset) {
    std::shared_ptr<Script> script;
    {
        const std::lock_guard lock(mutex);
        script = current ? current : std::make_shared<Script>();
    }
    const std::int64_t result =
        script->make({write, fd, static_cast<char*>(address), bytes, static_cast<Bytes>(offset)});
    if (result < 0) errno = static_cast<int>(-result);
    return result < 0 ? -1 : result;
}

}  // namespace sidestep::backends::p2pmem

// Instead of the C library's.
extern "C" ssize_t pread(int fd, void* to, std::size_t bytes, off_t offset) {
    return sidestep::backends::p2pmem::made_by_script(false, fd, to, bytes, offset);
}
extern "C" ssize_t pwrite(int fd, const void* from, std::size_t bytes, off_t offset) {
    return sidestep::backends::p2pmem::made_by_script(true, fd, const_cast<void*>(from), bytes, offset);
}
