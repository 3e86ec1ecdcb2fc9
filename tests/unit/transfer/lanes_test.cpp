// Copies over several lanes: a scripted machine of four GPUs behind one NVSwitch.
#include "tests/contents.hpp"
#include "transfer/lane.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "fake_backend.hpp"
#include "transfer/engine.hpp"

namespace sidestep {
namespace {

using namespace std::chrono_literals;
using test::FakeBackend;
using transfer::Cursor;
using transfer::Engine;

Topology four_gpus() {
    Topology::Parts parts;
    parts.name = "test";
    parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0});
    parts.devices.push_back({DeviceKind::nvswitch, 0, "nvswitch:0", "", "", -1, 0});
    for (int i = 0; i < 4; ++i) {
        parts.devices.push_back({DeviceKind::gpu, i, "gpu:" + std::to_string(i), "", "", 0, 1_GiB});
        parts.links.push_back({0, static_cast<DeviceId>(i + 2), LinkKind::pcie, 16, 5, 1});
        parts.links.push_back({1, static_cast<DeviceId>(i + 2), LinkKind::nvlink, 18, 400, 1});
    }
    return *Topology::create(std::move(parts));
}

struct Rig {
    explicit Rig(FakeBackend::Script script) : topology(four_gpus()) {
        script.peers = true;
        auto owned = std::make_unique<FakeBackend>(std::move(script));
        fake = owned.get();
        registry.add(std::move(owned), topology);
        source = *fake->allocate(Place::host(), size, MemoryKind::pinned);
        target = *fake->allocate(Place::gpu(0), size, MemoryKind::device);
        test::fill(source.address(), size);
        std::memset(target.address(), 0xEE, size);
        engine = std::make_unique<Engine>(topology, registry, 200ms);
    }
    Result<Receipt> copy(CopyOptions options = {}) {
        if (options.chunk == 0) options.chunk = 256_KiB;
        auto job = engine->submit(source.buffer(), target.buffer(), options, nullptr);
        engine->wait(job, 0ns);
        return job->result();
    }
    bool equal() const { return std::memcmp(source.address(), target.address(), size) == 0; }

    static constexpr Bytes size = 64_MiB;
    Topology topology;
    backend::Registry registry;
    FakeBackend* fake = nullptr;
    Allocation source, target;
    std::unique_ptr<Engine> engine;
};

Error broken() {
    return {ErrorCode::device_error, "scripted failure", "fake", {}};
}

bool touches(const backend::Piece& piece, int gpu) {
    return piece.from->buffer().place() == Place::gpu(gpu) || piece.to->buffer().place() == Place::gpu(gpu);
}

Bytes sum(const std::vector<Bytes>& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), Bytes{0});
}

// The position of the lane through a GPU.
std::size_t lane_through(const Receipt& receipt, int gpu) {
    for (std::size_t i = 0; i < receipt.route->lanes.size(); ++i)
        if (receipt.route->lanes[i].hops[0].to == Place::gpu(gpu)) return i;
    ADD_FAILURE() << "no lane through gpu:" << gpu << "\n" << receipt.explain();
    return 0;
}

TEST(Lanes, CarryTheBytesTogether) {
    Rig rig({.looks = 2});
    const auto receipt = rig.copy();
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(rig.equal());
    ASSERT_EQ(receipt->lane_bytes.size(), 4U) << receipt->explain();
    EXPECT_EQ(sum(receipt->lane_bytes), rig.size);
    for (const Bytes bytes : receipt->lane_bytes) EXPECT_GE(bytes, rig.size / 8) << receipt->explain();
    EXPECT_TRUE(receipt->notes.empty());
    EXPECT_EQ(receipt->lane_failures, std::vector<std::string>(4));
    EXPECT_EQ(rig.fake->attached, 0);
}

TEST(Lanes, OneThatFallsBehindLeavesItsChunksToTheOthers) {
    Rig rig({.looks_of = [](const backend::Piece& piece) { return touches(piece, 2) ? 40 : 1; }});
    const auto receipt = rig.copy();
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(rig.equal());
    const Bytes slow = receipt->lane_bytes[lane_through(*receipt, 2)];
    EXPECT_LT(slow, receipt->lane_bytes[lane_through(*receipt, 1)] / 4) << receipt->explain();
}

