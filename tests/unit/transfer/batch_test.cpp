// Many copies as one over a scripted backend: how they are sorted, cut into calls, cancelled and reported.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "fake_backend.hpp"
#include "tests/contents.hpp"
#include "transfer/batch_plan.hpp"
#include "transfer/engine.hpp"

namespace sidestep {
namespace {

using namespace std::chrono_literals;
using test::FakeBackend;
using test::machine;
using transfer::Activity;
using transfer::BatchCopy;
using transfer::Engine;

struct Item {
    Buffer from;
    Buffer to;
};

// An engine with one fake backend, and pieces of memory at either end.
struct Rig {
    explicit Rig(FakeBackend::Script script, Bytes bytes = 16_MiB,
                 std::chrono::milliseconds drain_limit = 10s)
        : topology(machine()) {
        script.batches = true;
        auto owned = std::make_unique<FakeBackend>(std::move(script));
        fake = owned.get();
        registry.add(std::move(owned), topology);
        source = *fake->allocate(Place::host(), bytes, MemoryKind::pinned);
        target = *fake->allocate(Place::gpu(0), bytes, MemoryKind::device);
        test::fill(source.address(), bytes);
        std::memset(target.address(), 0xEE, bytes);
        engine = std::make_unique<Engine>(topology, registry, drain_limit);
    }

    // `count` copies of `size` bytes, `step` apart, the targets in the opposite order of the sources.
    std::vector<Item> items(std::size_t count, Bytes size, Bytes step) const {
        std::vector<Item> made;
        for (std::size_t i = 0; i < count; ++i)
            made.push_back(
                {source.buffer().slice(i * step, size), target.buffer().slice((count - 1 - i) * step, size)});
        return made;
    }
    std::shared_ptr<Activity> start(const std::vector<Item>& batch, const CopyOptions& options = {}) {
        std::vector<BatchCopy> copies;
        for (const Item& item : batch) copies.push_back({&item.from, &item.to});
        return engine->submit_batch(copies, options, nullptr);
    }
    Result<Receipt> copy(const std::vector<Item>& batch, const CopyOptions& options = {}) {
        auto job = start(batch, options);
        engine->wait(job, 0ns);
        return job->result();
    }
    static bool equal(const std::vector<Item>& batch) {
        for (const Item& item : batch)
            if (std::memcmp(item.from.address(), item.to.address(), item.from.size()) != 0) return false;
        return true;
    }

