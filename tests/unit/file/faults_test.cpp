// What devices, kernels and other processes do wrong.
#include <fcntl.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <optional>

#include <fmt/format.h>

#include "file_test.hpp"

namespace sidestep::backends::file {
namespace {

using backend::Access;
using backend::Progress;
using driver::FileRequest;

// Reads and writes when it is reaped, as a script says.
class ScriptedEngine final : public driver::FileIoEngine {
public:
    struct Script {
        unsigned depth = 4;
        // Instead of moving bytes; nothing: move them.
        std::function<std::optional<std::int64_t>(const FileRequest&)> answer;
        Bytes max = 1_GiB;                              // bytes moved by one request
        std::atomic<bool> held{false};                  // nothing ends
        std::function<bool(const FileRequest&)> hangs;  // and the others end
        int broken = 0;
        bool gone = false;
        // Seen so far.
        unsigned outstanding = 0;
        unsigned max_outstanding = 0;
        unsigned submitted = 0;
        unsigned keeps = 0;  // calls of keep_memory()
        unsigned drops = 0;
        unsigned with_kept = 0;  // requests that use it
        unsigned made_up_for = 0;
    };
    explicit ScriptedEngine(std::shared_ptr<Script> script) : script_(std::move(script)) {}
    ~ScriptedEngine() override { script_->gone = true; }
    bool end() override { return !script_->held; }

    std::string_view name() const override { return "scripted"; }
    unsigned depth() const override { return script_->depth; }
    void submit(const FileRequest& request) override {
        queue_.push_back(request);
        ++script_->submitted;
        if (request.kept_memory == 7) ++script_->with_kept;
        script_->max_outstanding = std::max(script_->max_outstanding, ++script_->outstanding);
    }
    void flush() override {}
    int keep_memory(void*, Bytes) override {
        ++script_->keeps;
        return 7;
    }
    int broken() const override { return script_->broken; }
    void drop_memory(int number) override { script_->drops += number == 7 ? 1 : 0; }
    void make_up_for(unsigned hanging) override { script_->made_up_for = hanging; }
    // One request a call, the youngest first.
    void reap(std::vector<driver::FileCompletion>& ended) override {
        const auto next = std::find_if(queue_.rbegin(), queue_.rend(), [this](const FileRequest& each) {
            return !script_->held && !(script_->hangs && script_->hangs(each));
        });
        if (next == queue_.rend()) return;
        const FileRequest request = *next;
        queue_.erase(std::next(next).base());
        --script_->outstanding;
        auto result = script_->answer ? script_->answer(request) : std::nullopt;
        if (!result) {
            const auto bytes = std::min(request.size, script_->max);
            const auto at = static_cast<off_t>(request.offset);
            result = request.write ? ::pwrite(request.fd, request.address, bytes, at)
                                   : ::pread(request.fd, request.address, bytes, at);
        }
        ended.push_back({request.tag, *result});
    }

private:
    std::shared_ptr<Script> script_;
    std::deque<FileRequest> queue_;
};

class FaultsTest : public FileTest {
protected:
    void SetUp() override {
        open(create({}, std::make_unique<ScriptedEngine>(script_)));
        put(folder_ / "x", text_);
        backend::AttachOptions options;
        options.page_cache = PageCache::use;  // so that slices do not depend on where memory happens to lie
        file_ = std::move(*attach(Buffer::file(folder_ / "x", 0, text_.size()), Access::read, options));
    }
    Result<void> read() { return move(*file_, 0, back_.data(), back_.size(), false); }
    Error fails(const Result<void>& moved) {
        EXPECT_FALSE(moved.ok());
        EXPECT_EQ(script_->outstanding, 0u) << "something is in flight after the error";
        return moved ? Error{} : moved.error();
    }

