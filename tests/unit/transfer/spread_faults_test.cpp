// What a spread promises when files, GPUs and callers do not do what they should.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "spread_rig.hpp"

namespace sidestep {
namespace {

using namespace std::chrono_literals;
using test::chunks_of;
using test::every;
using test::FakeFiles;
using test::SpreadRig;

Error broken(ErrorCode code = ErrorCode::io_error) {
    return {code, "scripted failure", "fake", {}};
}

bool says(const Error& error, std::string_view what) {
    return error.message.find(what) != std::string::npos;
}

// Two tensors of half a MiB each, for every one of two GPUs.
void two_tensors(SpreadRig& rig) {
    rig.add_gpus(2, 1_MiB);
    const auto file = rig.add_file(1_MiB, {{0, 1_MiB}});
    rig.row(file, 0, 512_KiB, every, 0);
    rig.row(file, 512_KiB, 512_KiB, every, 512_KiB);
}

TEST(SpreadFaults, AMissingFileIsToldBeforeAByteMoves) {
    SpreadRig rig({});
    two_tensors(rig);
    rig.spread.files.push_back({"/nowhere", 0, {{0, 10}}});
    const auto failed = rig.run();
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::not_found);
    EXPECT_TRUE(rig.files->pieces.empty());
    EXPECT_TRUE(rig.nothing_left());
}

TEST(SpreadFaults, ACutFileNamesTheTensorAndTheByte) {
    SpreadRig rig({.gpus = 2});
    two_tensors(rig);
    rig.files->files["/file0"].bytes.resize(600_KiB);
    const auto failed = rig.run();
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::end_of_file);
    EXPECT_TRUE(says(failed.error(), "tensor t1 is cut off at byte 614400")) << failed.error().message;
    EXPECT_TRUE(rig.files->pieces.empty());
}

TEST(SpreadFaults, AnotherFileThanTheOneLookedAtIsRefused) {
    SpreadRig rig({.gpus = 2});
    two_tensors(rig);
    rig.spread.files[0].identity = 5;
    const auto failed = rig.run();
    ASSERT_FALSE(failed);
    EXPECT_TRUE(says(failed.error(), "another file")) << failed.error().message;
    rig.spread.files[0].identity = 1;
    EXPECT_TRUE(rig.run());
}

TEST(SpreadFaults, AFileThatShrinksMidwayIsAnError) {
    SpreadRig rig({.gpus = 2});
    two_tensors(rig);
    rig.files->script.before = [](FakeFiles& files, std::size_t piece) {
        if (piece == 9) files.files["/file0"].bytes.resize(700'000);
    };
    CopyOptions options = chunks_of(64_KiB);
    options.max_staging = 64_KiB;
    const auto failed = rig.run(options);
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::end_of_file);
    EXPECT_TRUE(says(failed.error(), "tensor t1 at byte 655360 of /file0")) << failed.error().message;
    EXPECT_TRUE(rig.nothing_left());
}

TEST(SpreadFaults, AFileThatGrowsOrIsReplacedMidwayIsAnError) {
    for (const bool grows : {true, false}) {
        SpreadRig rig({.gpus = 2});
        two_tensors(rig);
        rig.files->script.before = [grows](FakeFiles& files, std::size_t) {
            if (grows) files.files["/file0"].bytes.resize(2_MiB);
            if (!grows) files.files["/file0"].identity = 99;
        };
        const auto failed = rig.run(chunks_of(64_KiB));
        ASSERT_FALSE(failed);
        EXPECT_EQ(failed.error().code, ErrorCode::io_error);
        EXPECT_TRUE(says(failed.error(), "/file0 changed while it was read")) << failed.error().message;
        EXPECT_TRUE(rig.nothing_left());
    }
}

TEST(SpreadFaults, AnUnreadableRangeNamesItsTensor) {
    SpreadRig rig({.gpus = 2});
    two_tensors(rig);
    rig.files->script.fail = [](const std::string&, Bytes offset, Bytes) -> std::optional<Error> {
        if (offset == 512_KiB) return broken();
        return std::nullopt;
    };
    const auto failed = rig.run(chunks_of(64_KiB));
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::io_error);
    EXPECT_TRUE(says(failed.error(), "tensor t1 at byte 524288 of /file0: scripted failure"))
        << failed.error().message;
    EXPECT_TRUE(rig.nothing_left());
}

