// The executor over a scripted backend: what it promises when pieces are slow, fail, hang or lie.
#include "transfer/engine.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "engine_rig.hpp"
#include "tests/no_threads.hpp"

namespace sidestep {
namespace {

using namespace std::chrono_literals;
using test::broken;
using test::small_chunks;
using transfer::Engine;
using Rig = test::EngineRig;

// The longest time limits have no nanoseconds.
TEST(Engine, EndlessLimitsHaveNotPassed) {
    Rig rig({.looks = 3});
    CopyOptions options = small_chunks();
    options.deadline = options.stall_limit = std::chrono::milliseconds::max();
    const auto receipt = rig.copy(options);
    EXPECT_TRUE(receipt) << receipt.error().to_string();
}

// Whoever waits moves the bytes.
TEST(Engine, CopiesWithoutAThread) {
    const test::NoThreads none;
    Rig rig({.looks = 3});
    const auto receipt = rig.copy(small_chunks());
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(rig.equal());
}

TEST(Engine, CopiesThroughStagingChunkByChunk) {
    Rig rig({.looks = 3});
    const auto receipt = rig.copy(small_chunks());
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(rig.equal());
    EXPECT_EQ(receipt->bytes, 1_MiB);
    EXPECT_EQ(receipt->lane_bytes, std::vector<Bytes>{1_MiB});
    ASSERT_TRUE(receipt->route);
    EXPECT_EQ(receipt->route->lanes[0].hops.size(), 2u) << receipt->explain();
    EXPECT_EQ(rig.fake->pieces.size(), 32u);  // 16 chunks, two hops each
    EXPECT_EQ(rig.fake->attached, 0);
    EXPECT_EQ(rig.fake->commits, 1);
}

TEST(Engine, OddSizesArriveWhole) {
    for (const Bytes size : {Bytes{1}, Bytes{4097}, 64_KiB, 64_KiB + 1, 300_KiB + 7}) {
        Rig rig({.looks = 2}, size);
        ASSERT_TRUE(rig.copy(small_chunks()));
        EXPECT_TRUE(rig.equal()) << size;
    }
}

TEST(Engine, NothingIsAValidSize) {
    Rig rig({});
    auto job =
        rig.engine->submit(rig.source.buffer().slice(0, 0), rig.target.buffer().slice(0, 0), {}, nullptr);
    rig.engine->wait(job, 0ns);
    ASSERT_TRUE(job->result()) << job->result().error().to_string();
    EXPECT_EQ(job->result()->bytes, 0u);
    EXPECT_TRUE(rig.fake->pieces.empty());
}

TEST(Engine, StagingStaysUnderItsBound) {
    Rig rig({.looks = 5}, 4_MiB);
    const Bytes before = rig.fake->allocated;
    CopyOptions options = small_chunks();
    options.max_staging = 200_KiB;
    ASSERT_TRUE(rig.copy(options));
    EXPECT_TRUE(rig.equal());
    EXPECT_LE(rig.fake->allocated - before, 200_KiB);
    EXPECT_LE(rig.fake->max_in_flight, 2);  // 128 KiB of slots
}

TEST(Engine, StagingMemoryIsUsedAgain) {
    Rig rig({});
    ASSERT_TRUE(rig.copy(small_chunks()));
    const Bytes after_first = rig.fake->allocated;
    ASSERT_TRUE(rig.copy(small_chunks()));
    EXPECT_EQ(rig.fake->allocated, after_first);
}

TEST(Engine, DirectIsRequiredAndRefused) {
    Rig rig({});
    CopyOptions options;
    options.require = Require::direct;
    const auto receipt = rig.copy(options);
    ASSERT_FALSE(receipt);
    EXPECT_EQ(receipt.error().code, ErrorCode::path_unavailable);
    EXPECT_NE(receipt.error().message.find("pageable"), std::string::npos) << receipt.error().message;
    EXPECT_TRUE(rig.fake->pieces.empty());
}

TEST(Engine, AFailedStartEndsTheCopyAndDrains) {
    Rig rig({.looks = 4, .fail_start = [](std::size_t piece) -> std::optional<Error> {
                 if (piece == 5) return broken();
                 return std::nullopt;
             }});
    const auto receipt = rig.copy(small_chunks());
    ASSERT_FALSE(receipt);
    EXPECT_EQ(receipt.error().message, "scripted failure");
    EXPECT_EQ(rig.fake->in_flight, 0);
    EXPECT_EQ(rig.fake->attached, 0);
    EXPECT_EQ(rig.fake->commits, 0);
}

TEST(Engine, AFailedPieceEndsTheCopyAndDrains) {
    Rig rig({.looks = 4, .fail_end = [](std::size_t piece) -> std::optional<Error> {
                 if (piece == 7) return broken(ErrorCode::device_error);
                 return std::nullopt;
             }});
    const auto receipt = rig.copy(small_chunks());
    ASSERT_FALSE(receipt);
    EXPECT_EQ(receipt.error().code, ErrorCode::device_error);
    EXPECT_EQ(rig.fake->in_flight, 0);
    EXPECT_EQ(rig.fake->attached, 0);
}

TEST(Engine, FailuresOfAttachAndCommitAreReported) {
    Rig attach({.fail_attach = broken(ErrorCode::out_of_memory)});
    EXPECT_EQ(attach.copy().error().code, ErrorCode::out_of_memory);
    Rig commit({.fail_commit = broken(ErrorCode::no_space)});
    EXPECT_EQ(commit.copy().error().code, ErrorCode::no_space);
    EXPECT_EQ(commit.fake->attached, 0);
}

TEST(Engine, WhatTheEndOfACopyHasToSayIsInItsReceipt) {
    Rig rig({.commit_note = "the folder was not flushed"});
    const auto receipt = rig.copy();
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_EQ(receipt->notes, std::vector<std::string>{"the folder was not flushed"});
}

TEST(Engine, CancelStopsWithinTheChunksInFlight) {
    std::atomic<bool> hang{true};
    Rig rig({.looks = 0, .hang = [&](std::size_t) { return hang.load(); }}, 8_MiB);
    auto job = rig.engine->submit(rig.source.buffer(), rig.target.buffer(), small_chunks(), nullptr);
    rig.fake->wait_for_flights(1);
    job->cancel();
    EXPECT_FALSE(rig.engine->wait(job, 5ms));  // the pieces in flight are awaited
    const std::size_t started = rig.fake->pieces.size();
    EXPECT_LT(started, 256u);
    hang = false;
    rig.engine->wait(job, 0ns);
    ASSERT_FALSE(job->result());
    EXPECT_EQ(job->result().error().code, ErrorCode::cancelled);
    EXPECT_EQ(rig.fake->pieces.size(), started);
    EXPECT_EQ(rig.fake->in_flight, 0);
    EXPECT_EQ(rig.fake->attached, 0);
}

TEST(Engine, TheDeadlineEndsACopy) {
    std::atomic<bool> hang{true};
    Rig rig({.looks = 0, .hang = [&](std::size_t) { return hang.load(); }});
    CopyOptions options;
    options.deadline = 5ms;
    auto job = rig.engine->submit(rig.source.buffer(), rig.target.buffer(), options, nullptr);
    // On a busy machine the deadline may pass before the first piece starts: then the copy has ended here.
    rig.engine->wait(job, 20ms);
    hang = false;
    rig.engine->wait(job, 0ns);
    ASSERT_FALSE(job->result());
    EXPECT_EQ(job->result().error().code, ErrorCode::timed_out);
    EXPECT_NE(job->result().error().message.find("the deadline of 5 ms"), std::string::npos);
}

TEST(Engine, AStallIsNoticedAndNamesHowFarItGot) {
    std::atomic<bool> hang{true};
    Rig rig({.looks = 0, .hang = [&](std::size_t piece) { return piece == 6 && hang; }});
    CopyOptions options = small_chunks();
    options.stall_limit = 20ms;
    auto job = rig.engine->submit(rig.source.buffer(), rig.target.buffer(), options, nullptr);
    EXPECT_FALSE(rig.engine->wait(job, 100ms));
    hang = false;  // the device comes back
    rig.engine->wait(job, 0ns);
    ASSERT_FALSE(job->result());
    EXPECT_EQ(job->result().error().code, ErrorCode::timed_out);
    EXPECT_NE(job->result().error().message.find("nothing moved for 20 ms"), std::string::npos);
    EXPECT_EQ(rig.fake->in_flight, 0);
}

TEST(Engine, ADeviceThatNeverComesBackIsReportedAndItsMemoryKept) {
    std::atomic<bool> hang{true};
    Rig rig({.looks = 0, .hang = [&](std::size_t piece) { return piece == 2 && hang; }});
    rig.engine = std::make_unique<Engine>(rig.topology, rig.registry, 30ms);
    CopyOptions options = small_chunks();
    options.stall_limit = 20ms;
    auto job = rig.engine->submit(rig.source.buffer(), rig.target.buffer(), options, nullptr);
    rig.engine->wait(job, 0ns);
    ASSERT_FALSE(job->result());
    EXPECT_NE(job->result().error().message.find("still in flight"), std::string::npos);
    EXPECT_FALSE(job->drained());
    EXPECT_GT(rig.fake->attached, 0);
    // What the caller gave to keep goes after that, and may then use the engine.
    std::atomic<bool> gone{false};
    job->keep({&gone, [&](std::atomic<bool>* owner) {
                   const auto other =
                       rig.engine->submit(rig.source.buffer(), rig.target.buffer(), small_chunks(), nullptr);
                   rig.engine->wait(other, 0ns);
                   *owner = true;
               }});
    job.reset();
    std::this_thread::sleep_for(50ms);
    EXPECT_FALSE(gone);
    hang = false;  // the engine goes on driving it
    for (int i = 0; i < 5000 && !gone; ++i) std::this_thread::sleep_for(1ms);
    ASSERT_TRUE(gone);
    EXPECT_EQ(rig.fake->attached, 0);
}

// Whether somebody waits for it or not, and without the 10 s in which pieces may end by themselves.
TEST(Engine, AnAbandonedPieceEndsTheCopyAtOnceAndItsMemoryIsKept) {
    for (const bool waits : {true, false}) {
        std::atomic<bool> hang{true};
        Rig rig({.looks = 0, .hang = [&](std::size_t piece) { return piece == 2 && hang; }});
        auto owned = std::make_shared<int>();
        const std::weak_ptr<int> held = owned;
        auto job = rig.engine->submit(rig.source.buffer(), rig.target.buffer(), small_chunks(), nullptr,
                                      std::move(owned));
        const int attached = rig.fake->attached;
        std::thread peer([&] {
            rig.fake->wait_for_flights(1);
            rig.fake->abandon({ErrorCode::io_error, "the peer is dead", "node1", {}});
        });
        const auto begin = std::chrono::steady_clock::now();
        if (waits) rig.engine->wait(job, 0ns);
        for (int i = 0; i < 9000 && !job->finished(); ++i) std::this_thread::sleep_for(1ms);
        peer.join();
        EXPECT_LT(std::chrono::steady_clock::now() - begin, 9s);
        ASSERT_TRUE(job->finished());
        ASSERT_FALSE(job->result());
        EXPECT_EQ(job->result().error().message,
                  "the peer is dead; pieces are still in flight, so the buffers may still be written to");
        EXPECT_FALSE(job->drained());
        EXPECT_EQ(rig.fake->attached, attached) << "what the piece may touch is kept";
        EXPECT_FALSE(held.expired());
        hang = false;
        for (int i = 0; i < 5000 && !job->drained(); ++i) std::this_thread::sleep_for(1ms);
        EXPECT_TRUE(job->drained());
        EXPECT_EQ(rig.fake->attached, 0);
        EXPECT_TRUE(held.expired());
    }
}

// A slot of a slab, and one of a block of its own: what the device writes late lands where nobody else is.
TEST(Engine, AHungPiecesSlotOutlivesEverything) {
    for (const Bytes slabs : {64_MiB, Bytes{0}}) {
        std::atomic<char*> slot{nullptr};
        Rig rig({.looks = 0, .hang = [](std::size_t piece) { return piece == 2; }});
        rig.fake->script.looks_of = [&](const backend::Piece& piece) {
            if (rig.fake->pieces.size() == 3)
                slot = static_cast<char*>(piece.to->buffer().address()) + piece.to_offset;
            return 0;
        };
        rig.engine = std::make_unique<Engine>(rig.topology, rig.registry, 30ms);
        rig.engine->machine().pool.set_pinned_bound(slabs);
        CopyOptions options = small_chunks();
        options.stall_limit = 20ms;
        auto job = rig.engine->submit(rig.source.buffer(), rig.target.buffer(), options, nullptr);
        rig.engine->wait(job, 0ns);
        ASSERT_FALSE(job->result());
        job.reset();
        const auto live = rig.fake->live;
        const int before = *live;
        const auto begin = std::chrono::steady_clock::now();
        rig.engine.reset();
        rig.registry = backend::Registry();
        EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s) << "it says a second";
        EXPECT_EQ(*live, before);
        ASSERT_NE(slot, nullptr);
        if (*live == before) std::memset(slot, 1, 64_KiB);
    }
}

// The second is for all of them: one that ends has its time beside one that hangs.
TEST(Engine, TheEndWaitsForTheCopiesThatDoEnd) {
    std::atomic<bool> busy{true};
    Rig rig({.looks = 0});
    rig.fake->script.hang = [&](std::size_t piece) { return piece == 0 || busy; };
    rig.engine = std::make_unique<Engine>(rig.topology, rig.registry, 1ms);
    CopyOptions options = small_chunks();
    options.stall_limit = 1ms;
    std::shared_ptr<transfer::Activity> jobs[2];
    for (auto& job : jobs) {
        job = rig.engine->submit(rig.source.buffer(), rig.target.buffer(), options, nullptr);
        rig.engine->wait(job, 0ns);
        EXPECT_FALSE(job->drained());
    }
    std::thread later([&] {
        std::this_thread::sleep_for(100ms);
        busy = false;
    });
    rig.engine.reset();
    later.join();
    EXPECT_FALSE(jobs[0]->drained());
    EXPECT_TRUE(jobs[1]->drained());
}

TEST(Engine, VerifyPassesOnEqualBytes) {
    Rig rig({.looks = 1}, 9_MiB + 5);
    CopyOptions options;
    options.verify = true;
    const auto receipt = rig.copy(options);
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(receipt->verified);
}

TEST(Engine, VerifyFindsAFlippedBitAndSaysWhere) {
    // Pieces 0 to 2 are the copies into the staging memory, 4 the second chunk's from there to the GPU.
    Rig rig({.looks = 0, .corrupt = [](std::size_t piece) { return piece == 4; }}, 12_MiB);
    CopyOptions options;
    options.verify = true;
    options.chunk = 4_MiB;
    const auto receipt = rig.copy(options);
    ASSERT_FALSE(receipt);
    EXPECT_EQ(receipt.error().code, ErrorCode::mismatch);
    EXPECT_NE(receipt.error().message.find("at byte 4194304"), std::string::npos) << receipt.error().message;
    EXPECT_EQ(rig.fake->commits, 0);
}

TEST(Engine, ACopyRunsOnWhenNobodyLooks) {
    Rig rig({.looks = 10});
    auto job = rig.engine->submit(rig.source.buffer(), rig.target.buffer(), small_chunks(), nullptr);
    for (int i = 0; i < 5000 && !job->finished(); ++i) std::this_thread::sleep_for(1ms);
    ASSERT_TRUE(job->finished());
    EXPECT_TRUE(rig.equal());
}

TEST(Engine, ManyCopiesAtOnceFromManyThreads) {
    Rig rig({.looks = 2}, 2_MiB);
    std::vector<std::thread> threads;
    std::atomic<int> good{0};
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            const Bytes part = 512_KiB;
            for (int round = 0; round < 5; ++round) {
                auto job =
                    rig.engine->submit(rig.source.buffer().slice(t * part, part),
                                       rig.target.buffer().slice(t * part, part), small_chunks(), nullptr);
                rig.engine->wait(job, 0ns);
                good += job->result().ok() ? 1 : 0;
            }
        });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(good, 20);
    EXPECT_TRUE(rig.equal());
}

TEST(Engine, AStreamNeedsABackendThatKnowsStreams) {
    Rig rig({});
    int stream = 0;
    auto job = rig.engine->submit(rig.source.buffer(), rig.target.buffer(), {}, &stream);
    rig.engine->wait(job, 0ns);
    ASSERT_FALSE(job->result());
    EXPECT_EQ(job->result().error().code, ErrorCode::unsupported);
}

}  // namespace
}  // namespace sidestep