    std::shared_ptr<ScriptedEngine::Script> script_ = std::make_shared<ScriptedEngine::Script>();
    const std::string text_ = text_of(20'000'003);
    std::string back_ = std::string(text_.size(), '\0');
    std::unique_ptr<backend::Registration> file_;
};

TEST_F(FaultsTest, ShortReadsAndWritesAreCarriedOn) {
    script_->max = 777'777;
    ASSERT_TRUE(read().ok());
    EXPECT_EQ(back_, text_);
    ASSERT_TRUE(replace(folder_ / "y", text_).ok());
    EXPECT_EQ(get(folder_ / "y"), text_);
}

TEST_F(FaultsTest, NoMoreIsAskedOfTheEngineThanItTakes) {
    ASSERT_TRUE(read().ok());
    EXPECT_EQ(script_->max_outstanding, script_->depth);
    EXPECT_EQ(script_->submitted, 10u);  // slices of 2 MiB
}

// An engine like the ring, which tells of ends only when it is asked.
TEST_F(FaultsTest, AFileThatHangsLeavesTheEngineToOthers) {
    script_->hangs = [this](const FileRequest& request) {
        const auto* const at = static_cast<const char*>(request.address);
        return at >= back_.data() && at < back_.data() + back_.size();
    };
    const auto memory = attach(Buffer::host(back_.data(), back_.size()), Access::write);
    test::StartedPiece hanging(*backend_, {file_.get(), 0, memory->get(), 0, back_.size(), 0});
    EXPECT_EQ(script_->outstanding, script_->depth);
    put(folder_ / "y", text_);
    const auto other = attach(Buffer::file(folder_ / "y", 0, text_.size()), Access::read);
    std::string back(text_.size(), '\0');
    const auto moved = move(**other, 0, back.data(), back.size(), false);
    EXPECT_TRUE(moved) << moved.error().to_string();
    EXPECT_TRUE(back == text_);
    EXPECT_EQ(script_->made_up_for, script_->depth);
    script_->hangs = nullptr;
    ASSERT_TRUE(hanging.wait().ok());
    EXPECT_TRUE(back_ == text_);
    EXPECT_EQ(script_->made_up_for, 0u);
}

TEST_F(FaultsTest, InterruptionsPass) {
    int left = 300;
    script_->answer = [&](const FileRequest&) -> std::optional<std::int64_t> {
        if (left-- <= 0) return std::nullopt;
        constexpr int numbers[] = {EINTR, EAGAIN, ECANCELED};
        return -numbers[left % 3];
    };
    ASSERT_TRUE(read().ok());
    EXPECT_EQ(back_, text_);
}

TEST_F(FaultsTest, SoDoManyAsLongAsBytesMoveInBetween) {
    script_->max = 100'000;
    int calls = 0;
    script_->answer = [&](const FileRequest&) -> std::optional<std::int64_t> {
        if (++calls % 200 != 0) return -EAGAIN;
        return std::nullopt;
    };
    ASSERT_TRUE(move(*file_, 0, back_.data(), 1'000'000, false).ok());
    EXPECT_EQ(calls, 2000);
    EXPECT_EQ(back_.substr(0, 1'000'000), text_.substr(0, 1'000'000));
}

TEST_F(FaultsTest, EndlessInterruptionsDoNot) {
    script_->answer = [](const FileRequest&) { return -EAGAIN; };
    EXPECT_EQ(fails(read()).code, ErrorCode::io_error);
}

TEST_F(FaultsTest, ABadSectorIsNamed) {
    script_->answer = [](const FileRequest& request) -> std::optional<std::int64_t> {
        if (request.offset <= 5_MiB && 5_MiB < request.offset + request.size) return -EIO;
        return std::nullopt;
    };
    const Error error = fails(read());
    EXPECT_EQ(error.code, ErrorCode::io_error);
    EXPECT_TRUE(says(error.message, folder_ / "x") && says(error.message, "offset 4194304")) << error.message;
    // The next piece is not harmed by the last one.
    EXPECT_TRUE(move(*file_, 8_MiB, back_.data(), 1_MiB, false).ok());
}

TEST_F(FaultsTest, AnErrorWaitsForWhatIsInFlight) {
    unsigned ended = 0;
    script_->answer = [&](const FileRequest&) -> std::optional<std::int64_t> {
        if (ended++ == 0) return -EIO;
        return std::nullopt;
    };
    auto memory = attach(Buffer::host(back_.data(), back_.size()), Access::write);
    script_->held = true;
    test::StartedPiece started(*backend_, {file_.get(), 0, memory->get(), 0, back_.size(), 0, nullptr});
    ASSERT_FALSE(started.over());
    script_->held = false;
    // One fails, three more are with the engine; none of those that wait is sent after them.
    for (int looks = 0; !started.over(); ++looks) ASSERT_LT(looks, 100);
    EXPECT_EQ(started.wait().error().code, ErrorCode::io_error);
    EXPECT_EQ(ended, 4u);
    EXPECT_EQ(script_->submitted, 4u);
}

TEST_F(FaultsTest, AnEngineOutlivesTheBackendWhereARequestHangs) {
    for (const bool hangs : {false, true}) {
        script_->held = hangs;
        script_->gone = false;
        SetUp();
        auto memory = attach(Buffer::host(back_.data(), back_.size()), Access::write);
        const test::StartedPiece started(*backend_, {file_.get(), 0, memory->get(), 0, 1_MiB, 0, nullptr});
        ASSERT_TRUE(started.begun().ok());
        backend_.reset();
        EXPECT_NE(script_->gone, hangs);
    }
}

// Another takes its place, a real one here: what it had begun may still write to memory before.
TEST_F(FaultsTest, ABrokenEngineStaysUntilNothingIsInFlight) {
    std::string first(1_MiB, '\0');
    auto memory = attach(Buffer::host(first.data(), first.size()), Access::write);
    auto other = attach(Buffer::host(back_.data(), 1_MiB), Access::write);
    script_->held = true;
    test::StartedPiece begun(*backend_, {file_.get(), 0, memory->get(), 0, 1_MiB, 0, nullptr});
    ASSERT_TRUE(begun.begun().ok());
    script_->broken = ENXIO;
    test::StartedPiece refused(*backend_, {file_.get(), 1_MiB, other->get(), 0, 1_MiB, 0, nullptr});
    EXPECT_EQ(script_->submitted, 2u);
    EXPECT_FALSE(script_->gone);
    script_->answer = [](const FileRequest& request) -> std::optional<std::int64_t> {
        if (request.offset == 0) return std::nullopt;
        return -ENXIO;
    };
    script_->held = false;
    ASSERT_TRUE(begun.wait().ok());
    EXPECT_EQ(first, text_.substr(0, 1_MiB));
    const auto moved = refused.wait();
    ASSERT_FALSE(moved.ok());
    EXPECT_TRUE(says(moved.error().message, "scripted takes no request any more")) << moved.error().message;
    EXPECT_TRUE(says(moved.error().message, folder_ / "x")) << moved.error().message;
    ASSERT_TRUE(read().ok());
    EXPECT_TRUE(script_->gone);
    EXPECT_EQ(back_, text_);
}

TEST_F(FaultsTest, AFullDiskIsNoSpace) {
    for (const int number : {ENOSPC, EDQUOT, EFBIG}) {
        script_->answer = [number](const FileRequest&) { return -number; };
        const Error error = fails(replace(folder_ / "y", text_));
        EXPECT_EQ(error.code, ErrorCode::no_space);
        EXPECT_NE(error.hint, "");
    }
    EXPECT_FALSE(std::filesystem::exists(folder_ / "y"));
}

TEST_F(FaultsTest, AFileThatShrinksIsFoundOut) {
    ASSERT_EQ(::truncate((folder_ / "x").c_str(), 3'000'000), 0);
    const Error error = fails(read());
    EXPECT_EQ(error.code, ErrorCode::end_of_file);
    EXPECT_TRUE(says(error.message, "ended at byte 3000000, ")) << error.message;
    EXPECT_TRUE(says(error.message, "to 3000000 bytes")) << error.message;
}

TEST_F(FaultsTest, ADeviceThatWantsOtherBlocksIsServedThroughTheCache) {
    backend::AttachOptions options;
    options.page_cache = PageCache::bypass;
    options.strict = true;
    const Buffer buffer = Buffer::file(folder_ / "x", 0, text_.size());
    auto file = attach(buffer, Access::read, options);
    if (!file) GTEST_SKIP() << file.error().to_string();
    script_->answer = [](const FileRequest& request) -> std::optional<std::int64_t> {
        if ((::fcntl(request.fd, F_GETFL) & O_DIRECT) != 0) return -EINVAL;
        return std::nullopt;
    };
    std::unique_ptr<char, decltype(&std::free)> memory(static_cast<char*>(std::aligned_alloc(4096, 4_MiB)),
                                                       &std::free);
    EXPECT_EQ(fails(move(**file, 0, memory.get(), 4_MiB, false)).code, ErrorCode::invalid_argument);
    options.strict = false;
    file = attach(buffer, Access::read, options);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(move(**file, 0, memory.get(), 4_MiB, false).ok());
    EXPECT_EQ(std::string(memory.get(), 4_MiB), text_.substr(0, 4_MiB));
    ASSERT_EQ((*file)->notes().size(), 1u);
    EXPECT_TRUE(says((*file)->notes()[0], "4194304 bytes")) << (*file)->notes()[0];
}

// Reads around the page cache into a slot, from an offset within a block.
class AroundTest : public FaultsTest {
protected:
    void SetUp() override {
        FaultsTest::SetUp();
        backend::AttachOptions options;
        options.page_cache = PageCache::bypass;
        options.strict = true;
        if (auto strict = attach(Buffer::file(folder_ / "x", offset, size), Access::read, options); !strict) {
            GTEST_SKIP() << strict.error().to_string();
        }
        options.strict = false;
        file_ = std::move(*attach(Buffer::file(folder_ / "x", offset, size), Access::read, options));
        slot_.reset(static_cast<char*>(std::aligned_alloc(4096, slot_size)));
        memory_ = std::move(*attach(Buffer::host(slot_.get(), slot_size), Access::write));
    }
    Result<void> read() {
        backend::Piece piece{file_.get(), 0, memory_.get(), at, size};
        piece.room_before = at;
        piece.room_after = slot_size - at - size;
        return move(piece);
    }
    bool right() const { return text_.compare(offset, size, std::string(slot_.get() + at, size)) == 0; }
    static bool goes_around(const FileRequest& request) {
        return (::fcntl(request.fd, F_GETFL) & O_DIRECT) != 0;
    }