TEST(SpreadFaults, ACopyBetweenGpusThatFailsNamesTheGpu) {
    SpreadRig rig({.gpus = 2});
    two_tensors(rig);
    rig.fake->script.fail_piece = [](const backend::Piece& piece) -> std::optional<Error> {
        const bool peers = piece.from->buffer().place().is_gpu() && piece.to->buffer().place().is_gpu();
        if (peers && piece.from_offset >= 512_KiB) return broken(ErrorCode::device_error);
        return std::nullopt;
    };
    const auto failed = rig.run(chunks_of(64_KiB));
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::device_error);
    EXPECT_TRUE(says(failed.error(), "tensor t1 at byte ")) << failed.error().message;
    EXPECT_TRUE(says(failed.error(), "(gpu:")) << failed.error().message;
    EXPECT_TRUE(rig.nothing_left());
}

TEST(SpreadFaults, WhatCameToOneGpuCountsThoughTheOtherFailsAtTheSameTime) {
    SpreadRig rig({.gpus = 2, .nvlink = false});
    rig.add_gpus(2, 512_KiB);
    const auto file = rig.add_file(1_MiB, {{0, 1_MiB}});
    rig.row(file, 0, 512_KiB, 0, 0);
    rig.row(file, 512_KiB, 512_KiB, 1, 0);
    rig.fake->script.fail_piece = [](const backend::Piece& piece) -> std::optional<Error> {
        if (piece.to->buffer().place() == Place::gpu(1)) return broken(ErrorCode::device_error);
        return std::nullopt;
    };
    auto job = rig.submit(chunks_of(1_MiB));
    rig.engine->wait(job, 0ns);
    ASSERT_FALSE(job->result());
    EXPECT_EQ(job->bytes_done(), 512_KiB);
}

TEST(SpreadFaults, APieceThatCannotStartEndsTheSpread) {
    SpreadRig rig({.gpus = 2});
    two_tensors(rig);
    rig.fake->script.fail_start = [](std::size_t piece) -> std::optional<Error> {
        if (piece == 7) return broken(ErrorCode::device_error);
        return std::nullopt;
    };
    const auto failed = rig.run(chunks_of(64_KiB));
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::device_error);
    EXPECT_TRUE(rig.nothing_left());
}

TEST(SpreadFaults, NoStagingMemoryIsSaid) {
    SpreadRig rig({.gpus = 2, .files = {.no_staging = true}});
    two_tensors(rig);
    const auto failed = rig.run();
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::out_of_memory);
    EXPECT_TRUE(rig.nothing_left());
}

TEST(SpreadFaults, APlacementThatLeavesItsMemoryIsADefectNotAWrite) {
    SpreadRig rig({});
    rig.add_gpus(1, 1000);
    rig.row(rig.add_file(1000, {{0, 1000}}), 0, 1000, 0, 1);
    const auto failed = rig.run();
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::internal);
    EXPECT_TRUE(rig.fake->pieces.empty());
    // What nobody gives would be written as it lay in the slot.
    SpreadRig gap({});
    gap.add_gpus(1, 1000);
    gap.spread.direction = transfer::SpreadDirection::to_file;
    gap.spread.files.push_back({"/out", 0, {{0, 1000}}});
    gap.row(0, 0, 400, 0, 0);
    gap.row(0, 500, 500, 0, 500);
    const auto incomplete = gap.run();
    ASSERT_FALSE(incomplete);
    EXPECT_EQ(incomplete.error().code, ErrorCode::internal);
    EXPECT_TRUE(gap.files->files.empty());
    EXPECT_TRUE(gap.nothing_left());
}

TEST(SpreadFaults, BytesThatBelongNowhereAreReadAndLeft) {
    SpreadRig rig({});
    rig.add_gpus(1, 1000);
    const auto file = rig.add_file(1000, {{0, 1000}});
    rig.row(file, 0, 400, 0, 0);
    rig.row(file, 500, 500, 0, 500);
    CopyOptions options;
    options.verify = true;
    const auto receipt = rig.run(options);
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(rig.arrived());
    EXPECT_EQ(receipt->bytes, 900u);
}

TEST(SpreadFaults, WhoLooksMayEndIt) {
    SpreadRig rig({.gpus = 2});
    two_tensors(rig);
    rig.spread.look = [](std::size_t, Bytes, const void*, Bytes) -> Result<void> {
        return Error{ErrorCode::mismatch, "the checksum differs", "manifest", {}};
    };
    const auto failed = rig.run();
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::mismatch);
    EXPECT_TRUE(rig.fake->pieces.empty());  // nothing went on to a GPU
    EXPECT_TRUE(rig.nothing_left());
}