TEST(Lanes, OneThatFailsHandsItsChunksOverAndIsNamed) {
    Rig rig({.fail_piece = [](const backend::Piece& piece) {
        const bool bad = piece.from->buffer().place() == Place::gpu(3) && piece.to_offset > 8_MiB;
        return bad ? std::optional(broken()) : std::nullopt;
    }});
    const auto receipt = rig.copy();
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(rig.equal());
    const std::size_t lane = lane_through(*receipt, 3);
    EXPECT_EQ(receipt->lane_failures[lane], "scripted failure");
    EXPECT_EQ(sum(receipt->lane_bytes), rig.size);
    ASSERT_EQ(receipt->notes.size(), 1U);
    EXPECT_NE(receipt->notes[0].find("the others took over"), std::string::npos) << receipt->notes[0];
    EXPECT_NE(receipt->explain().find("then failed: scripted failure"), std::string::npos)
        << receipt->explain();
    EXPECT_NE(receipt->to_json().find("\"scripted failure\""), std::string::npos);
    EXPECT_EQ(rig.fake->attached, 0);
}

// Each lane in turn, at its first, second or a later piece, at the start or at the end of it.
TEST(Lanes, AnyOneOfThemMayFailAtAnyTime) {
    for (int gpu = 0; gpu < 4; ++gpu)
        for (int after : {0, 1, 5, 40}) {
            int seen = 0;
            // Lane 0 is the direct one: pieces from the host to gpu:0.
            const auto of_lane = [gpu](const backend::Piece& piece) {
                return gpu == 0 ? piece.from->buffer().place().is_host() &&
                                      piece.to->buffer().place() == Place::gpu(0)
                                : touches(piece, gpu);
            };
            Rig rig({.fail_piece = [&, after](const backend::Piece& piece) {
                return of_lane(piece) && seen++ >= after ? std::optional(broken()) : std::nullopt;
            }});
            const auto receipt = rig.copy();
            ASSERT_TRUE(receipt) << gpu << " after " << after << ": " << receipt.error().to_string();
            EXPECT_TRUE(rig.equal()) << gpu << " after " << after;
            EXPECT_EQ(sum(receipt->lane_bytes), rig.size);
        }
}

TEST(Lanes, WhenAllFailTheCopyFailsWithAReasonAndDrains) {
    Rig rig({.fail_piece = [](const backend::Piece&) { return std::optional(broken()); }});
    const auto receipt = rig.copy();
    ASSERT_FALSE(receipt);
    EXPECT_EQ(receipt.error().message, "scripted failure");
    EXPECT_EQ(rig.fake->attached, 0);
    EXPECT_EQ(rig.fake->in_flight, 0);
}

TEST(Lanes, AHungLaneEndsWithTheDeadlineAndTheDrainLimit) {
    std::atomic<bool> hang{true};
    Rig rig({.hang = [&](std::size_t piece) { return piece == 9 && hang; }});
    CopyOptions options;
    options.deadline = 100ms;
    const auto receipt = rig.copy(options);
    ASSERT_FALSE(receipt);
    EXPECT_EQ(receipt.error().code, ErrorCode::timed_out) << receipt.error().to_string();
    hang = false;  // lets the engine's end drain it
}

TEST(Lanes, CancelStopsAllOfThem) {
    std::atomic<bool> hang{true};
    Rig rig({.looks = 3, .hang = [&](std::size_t piece) { return piece > 20 && hang; }});
    CopyOptions options;
    options.chunk = 256_KiB;
    auto job = rig.engine->submit(rig.source.buffer(), rig.target.buffer(), options, nullptr);
    EXPECT_FALSE(rig.engine->wait(job, 5ms));
    job->cancel();
    hang = false;
    rig.engine->wait(job, 0ns);
    ASSERT_FALSE(job->result());
    EXPECT_EQ(job->result().error().code, ErrorCode::cancelled);
    EXPECT_EQ(rig.fake->in_flight, 0);
    const std::size_t started = rig.fake->pieces.size();
    EXPECT_LT(started, rig.size / 256_KiB);
    rig.engine->poll(job);
    EXPECT_EQ(rig.fake->pieces.size(), started) << "nothing new after the end";
}

TEST(Lanes, RelayMemoryIsBoundedAndOneWithoutAnyIsLeftOut) {
    Rig rig({.looks = 1});
    rig.engine->machine().pool.set_relay_limit(1, 0);
    const auto receipt = rig.copy();
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(rig.equal());
    EXPECT_EQ(receipt->lane_bytes.size(), 3U);
    for (const Lane& lane : receipt->route->lanes) EXPECT_NE(lane.hops[0].to, Place::gpu(1));
    EXPECT_LE(rig.fake->max_allocated, 2 * rig.size + 2 * 32_MiB);
}

TEST(Lanes, MaxStagingBoundsAllRingsTogetherWithThoseOfVerification) {
    for (const bool verify : {false, true})
        for (const Bytes most : {6_MiB, 1_MiB}) {
            Rig rig({.looks = 1});
            const Bytes before = rig.fake->max_allocated;
            CopyOptions options;
            options.max_staging = most;
            options.verify = verify;
            const auto receipt = rig.copy(options);
            ASSERT_TRUE(receipt) << receipt.error().to_string();
            EXPECT_TRUE(rig.equal());
            EXPECT_EQ(receipt->verified, verify);
            EXPECT_LE(rig.fake->max_allocated - before, most) << verify;
        }
}