    static constexpr Bytes offset = 1'000'003, size = 6'000'001, at = offset % 4096, slot_size = 6_MiB;
    std::unique_ptr<char, decltype(&std::free)> slot_{nullptr, &std::free};
    std::unique_ptr<backend::Registration> memory_;
};

TEST_F(AroundTest, ShortReadsAreCarriedOnInWholeBlocks) {
    for (const Bytes max : {4_KiB, 12_KiB, 1_MiB}) {
        script_->max = max;
        ASSERT_TRUE(read().ok());
        EXPECT_TRUE(right());
    }
    EXPECT_EQ(file_->storage_bytes().o_direct, 3 * size);
    EXPECT_EQ(file_->storage_bytes().page_cache, 0u);
}

TEST_F(AroundTest, OneThatEndsWithinABlockIsCarriedOnThroughTheCache) {
    const driver::Fd plain(::open((folder_ / "x").c_str(), O_RDONLY));
    // The first one ends before the first byte asked for, others anywhere.
    for (const Bytes max : {Bytes{100}, at - 1, at, at + 1, Bytes{5000}, 2_MiB - 1}) {
        std::memset(slot_.get(), 0, slot_size);
        const Bytes direct_before = file_->storage_bytes().o_direct;
        script_->answer = [&,
                           first = true](const FileRequest& request) mutable -> std::optional<std::int64_t> {
            if (!goes_around(request) || request.offset > offset || !first) return std::nullopt;
            first = false;
            return ::pread(plain.get(), request.address, std::min(max, request.size),
                           static_cast<off_t>(request.offset));
        };
        ASSERT_TRUE(read().ok()) << max;
        EXPECT_TRUE(right()) << max;
        EXPECT_LT(file_->storage_bytes().o_direct - direct_before, size);
    }
    EXPECT_EQ(file_->storage_bytes().total(), 6 * size);
}

TEST_F(AroundTest, WhatTheDeviceCannotDoTheCacheDoes) {
    for (const int number : {EINVAL, EOPNOTSUPP, EFAULT}) {
        SetUp();
        script_->answer = [number](const FileRequest& request) -> std::optional<std::int64_t> {
            if (goes_around(request)) return -number;
            return std::nullopt;
        };
        ASSERT_TRUE(read().ok());
        EXPECT_TRUE(right());
        EXPECT_EQ(file_->storage_bytes().o_direct, 0u);
        EXPECT_EQ(file_->storage_bytes().page_cache, size);
        ASSERT_EQ(file_->notes().size(), 1u);
        EXPECT_TRUE(says(file_->notes()[0], std::to_string(size))) << file_->notes()[0];
        script_->submitted = 0;
        ASSERT_TRUE(read().ok());
        EXPECT_EQ(script_->submitted, 3u) << "it is not tried again";
    }
}

TEST_F(AroundTest, ErrorsNameTheBytesAskedFor) {
    for (const int number : {EIO, ESTALE}) {
        script_->answer = [number](const FileRequest&) { return -number; };
        const Error error = fails(read());
        EXPECT_EQ(error.code, ErrorCode::io_error);
        EXPECT_TRUE(says(error.message, folder_ / "x") && says(error.message, "at offset ")) << error.message;
        EXPECT_NE(error.hint, "") << error.message;
    }
    // Of the superset's first slice, which begins at a block, that is from byte 1000003 on.
    script_->answer = [](const FileRequest& request) -> std::optional<std::int64_t> {
        if (request.offset < offset) return -EIO;
        return std::nullopt;
    };
    const Error error = fails(read());
    EXPECT_TRUE(says(error.message, "offset 1000003")) << error.message;
    EXPECT_TRUE(says(error.message, std::to_string(2_MiB - at) + " bytes")) << error.message;
}

TEST_F(AroundTest, TheEndOfAFileThatShrankIsFoundOut) {
    for (const Bytes left : {3'000'001, 1'000'100, 1'000'001, 7}) {
        put(folder_ / "x", text_);
        ASSERT_EQ(::truncate((folder_ / "x").c_str(), static_cast<off_t>(left)), 0);
        const Error error = fails(read());
        EXPECT_EQ(error.code, ErrorCode::end_of_file) << error.to_string();
        EXPECT_TRUE(says(error.message, fmt::format("ended at byte {}, ", left))) << error.message;
        EXPECT_TRUE(says(error.message, fmt::format("to {} bytes", left))) << error.message;
    }
}

TEST_F(AroundTest, TheQueueStartsModestHoweverMuchTheEngineTakes) {
    script_->depth = 128;
    ASSERT_EQ(::truncate((folder_ / "x").c_str(), 80_MiB), 0);
    backend::AttachOptions options;
    options.page_cache = PageCache::bypass;
    const auto file = attach(Buffer::file(folder_ / "x", 0, 80_MiB), Access::read, options);
    const std::unique_ptr<char, decltype(&std::free)> pages(
        static_cast<char*>(std::aligned_alloc(4096, 80_MiB)), &std::free);
    const auto memory = attach(Buffer::host(pages.get(), 80_MiB), Access::write);
    script_->held = true;
    test::StartedPiece started(*backend_, {file->get(), 0, memory->get(), 0, 80_MiB});
    ASSERT_TRUE(started.begun().ok());
    EXPECT_EQ(script_->outstanding, 16u) << "of 40 slices";
    script_->held = false;
    ASSERT_TRUE(started.wait().ok());
    EXPECT_EQ(std::string(pages.get(), text_.size()), text_);
    EXPECT_EQ((*file)->storage_bytes().o_direct, 80_MiB);
}

// As many bytes as reads have, in requests half as large.
TEST_F(AroundTest, WritesAreCutSmallerAndAreMore) {
    script_->depth = 128;
    backend::AttachOptions options;
    options.page_cache = PageCache::bypass;
    options.expected_size = 80_MiB;
    const auto file = attach(Buffer::file(folder_ / "y"), Access::write, options);
    const std::unique_ptr<char, decltype(&std::free)> pages(
        static_cast<char*>(std::aligned_alloc(4096, 80_MiB)), &std::free);
    std::memset(pages.get(), 7, 80_MiB);
    const auto memory = attach(Buffer::host(pages.get(), 80_MiB), Access::read);
    script_->held = true;
    test::StartedPiece started(*backend_, {memory->get(), 0, file->get(), 0, 80_MiB, 1});
    ASSERT_TRUE(started.begun().ok()) << started.begun().error().to_string();
    EXPECT_EQ(script_->outstanding, 32u);
    Bytes largest = 0;
    script_->answer = [&](const FileRequest& request) -> std::optional<std::int64_t> {
        largest = std::max(largest, request.size);
        return std::nullopt;
    };
    script_->held = false;
    ASSERT_TRUE(started.wait().ok());
    EXPECT_EQ(largest, 1_MiB);
    EXPECT_EQ((*file)->storage_bytes().o_direct, 80_MiB);
}

TEST_F(AroundTest, MemoryIsKeptAfterItsFirstPassUntilItGoes) {
    ASSERT_TRUE(read().ok());
    EXPECT_EQ(script_->keeps, 0u) << "a single pass is not worth it";
    ASSERT_TRUE(read().ok());
    const unsigned before = script_->submitted;
    ASSERT_TRUE(read().ok());
    EXPECT_EQ(script_->keeps, 1u);
    EXPECT_EQ(script_->with_kept, script_->submitted - before);
    EXPECT_EQ(script_->drops, 0u);
    memory_.reset();
    EXPECT_EQ(script_->drops, 1u);
    EXPECT_TRUE(right());
}

TEST_F(FaultsTest, PiecesThatMakeNoSenseAreRefused) {
    auto memory = attach(Buffer::host(back_.data(), 100), Access::write);
    const auto code = [&](const backend::Piece& piece) {
        const test::StartedPiece started(*backend_, piece);
        return started.begun() ? ErrorCode::internal : started.begun().error().code;
    };
    EXPECT_EQ(code({file_.get(), 0, memory->get(), 1, 100, 0, nullptr}), ErrorCode::invalid_argument);
    EXPECT_EQ(code({file_.get(), text_.size(), memory->get(), 0, 1, 0, nullptr}),
              ErrorCode::invalid_argument);
    EXPECT_EQ(code({memory->get(), 0, file_.get(), 0, 1, 1, nullptr}),
              ErrorCode::invalid_argument);  // read only
    EXPECT_EQ(code({memory->get(), 0, file_.get(), 0, 1, 0, nullptr}), ErrorCode::unsupported);
    EXPECT_EQ(code({file_.get(), 0, memory->get(), 0, 1, 2, nullptr}), ErrorCode::unsupported);
    EXPECT_EQ(script_->submitted, 0u);
}

}  // namespace
}  // namespace sidestep::backends::file