TEST(SpreadFaults, VerificationFindsAFlippedByte) {
    SpreadRig rig({.gpus = 2});
    two_tensors(rig);
    rig.files->files["/file0"].bytes[600'000] = 'a';
    bool flipped = false;
    // The second GPU's memory goes wrong after its bytes came.
    rig.fake->script.looks_of = [&](const backend::Piece& piece) {
        if (piece.to->buffer().place().is_host() && !flipped) {
            static_cast<char*>(rig.memories[1].address())[600'000] = 'b';
            flipped = true;
        }
        return 1;
    };
    CopyOptions options = chunks_of(64_KiB);
    options.verify = true;
    const auto failed = rig.run(options);
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::mismatch);
    EXPECT_TRUE(says(failed.error(), "tensor t1 at byte 600000 of /file0 (gpu:1)")) << failed.error().message;
    EXPECT_TRUE(rig.nothing_left());
}

// Cancels once that many bytes were read. Nothing ends between that and the cancellation: the engine's thread
// drives the job too, and could end it first.
void expect_cancelled(const CopyOptions& options, Bytes after) {
    SpreadRig rig({.gpus = 2, .files = {.looks = 3, .hang_after = after}});
    two_tensors(rig);
    auto job = rig.submit(options);
    while (rig.files->bytes_read < after) {
        rig.end_pieces();
        job->step(true);
    }
    job->cancel();
    rig.files->hangs = false;
    rig.engine->wait(job, 0ns);
    ASSERT_FALSE(job->result());
    EXPECT_EQ(job->result().error().code, ErrorCode::cancelled);
    EXPECT_TRUE(rig.nothing_left());
}

TEST(SpreadFaults, CancelsWhileItMoves) {
    expect_cancelled(chunks_of(16_KiB), 100'000);
}

TEST(SpreadFaults, CancelsWhileItVerifies) {
    CopyOptions options = chunks_of(16_KiB);
    options.verify = true;
    expect_cancelled(options, 1_MiB);
}

TEST(SpreadFaults, CancelsWhileSomebodyLooks) {
    SpreadRig rig({.gpus = 2});
    two_tensors(rig);
    std::atomic<int> looking{0};
    std::atomic<bool> go_on{false};
    rig.spread.look = [&](std::size_t, Bytes, const void*, Bytes) -> Result<void> {
        ++looking;
        while (!go_on) std::this_thread::yield();
        return {};
    };
    auto job = rig.submit({});
    while (looking == 0) {
        rig.end_pieces();
        job->step(true);
    }
    job->cancel();
    job->step(true);
    EXPECT_FALSE(job->drained());  // the slot is still looked at
    go_on = true;
    rig.engine->wait(job, 0ns);
    EXPECT_EQ(job->result().error().code, ErrorCode::cancelled);
    EXPECT_TRUE(job->drained());
    EXPECT_TRUE(rig.nothing_left());
}

TEST(SpreadFaults, ADeadlineAndAStallEndIt) {
    for (const bool deadline : {true, false}) {
        SpreadRig rig({.gpus = 2, .files = {.hang_after = 0}});
        two_tensors(rig);
        CopyOptions options;
        (deadline ? options.deadline : options.stall_limit) = 30ms;
        auto job = rig.submit(options);
        rig.engine->wait(job, 0ns);
        ASSERT_FALSE(job->result());
        EXPECT_EQ(job->result().error().code, ErrorCode::timed_out);
        EXPECT_TRUE(says(job->result().error(), deadline ? "deadline" : "nothing moved"));
        // Storage hangs: the memory is given up only when it answers.
        EXPECT_TRUE(says(job->result().error(), "still in flight"));
        EXPECT_FALSE(job->drained());
        rig.files->hangs = false;
        while (!job->drained()) std::this_thread::sleep_for(1ms);
        EXPECT_TRUE(rig.nothing_left());
    }
}

// A file system that does not answer when a file is opened, until it is told to; after half a minute it does.
class SlowOpen {
public:
    FakeFiles::Script script() {
        return {.open = [this](const std::string& path) {
            if (path != "/file0") return;
            std::unique_lock lock(mutex_);
            opens_ = true;
            changed_.notify_all();
            changed_.wait_for(lock, 30s, [this] { return answers_; });
        }};
    }
    void wait_until_it_opens() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return opens_; });
    }
    void answer() {
        const std::lock_guard lock(mutex_);
        answers_ = true;
        changed_.notify_all();
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool opens_ = false, answers_ = false;
};

