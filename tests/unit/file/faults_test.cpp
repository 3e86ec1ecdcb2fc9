// What devices, kernels and other processes do wrong.
#include <fcntl.h>

#include <atomic>
#include <deque>
#include <optional>

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
        Bytes most = 1_GiB;             // bytes moved by one request
        std::atomic<bool> held{false};  // nothing ends
        // Seen so far.
        unsigned outstanding = 0;
        unsigned most_outstanding = 0;
        unsigned submitted = 0;
    };
    explicit ScriptedEngine(std::shared_ptr<Script> script) : script_(std::move(script)) {}

    std::string_view name() const override { return "scripted"; }
    unsigned depth() const override { return script_->depth; }
    void submit(const FileRequest& request) override {
        queue_.push_back(request);
        ++script_->submitted;
        script_->most_outstanding = std::max(script_->most_outstanding, ++script_->outstanding);
    }
    void flush() override {}
    // One request a call, the youngest first.
    void reap(std::vector<driver::FileCompletion>& ended) override {
        if (queue_.empty() || script_->held) return;
        const FileRequest request = queue_.back();
        queue_.pop_back();
        --script_->outstanding;
        auto result = script_->answer ? script_->answer(request) : std::nullopt;
        if (!result) {
            const auto bytes = std::min(request.size, script_->most);
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
        open(create(std::make_unique<ScriptedEngine>(script_)));
        put(folder_ / "x", text_);
        file_ = std::move(*attach(Buffer::file(folder_ / "x", 0, text_.size()), Access::read));
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
    script_->most = 777'777;
    ASSERT_TRUE(read().ok());
    EXPECT_EQ(back_, text_);
    ASSERT_TRUE(replace(folder_ / "y", text_).ok());
    EXPECT_EQ(get(folder_ / "y"), text_);
}

TEST_F(FaultsTest, NoMoreIsAskedOfTheEngineThanItTakes) {
    ASSERT_TRUE(read().ok());
    EXPECT_EQ(script_->most_outstanding, script_->depth);
    EXPECT_EQ(script_->submitted, 10u);  // slices of 2 MiB
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
    script_->most = 100'000;
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
    const auto ticket = backend_->start({file_.get(), 0, memory->get(), 0, back_.size(), 0, nullptr});
    ASSERT_TRUE(ticket.ok() && !ticket->done());
    EXPECT_EQ(*backend_->poll(*ticket), Progress::pending);
    script_->held = false;
    // One fails, three more are with the engine; none of those that wait is sent after them.
    int polls = 0;
    auto progress = backend_->poll(*ticket);
    for (; progress.ok(); progress = backend_->poll(*ticket)) ASSERT_LT(++polls, 100);
    EXPECT_EQ(progress.error().code, ErrorCode::io_error);
    EXPECT_EQ(ended, 4u);
    EXPECT_EQ(script_->submitted, 4u);
    EXPECT_EQ(backend_->poll(*ticket).error().code, ErrorCode::invalid_argument);  // spent
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
    EXPECT_TRUE(says(error.message, "3000000 bytes")) << error.message;
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

TEST_F(FaultsTest, PiecesThatMakeNoSenseAreRefused) {
    auto memory = attach(Buffer::host(back_.data(), 100), Access::write);
    const auto code = [&](const backend::Piece& piece) {
        const auto ticket = backend_->start(piece);
        return ticket ? ErrorCode::internal : ticket.error().code;
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