    Topology topology;
    backend::Registry registry;
    FakeBackend* fake = nullptr;
    Allocation source, target;
    std::unique_ptr<Engine> engine;
};

Error broken() {
    return {ErrorCode::device_error, "scripted failure", "fake", {}};
}

TEST(Batch, ManySmallCopiesAreAFewCalls) {
    Rig rig({.looks = 2}, 40_MiB);
    const auto batch = rig.items(10'000, 4_KiB, 4_KiB);
    const auto receipt = rig.copy(batch);
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(Rig::equal(batch));
    EXPECT_EQ(receipt->bytes, 10'000 * 4_KiB);
    EXPECT_EQ(receipt->lane_bytes, std::vector<Bytes>{10'000 * 4_KiB});
    ASSERT_TRUE(receipt->route);
    EXPECT_EQ(receipt->route->to, Place::gpu(0));
    EXPECT_EQ(rig.fake->batches, (std::vector<std::size_t>{4080, 4080, 1840}));
    EXPECT_EQ(rig.fake->described, 2) << "each end lies in one allocation";
    EXPECT_EQ(rig.fake->attached, 0);
}

TEST(Batch, OddSizesAndGapsArriveAndNothingElse) {
    Rig rig({});
    std::vector<Item> batch;
    Bytes at = 0;
    for (Bytes size = 1; at + size + 3 < 16_MiB; size = size * 3 + 1, at += size + 3)
        batch.push_back({rig.source.buffer().slice(at, size), rig.target.buffer().slice(at + 1, size)});
    ASSERT_GT(batch.size(), 10u);
    ASSERT_TRUE(rig.copy(batch));
    EXPECT_TRUE(Rig::equal(batch));
    for (const Item& item : batch)
        EXPECT_EQ(static_cast<unsigned char*>(item.to.address())[item.to.size()], 0xEE) << item.to.size();
}

TEST(Batch, AllocationsSideBySideAreNotTakenForOne) {
    Rig rig({});
    std::vector<Allocation> kept;
    std::vector<Item> batch;
    for (std::size_t i = 0; i < 100; ++i) {
        kept.push_back(*rig.fake->allocate(Place::gpu(0), 64_KiB, MemoryKind::device));
        for (Bytes part = 0; part < 4; ++part)
            batch.push_back({rig.source.buffer().slice((i * 4 + part) * 16_KiB, 16_KiB),
                             kept.back().buffer().slice(part * 16_KiB, 16_KiB)});
    }
    const int before = rig.fake->described;
    ASSERT_TRUE(rig.copy(batch));
    EXPECT_TRUE(Rig::equal(batch));
    EXPECT_LT(rig.fake->described - before, 200) << "neighbours are described together";
}

TEST(Batch, KindsOfMemoryAreToldApart) {
    Rig rig({.looks = 1});
    const Allocation pageable = *rig.fake->allocate(Place::host(), 1_MiB, MemoryKind::pageable);
    std::memset(pageable.address(), 0x31, 1_MiB);
    std::vector<Item> batch = rig.items(40, 8_KiB, 8_KiB);
    for (Bytes i = 0; i < 8; ++i)
        batch.push_back(
            {pageable.buffer().slice(i * 8_KiB, 8_KiB), rig.target.buffer().slice(8_MiB + i * 8_KiB, 8_KiB)});
    const auto receipt = rig.copy(batch);
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(Rig::equal(batch));
    EXPECT_EQ(rig.fake->batches, (std::vector<std::size_t>{40, 8, 8})) << "the other eight, there by staging";
    EXPECT_EQ(receipt->bytes, 48 * 8_KiB);
    ASSERT_EQ(receipt->route->lanes[0].hops.size(), 1u) << receipt->explain();
    ASSERT_EQ(receipt->notes.size(), 1u);
    EXPECT_NE(receipt->notes[0].find("8 copies, 64 KiB, host -> gpu:0"), std::string::npos)
        << receipt->notes[0];
}

// From pageable memory a piece goes by staging memory: every call has two flights, one for each hop.
struct Relayed : Rig {
    explicit Relayed(FakeBackend::Script script, std::chrono::milliseconds drain_limit = 10s)
        : Rig(std::move(script), 32_MiB, drain_limit),
          pageable(*fake->allocate(Place::host(), 32_MiB, MemoryKind::pageable)) {
        std::memcpy(pageable.address(), source.address(), 32_MiB);
    }
    std::vector<Item> items(std::size_t count, Bytes size, Bytes step) const {
        std::vector<Item> made = Rig::items(count, size, step);
        for (std::size_t i = 0; i < count; ++i) made[i].from = pageable.buffer().slice(i * step, size);
        return made;
    }
    Allocation pageable;
};

TEST(Batch, RelayedPiecesArriveWithinTheirStaging) {
    for (const Bytes staging : {Bytes{1} << 30, 24_MiB, 5_MiB, 1_MiB}) {
        Relayed rig({.looks = 2});
        CopyOptions options;
        options.max_staging = staging;
        const auto batch = rig.items(333, 70'001, 90'000);
        const auto receipt = rig.copy(batch, options);
        ASSERT_TRUE(receipt) << receipt.error().to_string();
        EXPECT_TRUE(Rig::equal(batch));
        EXPECT_EQ(receipt->bytes, 333u * 70'001);
        EXPECT_EQ(receipt->route->lanes[0].hops.size(), 2u);
        EXPECT_GE(rig.fake->batches.size(), 2 * (333u * 70'001 / 4_MiB));
        EXPECT_EQ(rig.fake->batches.size() % 2, 0u);
        EXPECT_EQ(rig.fake->in_flight + rig.fake->attached, 0);
    }
    // With less, and above a MiB, they are copies of their own.
    Relayed rig({});
    CopyOptions little;
    little.max_staging = 512_KiB;
    ASSERT_TRUE(rig.copy(rig.items(40, 8_KiB, 8_KiB), little));
    ASSERT_TRUE(rig.copy(rig.items(4, 2_MiB, 2_MiB)));
    EXPECT_TRUE(rig.fake->batches.empty());
}

TEST(Batch, AFailedHopEndsTheBatchAndNamesItsCopies) {
    for (const bool second : {false, true})
        for (const bool at_once : {false, true}) {
            const auto fails = [second](const backend::Piece& piece) -> std::optional<Error> {
                if ((piece.to->buffer().place() == Place::gpu(0)) == second) return broken();
                return std::nullopt;
            };
            Relayed rig({.looks = at_once ? 0 : 1, .fail_piece = fails});
            const auto receipt = rig.copy(rig.items(300, 64_KiB, 64_KiB));
            ASSERT_FALSE(receipt) << second << at_once;
            EXPECT_EQ(receipt.error().code, ErrorCode::device_error);
            EXPECT_NE(receipt.error().message.find("of the batch: scripted failure"), std::string::npos)
                << receipt.error().message;
            EXPECT_EQ(rig.fake->in_flight + rig.fake->attached, 0);
        }
}

TEST(Batch, WhatIsStagedIsNotHandedOnAfterACancel) {
    std::atomic<bool> hang{true};
    Relayed rig({.looks = 0, .hang = [&](std::size_t) { return hang.load(); }}, 20ms);
    CopyOptions options;
    options.max_staging = 8_MiB;
    auto job = rig.start(rig.items(300, 64_KiB, 64_KiB), options);
    rig.fake->wait_for_flights(8);
    EXPECT_FALSE(rig.engine->wait(job, 5ms));
    EXPECT_EQ(rig.fake->in_flight, 8) << "a slot for each";
    job->cancel();
    rig.engine->wait(job, 0ns);  // returns though the device never does
    ASSERT_FALSE(job->result());
    EXPECT_GT(rig.fake->attached, 0) << "what the device may write to is kept";
    hang = false;
    for (int i = 0; i < 5000 && !job->drained(); ++i) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(job->drained());
    EXPECT_EQ(rig.fake->batches.size(), 8u);
    EXPECT_EQ(rig.fake->in_flight + rig.fake->attached, 0);
    EXPECT_EQ(static_cast<unsigned char*>(rig.target.address())[0], 0xEE);
}

TEST(Batch, NothingIsAValidBatch) {
    Rig rig({});
    const auto receipt = rig.copy({});
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_EQ(receipt->bytes, 0u);
    EXPECT_TRUE(receipt->route);
    const auto empty = rig.copy({{rig.source.buffer().slice(0, 0), rig.target.buffer().slice(0, 0)}});
    ASSERT_TRUE(empty) << empty.error().to_string();
    EXPECT_TRUE(rig.fake->pieces.empty());
}

TEST(Batch, ErrorsNameThePosition) {
    Rig rig({});
    auto batch = rig.items(50, 4_KiB, 8_KiB);
    batch[17].to = rig.target.buffer().slice(0, 4_KiB - 1);
    auto receipt = rig.copy(batch);
    ASSERT_FALSE(receipt);
    EXPECT_EQ(receipt.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(receipt.error().message.find("copy 17 of the batch: "), std::string::npos)
        << receipt.error().message;

    batch = rig.items(50, 4_KiB, 8_KiB);
    batch[31].to = Buffer::gpu(0, static_cast<char*>(rig.target.address()) + 16_MiB - 1, 4_KiB);
    receipt = rig.copy(batch);
    ASSERT_FALSE(receipt) << "it reaches past its allocation";
    EXPECT_NE(receipt.error().message.find("copy 31 of"), std::string::npos) << receipt.error().message;

    batch = rig.items(50, 4_KiB, 8_KiB);
    batch[3].to = Buffer::gpu(4, rig.target.address(), 4_KiB);
    receipt = rig.copy(batch);
    ASSERT_FALSE(receipt);
    EXPECT_EQ(receipt.error().code, ErrorCode::not_found);
    EXPECT_NE(receipt.error().message.find("copy 3 of"), std::string::npos) << receipt.error().message;
    EXPECT_EQ(rig.fake->attached, 0);
}

TEST(Batch, AFailedCallEndsTheBatchAndNamesItsCopies) {
    Rig rig({.looks = 1, .fail_end = [](std::size_t number) -> std::optional<Error> {
                 if (number == 1) return broken();
                 return std::nullopt;
             }});
    const auto receipt = rig.copy(rig.items(9000, 1_KiB, 1_KiB));
    ASSERT_FALSE(receipt);
    EXPECT_EQ(receipt.error().code, ErrorCode::device_error);
    EXPECT_EQ(receipt.error().message, "copies 4080 to 8159 of the batch: scripted failure");
    EXPECT_EQ(rig.fake->in_flight, 0);
    EXPECT_EQ(rig.fake->attached, 0);
}

TEST(Batch, CancelStopsWithinTheCallsInFlight) {
    std::atomic<bool> hang{true};
    Rig rig({.looks = 0, .hang = [&](std::size_t) { return hang.load(); }}, 32_MiB);
    auto job = rig.start(rig.items(30'000, 1_KiB, 1_KiB));
    rig.fake->wait_for_flights(4);
    EXPECT_FALSE(rig.engine->wait(job, 5ms));
    EXPECT_EQ(rig.fake->in_flight, 4) << "bounded";
    job->cancel();
    EXPECT_FALSE(rig.engine->wait(job, 5ms)) << "the calls in flight are awaited";
    hang = false;
    rig.engine->wait(job, 0ns);
    ASSERT_FALSE(job->result());
    EXPECT_EQ(job->result().error().code, ErrorCode::cancelled);
    EXPECT_EQ(rig.fake->batches.size(), 4u);
    EXPECT_EQ(rig.fake->in_flight, 0);
    EXPECT_EQ(rig.fake->attached, 0);
}

TEST(Batch, NothingHangsBeyondTheDeadline) {
    std::atomic<bool> hang{true};
    Rig rig({.looks = 0, .hang = [&](std::size_t) { return hang.load(); }}, 1_MiB, 20ms);
    CopyOptions options;
    options.deadline = 500ms;  // long enough for the calls to begin on a busy machine
    auto job = rig.start(rig.items(100, 1_KiB, 1_KiB), options);
    rig.engine->wait(job, 0ns);  // returns though the device never does
    ASSERT_FALSE(job->result());
    EXPECT_EQ(job->result().error().code, ErrorCode::timed_out);
    EXPECT_NE(job->result().error().message.find("still in flight"), std::string::npos);
    EXPECT_FALSE(job->drained());
    EXPECT_GT(rig.fake->attached, 0) << "what the device may write to is kept";
    hang = false;  // the engine goes on driving it
    for (int i = 0; i < 5000 && !job->drained(); ++i) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(job->drained());
    EXPECT_EQ(rig.fake->attached, 0);
}

// Without the 10 s in which pieces may end by themselves.
TEST(Batch, WhoseDeviceIsDeadEndsAtOnce) {
    for (const bool copies_of_their_own : {false, true}) {
        std::atomic<bool> hang{true};
        Rig rig({.looks = 0, .hang = [&](std::size_t) { return hang.load(); }});
        CopyOptions options;
        options.verify = copies_of_their_own;
        auto job = rig.start(rig.items(100, 1_KiB, 1_KiB), options);
        rig.fake->wait_for_flights(1);
        rig.fake->abandon(broken());
        const auto begin = std::chrono::steady_clock::now();
        rig.engine->wait(job, 0ns);
        EXPECT_LT(std::chrono::steady_clock::now() - begin, 9s);
        ASSERT_FALSE(job->result());
        EXPECT_EQ(job->result().error().code, broken().code);
        EXPECT_FALSE(job->drained());
        EXPECT_GT(rig.fake->attached, 0);
        hang = false;
        for (int i = 0; i < 5000 && !job->drained(); ++i) std::this_thread::sleep_for(1ms);
        EXPECT_TRUE(job->drained());
    }
}

TEST(Batch, VerifiedBatchesAreVerifiedCopyByCopy) {
    Rig rig({});
    CopyOptions options;
    options.verify = true;
    const auto batch = rig.items(40, 10_KiB, 12_KiB);
    auto receipt = rig.copy(batch, options);
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(receipt->verified);
    EXPECT_TRUE(Rig::equal(batch));
    EXPECT_TRUE(rig.fake->batches.empty());

    // A number far enough in to be the copy of an item for certain; the earlier ones stay whole.
    Rig bad({.corrupt = [](std::size_t number) { return number == 0; }});
    receipt = bad.copy(bad.items(40, 10_KiB, 12_KiB), options);
    ASSERT_FALSE(receipt);
    EXPECT_EQ(receipt.error().code, ErrorCode::mismatch);
    EXPECT_NE(receipt.error().message.find("copy 0 of the batch"), std::string::npos)
        << receipt.error().message;
}

TEST(Batch, CopiesOfTheirOwnRunSideBySideButNotAllAtOnce) {
    Rig rig({.looks = 1}, 16_MiB);
    CopyOptions options;
    options.verify = true;  // makes each a copy of its own
    std::atomic<bool> hang{true};
    rig.fake->script.hang = [&](std::size_t) { return hang.load(); };
    auto job = rig.start(rig.items(100, 4_KiB, 4_KiB), options);
    rig.fake->wait_for_flights(16);
    EXPECT_FALSE(rig.engine->wait(job, 5ms));
    EXPECT_EQ(rig.fake->in_flight, 16);
    hang = false;
    rig.engine->wait(job, 0ns);
    ASSERT_TRUE(job->result()) << job->result().error().to_string();
}

// One after the other within one pass over the copies: whichever pass the failure comes in.
TEST(Batch, OneEndsOneRunsAndOneFails) {
    constexpr Bytes ends = 4_KiB, runs = 8_KiB, fails = 12_KiB;
    for (int passes = 0; passes < 8; ++passes) {
        Rig rig({}, 1_MiB);
        CopyOptions options;
        options.verify = true;  // makes each a copy of its own
        std::vector<Bytes> sizes;
        bool begun = false, failed = false;
        int looks = 0;
        rig.fake->script.looks_of = [&](const backend::Piece& piece) {
            sizes.push_back(piece.size);
            return 1;
        };
        rig.fake->script.hang = [&](std::size_t number) {
            begun |= sizes[number] == ends;
            if (sizes[number] == runs) return !failed;
            return sizes[number] == fails && !(begun && looks++ >= passes);
        };
        rig.fake->script.fail_end = [&](std::size_t number) -> std::optional<Error> {
            if (sizes[number] != fails) return std::nullopt;
            failed = true;
            return broken();
        };
        std::vector<Item> batch;
        for (const Bytes size : {ends, runs, fails})
            batch.push_back(
                {rig.source.buffer().slice(16 * size, size), rig.target.buffer().slice(16 * size, size)});
        auto job = rig.start(batch, options);
        rig.engine->wait(job, 0ns);
        ASSERT_FALSE(job->result());
        EXPECT_EQ(job->result().error().message, "copy 2 of the batch: scripted failure");
        EXPECT_EQ(rig.fake->in_flight, 0);
        EXPECT_EQ(rig.fake->attached, 0);
    }
}

TEST(Batch, RunsOnWhenNobodyLooks) {
    Rig rig({.looks = 3}, 32_MiB);
    const auto batch = rig.items(30'000, 1_KiB, 1_KiB);
    auto job = rig.start(batch);
    for (int i = 0; i < 5000 && !job->finished(); ++i) std::this_thread::sleep_for(1ms);
    ASSERT_TRUE(job->finished());
    EXPECT_TRUE(Rig::equal(batch));
}

TEST(Batch, RelaysOnWhenNobodyLooks) {
    Relayed rig({.looks = 3});
    const auto batch = rig.items(30, 8_KiB, 8_KiB);
    auto job = rig.start(batch);
    for (int i = 0; i < 5000 && !job->finished(); ++i) std::this_thread::sleep_for(1ms);
    ASSERT_TRUE(job->finished());
    EXPECT_TRUE(Rig::equal(batch));
}

TEST(Batch, AStreamNeedsAnEngineThatKnowsStreams) {
    Rig rig({});
    const auto batch = rig.items(5, 1_KiB, 1_KiB);
    std::vector<BatchCopy> copies;
    for (const Item& item : batch) copies.push_back({&item.from, &item.to});
    int stream = 0;
    auto job = rig.engine->submit_batch(copies, {}, &stream);
    rig.engine->wait(job, 0ns);
    ASSERT_FALSE(job->result());
    EXPECT_EQ(job->result().error().code, ErrorCode::unsupported);
    EXPECT_NE(job->result().error().message.find("copy 0 of"), std::string::npos);
    EXPECT_TRUE(rig.fake->pieces.empty());
}

}  // namespace
}  // namespace sidestep