TEST(SpreadFaults, AFileThatTakesLongToOpenKeepsNoDeadlineWaiting) {
    SlowOpen slow;
    SpreadRig rig({.gpus = 1, .files = slow.script()});
    rig.add_gpus(1, 1_MiB);
    rig.replicate(1_MiB);
    CopyOptions options;
    options.deadline = 50ms;
    const auto begin = std::chrono::steady_clock::now();
    auto job = rig.submit(options);
    rig.engine->wait(job, 0ns);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
    ASSERT_FALSE(job->result());
    EXPECT_TRUE(says(job->result().error(), "the deadline of 50 ms passed"))
        << job->result().error().to_string();
    EXPECT_FALSE(job->drained()) << "the file is still being opened";
    slow.answer();
    while (!job->drained()) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(rig.nothing_left());
}

// The engine's end waits for the call, longer than for what is in flight.
TEST(SpreadFaults, AFileThatOpensAtTheEnginesEndIsClosed) {
    SlowOpen slow;
    SpreadRig rig({.gpus = 1, .files = slow.script()});
    rig.add_gpus(1, 1_MiB);
    rig.replicate(1_MiB);
    auto job = rig.submit();
    slow.wait_until_it_opens();
    job->cancel();
    rig.engine->wait(job, 0ns);
    EXPECT_FALSE(job->drained());
    job.reset();
    std::thread later([&] {
        std::this_thread::sleep_for(1500ms);
        slow.answer();
    });
    rig.engine.reset();
    later.join();
    EXPECT_TRUE(rig.nothing_left());
}

TEST(SpreadFaults, AFileThatTakesLongToOpenHoldsUpNoOtherLoad) {
    SlowOpen slow;
    SpreadRig rig({.gpus = 1, .files = slow.script()});
    rig.add_gpus(1, 1_MiB);
    rig.replicate(1_MiB);
    auto first = rig.submit();
    rig.engine->drive_in_background(first);
    slow.wait_until_it_opens();
    const std::size_t number = rig.add_file(1_MiB, {{0, 1_MiB}});
    transfer::Spread other = rig.spread;
    other.files = {rig.spread.files[number]};
    auto table = std::make_shared<test::Table>();
    table->rows.push_back({0, {0, 1_MiB, every, 0}, "other"});
    other.placement = table;
    const auto begin = std::chrono::steady_clock::now();
    auto second = rig.engine->submit_spread(std::move(other), {});
    rig.engine->drive_in_background(second);
    while (!second->finished()) std::this_thread::sleep_for(1ms);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
    EXPECT_TRUE(second->result()) << second->result().error().to_string();
    EXPECT_FALSE(first->finished());
    slow.answer();
    rig.engine->wait(first, 0ns);
    EXPECT_TRUE(first->result()) << first->result().error().to_string();
}

TEST(SpreadFaults, TheRingOutlivesStorageThatHangs) {
    SpreadRig rig({.gpus = 2, .files = {.hang_after = 0}});
    two_tensors(rig);
    rig.engine->machine().pool.set_pinned_bound(64_MiB);
    CopyOptions options;
    options.deadline = 500ms;  // both tensors hang by then
    auto job = rig.submit(options);
    rig.engine->wait(job, 0ns);
    ASSERT_FALSE(job->result());
    job.reset();
    const int before = *rig.fake->live;
    rig.engine.reset();
    EXPECT_EQ(*rig.fake->live, before);
}

TEST(SpreadFaults, TheEnginesThreadDrivesWhatNobodyWaitsFor) {
    SpreadRig rig({.gpus = 2, .files = {.looks = 3}});
    two_tensors(rig);
    auto job = rig.submit(chunks_of(64_KiB));
    while (!rig.engine->poll(job)) std::this_thread::sleep_for(1ms);
    ASSERT_TRUE(job->result()) << job->result().error().to_string();
    EXPECT_TRUE(rig.arrived());
    EXPECT_EQ(job->bytes_done(), 2_MiB);
    EXPECT_EQ(job->bytes_total(), 2_MiB);
}

}  // namespace
}  // namespace sidestep