TEST(Lanes, OneLaneWhenOneIsAskedFor) {
    Rig rig({.looks = 1});
    CopyOptions options;
    options.lanes = 1;
    const auto receipt = rig.copy(options);
    ASSERT_TRUE(receipt);
    EXPECT_EQ(receipt->lane_bytes, std::vector<Bytes>{rig.size});
}

// A GPU that has a copy of its own keeps its link for it: a lane through it waits.
TEST(Lanes, MakeWayForCopiesOfTheGpuTheyPassThrough) {
    bool held = true;
    Rig rig({.hang = [&held](std::size_t piece) { return piece == 0 && held; }});
    const Allocation other = *rig.fake->allocate(Place::gpu(1), 1_MiB, MemoryKind::device);
    CopyOptions one;
    one.lanes = 1;
    auto busy = rig.engine->submit(rig.source.buffer().slice(0, 1_MiB), other.buffer(), one, nullptr);
    auto receipt = rig.copy();
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_EQ(receipt->lane_bytes[lane_through(*receipt, 1)], 0U) << receipt->explain();
    EXPECT_GT(receipt->lane_bytes[lane_through(*receipt, 2)], 0U);
    held = false;
    rig.engine->wait(busy, 0ns);
    EXPECT_TRUE(busy->result());
    receipt = rig.copy();
    EXPECT_GT(receipt->lane_bytes[lane_through(*receipt, 1)], 0U) << "the link is free again";
}

// It may wait for ever: such copies may follow one another.
TEST(Lanes, MakeNoWayWhereTheyTookOver) {
    std::atomic<bool> held = true;
    Rig rig({.hang = [&held](std::size_t piece) { return piece < 3 && held; },
             .fail_piece =
                 [](const backend::Piece& piece) {
                     const bool own = piece.from->buffer().place().is_host() && touches(piece, 0);
                     return own ? std::optional(broken()) : std::nullopt;
                 }});
    CopyOptions options;
    options.lanes = 1;
    std::vector<Allocation> others;
    std::vector<std::shared_ptr<transfer::Activity>> busy;
    for (const int gpu : {1, 2, 3}) {
        others.push_back(*rig.fake->allocate(Place::gpu(gpu), 1_MiB, MemoryKind::device));
        busy.push_back(rig.engine->submit(rig.source.buffer().slice(0, 1_MiB), others.back().buffer(),
                                          options, nullptr));
    }
    options.lanes = 0;
    options.stall_limit = 5s;
    const auto receipt = rig.copy(options);
    EXPECT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(rig.equal());
    held = false;
    for (const auto& job : busy) rig.engine->wait(job, 0ns);
}

TEST(Lanes, BytesAreVerified) {
    Rig rig({.looks = 1, .corrupt = [](std::size_t piece) { return piece == 100; }});
    CopyOptions options;
    options.verify = true;
    const auto receipt = rig.copy(options);
    ASSERT_FALSE(receipt);
    EXPECT_EQ(receipt.error().code, ErrorCode::mismatch);
}

// Notes pieces, all of which end on the spot.
class NotingBackend final : public backend::Backend, public backend::PieceOwner {
public:
    std::string_view name() const override { return "noting"; }
    backend::Support probe(const Topology&) override { return backend::Support::yes({}); }
    std::vector<backend::Capability> capabilities() const override { return {}; }
    Result<std::unique_ptr<backend::Registration>> attach(const Buffer& buffer,
                                                          const backend::AttachOptions&) override {
        return std::make_unique<backend::Registration>(buffer);
    }
    Result<backend::Progress> start(const backend::Piece& piece, backend::Flight&) override {
        pieces.push_back(piece);
        return backend::Progress::done;
    }

    void ended() override {}

    std::vector<backend::Piece> pieces;
};

// From byte 5000 of a file over host memory to a GPU: slots take the file's blocks whole.
TEST(Lanes, ChunksLieInTheirSlotsAsInTheFile) {
    constexpr Bytes offset = 5000, size = 300'001, chunk = 64_KiB, phase = offset % 4096;
    Rig rig({});
    NotingBackend noting;
    const std::vector<transfer::ReadyHop> hops{{&noting, 0, false, Place::host(), MemoryKind::pinned},
                                               {&noting, 1, false, Place::gpu(0), MemoryKind::device}};
    const Buffer from = Buffer::file("/x", offset, size);
    const Buffer to = Buffer::gpu(0, rig.target.address(), size);
    backend::Registration source(from), target(to);
    EXPECT_EQ(transfer::phase_of(from, to), phase);
    transfer::LaneSetup setup;
    setup.owner = &noting;
    setup.hops = hops;
    setup.from = &source;
    setup.to = &target;
    setup.chunk = chunk;
    setup.phase = phase;
    setup.staging = 3 * chunk;
    transfer::StagingPool pool(rig.registry);
    auto lane = transfer::LaneRunner::create(setup, pool);
    ASSERT_TRUE(lane) << lane.error().to_string();
    Cursor cursor(size, phase);
    while (!cursor.empty() || !(*lane)->idle()) ASSERT_TRUE((*lane)->step(cursor));
    Bytes sum = 0;
    for (std::size_t i = 0; i < noting.pieces.size(); i += 2) {
        const backend::Piece& read = noting.pieces[i];
        const backend::Piece& onward = noting.pieces[i + 1];
        EXPECT_EQ(read.from_offset, sum);
        EXPECT_EQ((offset + read.from_offset) % 4096, read.to_offset % 4096) << i;
        const Bytes slot = read.to_offset / chunk * chunk;
        EXPECT_EQ(read.to_offset - read.room_before, slot) << "its room begins with the slot";
        EXPECT_EQ(read.to_offset + read.size + read.room_after, slot + chunk) << "and ends with it";
        // The bytes go on from where they lie to where they belong, and nobody may touch what is beside them.
        EXPECT_EQ(onward.from_offset, read.to_offset);
        EXPECT_EQ(onward.to_offset, sum);
        EXPECT_EQ(onward.size, read.size);
        EXPECT_EQ(onward.room_before + onward.room_after, 0U);
        EXPECT_TRUE(read.awaited && onward.awaited) << "the other, or whoever waits, goes on at once";
        sum += read.size;
    }
    EXPECT_EQ(sum, size);
    EXPECT_EQ(noting.pieces.size() / 2, (phase + size + chunk - 1) / chunk);
    EXPECT_EQ((*lane)->arrived(), size);
}

// Pieces of no bytes would end for ever, and each would pass for progress.
TEST(Lanes, MoveAtLeastOneByteAtATime) {
    Rig rig({});
    NotingBackend noting;
    const std::vector<transfer::ReadyHop> hops{{&noting, 0, false, Place::gpu(0), MemoryKind::device}};
    transfer::LaneSetup setup;
    setup.hops = hops;
    setup.chunk = 0;
    transfer::StagingPool pool(rig.registry);
    const auto lane = transfer::LaneRunner::create(setup, pool);
    ASSERT_FALSE(lane);
    EXPECT_EQ(lane.error().code, ErrorCode::internal);
}

TEST(Lanes, TheFirstFileOfACopyGivesThePhase) {
    char byte = 0;
    const Buffer memory = Buffer::host(&byte, 1);
    EXPECT_EQ(transfer::phase_of(memory, memory), 0U);
    EXPECT_EQ(transfer::phase_of(memory, Buffer::file("/x", 4099, 1)), 3U);
    EXPECT_EQ(transfer::phase_of(Buffer::file("/x", 4099, 1), Buffer::file("/y", 5, 1)), 3U);
    EXPECT_EQ(transfer::phase_of(Buffer::file("/x"), memory), 0U);
}

TEST(Cursor, ChunksBeginAtBlocksOfTheFile) {
    for (const Bytes phase : {0, 1, 904, 4095}) {
        Cursor cursor(100'000, phase);
        std::vector<Cursor::Span> spans;
        while (!cursor.empty()) {
            spans.push_back(cursor.take(8192));
            // What is given back is cut as before.
            if (spans.size() == 1) {
                cursor.give_back(spans[0]);
                spans[0] = cursor.take(4096);
            }
        }
        EXPECT_EQ(spans[0].size, 4096 - phase);
        Bytes sum = 0;
        for (const Cursor::Span& span : spans) {
            EXPECT_EQ(span.offset, sum);
            EXPECT_TRUE(span.offset == 0 || (phase + span.offset) % 4096 == 0) << phase << " " << span.offset;
            EXPECT_LE((span.offset == 0 ? phase : 0) + span.size, 8192U);
            sum += span.size;
        }
        EXPECT_EQ(sum, 100'000U);
    }
}

TEST(Cursor, GivesBackWhatWasNotBroughtToItsEnd) {
    Cursor cursor(10);
    const Cursor::Span first = cursor.take(4);
    EXPECT_EQ(cursor.take(100).size, 6U);
    EXPECT_TRUE(cursor.empty());
    cursor.give_back(first);
    EXPECT_FALSE(cursor.empty());
    const Cursor::Span part = cursor.take(3), rest = cursor.take(3);
    EXPECT_EQ(part.offset, 0U);
    EXPECT_EQ(part.size, 3U);
    EXPECT_EQ(rest.offset, 3U);
    EXPECT_EQ(rest.size, 1U);
    EXPECT_TRUE(cursor.empty());
}

}  // namespace
}  // namespace sidestep
