// Staged copies in the order of a caller's stream: what holds the stream, for how long, and what a failure means for
// the copies behind.
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "engine_rig.hpp"
#include "transfer/batch_plan.hpp"
#include "transfer/stream_order.hpp"

namespace sidestep {
namespace {

using namespace std::chrono_literals;
using test::broken;
using test::FakeBackend;
using test::small_chunks;
using transfer::Activity;
using transfer::Engine;

using Clock = std::chrono::steady_clock;
using Job = std::shared_ptr<Activity>;

// Waits until it is so, for a minute at most.
template <typename Condition>
bool becomes(Condition condition) {
    const auto limit = Clock::now() + 1min;
    while (!condition() && Clock::now() < limit) std::this_thread::sleep_for(1ms);
    return condition();
}

bool says(const Error& error, std::string_view what) {
    return error.message.find(what) != std::string::npos;
}

// Copies on streams, which are only names here: a test says when a stream comes to a gate.
struct StreamRig : test::EngineRig {
    explicit StreamRig(FakeBackend::Script script = {}, std::chrono::milliseconds drain_limit = 1h)
        : EngineRig(with_streams(std::move(script))) {
        engine = std::make_unique<Engine>(topology, registry, drain_limit);
        pinned = *fake->allocate(Place::host(), size, MemoryKind::pinned);
        std::memset(pinned.address(), 0x77, size);
    }
    static FakeBackend::Script with_streams(FakeBackend::Script script) {
        script.streams = true;
        return script;
    }

    // Held at a gate, the youngest of fake->gates.
    Job staged(void* stream, CopyOptions options = small_chunks()) {
        return engine->submit(source.buffer(), target.buffer(), options, stream);
    }
    Job one_hop(void* stream, const CopyOptions& options = {}) {
        return engine->submit(pinned.buffer(), target.buffer(), options, stream);
    }
    Job batch(void* stream) {
        const Buffer from = pinned.buffer();
        const Buffer to = target.buffer();
        return engine->submit_batch({{&from, &to}}, {}, stream);
    }
    FakeBackend::Gate& gate(std::size_t number) { return *fake->gates[number]; }
    // As the caller sees it.
    Result<Receipt> end(const Job& job) {
        engine->wait(job, 0ns);
        return engine->take(*job);
    }

    Allocation pinned;
    char names[2] = {};
    void* const here = &names[0];
    void* const there = &names[1];
};

// The stall limit of both is shorter than what the stream does before it comes to the copy.
TEST(Gates, TheStreamsEarlierWorkIsNoStall) {
    std::atomic<bool> busy{true};
    StreamRig rig({.looks = 0, .hang = [&](std::size_t) { return busy.load(); }});
    CopyOptions options = small_chunks();
    options.stall_limit = 1s;
    const Job staged = rig.staged(rig.here, options);
    const Job one_hop = rig.one_hop(rig.there, options);
    EXPECT_FALSE(rig.engine->wait(staged, 1500ms));
    EXPECT_FALSE(rig.engine->wait(one_hop, 1ms));
    busy = false;
    rig.gate(0).reached = true;
    const auto receipt = rig.end(staged);
    EXPECT_TRUE(receipt) << receipt.error().to_string();
    const auto direct = rig.end(one_hop);
    EXPECT_TRUE(direct) << direct.error().to_string();
    EXPECT_TRUE(rig.gate(0).open);
}

TEST(Gates, BehindTheGateTheStallLimitCounts) {
    std::atomic<bool> hangs{true};
    StreamRig rig({.looks = 0, .hang = [&](std::size_t piece) { return piece == 6 && hangs; }});
    CopyOptions options = small_chunks();
    options.stall_limit = 300ms;
    const Job job = rig.staged(rig.here, options);
    rig.gate(0).reached = true;
    EXPECT_FALSE(rig.engine->wait(job, 600ms));
    EXPECT_FALSE(rig.gate(0).open) << "a piece is in flight";
    hangs = false;
    const auto receipt = rig.end(job);
    ASSERT_FALSE(receipt);
    EXPECT_EQ(receipt.error().code, ErrorCode::timed_out);
    EXPECT_TRUE(becomes([&] { return rig.gate(0).open.load(); }));
}

// What lets the work behind a failed copy run.
enum class Opened { by_result, by_drop, by_cancel, by_time };

class FailedGates : public testing::TestWithParam<Opened> {};

TEST_P(FailedGates, StayClosedUntilTheFailureIsKnown) {
    const bool timed = GetParam() == Opened::by_time;
    StreamRig rig({.looks = 2,
                   .fail_end = [](std::size_t piece) -> std::optional<Error> {
                       if (piece == 7) return broken();
                       return std::nullopt;
                   }},
                  timed ? 300ms : 1h);
    const auto begin = Clock::now();
    const Job job = rig.staged(rig.here);
    rig.gate(0).reached = true;
    ASSERT_TRUE(becomes([&] { return job->finished(); }));
    if (!timed) {
        std::this_thread::sleep_for(100ms);
        EXPECT_FALSE(rig.gate(0).open);
        EXPECT_FALSE(job->drained());
    }
    if (GetParam() == Opened::by_result) {
        EXPECT_FALSE(rig.end(job));
    }
    if (GetParam() == Opened::by_drop) rig.engine->let_go(*job);
    if (GetParam() == Opened::by_cancel) job->cancel();
    EXPECT_TRUE(becomes([&] { return rig.gate(0).open.load(); }));
    EXPECT_TRUE(becomes([&] { return job->drained(); }));
    if (timed) {
        EXPECT_GE(Clock::now() - begin, 300ms);
    }
    EXPECT_EQ(job->result().error().message, "scripted failure");
    EXPECT_EQ(rig.fake->attached, 0);
}

INSTANTIATE_TEST_SUITE_P(All, FailedGates,
                         testing::Values(Opened::by_result, Opened::by_drop, Opened::by_cancel,
                                         Opened::by_time));

TEST(Gates, TheEngineOpensThemAtItsEnd) {
    StreamRig rig;
    CopyOptions options = small_chunks();
    options.deadline = 5ms;
    const Job job = rig.staged(rig.here, options);
    rig.engine->wait(job, 0ns);
    EXPECT_FALSE(rig.gate(0).open);
    rig.engine.reset();
    EXPECT_TRUE(rig.gate(0).open);
    EXPECT_TRUE(job->drained());
}

TEST(Gates, VerificationComesBeforeTheWorkBehind) {
    for (const auto& [differs, one_hop] :
         {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
        const std::size_t moving = one_hop ? 16 : 32;  // 16 chunks, two hops each where they are staged
        std::atomic<bool> verifies{false};
        StreamRig rig(
            {.looks = 0,
             .hang = [&](std::size_t piece) { return piece >= moving && !verifies; },
             .corrupt = [&, differs = differs](std::size_t piece) { return differs && piece == 5; }});
        CopyOptions options = small_chunks();
        options.verify = true;
        const Job job = one_hop ? rig.one_hop(rig.here, options) : rig.staged(rig.here, options);
        ASSERT_EQ(rig.fake->gates.size(), 1u);
        rig.gate(0).reached = true;
        EXPECT_FALSE(rig.engine->wait(job, 200ms));
        EXPECT_EQ(job->bytes_done(), 1_MiB);
        EXPECT_FALSE(rig.gate(0).open);
        verifies = true;
        rig.engine->wait(job, 0ns);
        EXPECT_EQ(rig.gate(0).open, !differs);
        const auto receipt = rig.end(job);
        EXPECT_EQ(receipt.ok(), !differs);
        EXPECT_TRUE(becomes([&] { return rig.gate(0).open.load(); }));
    }
}

// Of copies that were put on the stream while the first one waited, and of those after it, until somebody knows.
TEST(Gates, CopiesBehindOneThatFailedFailToo) {
    std::atomic<bool> held{true};  // what is on the streams themselves
    StreamRig rig({.looks = 0, .hang = [&](std::size_t) { return held.load(); }, .batches = true});
    CopyOptions options = small_chunks();
    options.deadline = 2s;  // all of them are on the stream by then
    const Job first = rig.staged(rig.here, options);
    const Job behind[] = {rig.staged(rig.here), rig.one_hop(rig.here), rig.batch(rig.here)};
    const Job elsewhere = rig.one_hop(rig.there);
    ASSERT_TRUE(becomes([&] { return first->finished(); }));
    const std::size_t started = rig.fake->pieces.size();
    const Job later[] = {rig.staged(rig.here), rig.one_hop(rig.here), rig.batch(rig.here)};
    for (const Job& job : later) {
        ASSERT_TRUE(job->finished());
        EXPECT_TRUE(says(job->result().error(), "the deadline of 2000 ms")) << job->result().error().message;
    }
    EXPECT_EQ(rig.fake->pieces.size(), started) << "nothing of it was put on the stream";
    EXPECT_EQ(rig.fake->gates.size(), 2u);
    const auto failed = rig.end(first);
    ASSERT_FALSE(failed);
    EXPECT_TRUE(becomes([&] { return rig.gate(0).open.load(); }));
    rig.gate(1).reached = true;
    held = false;
    for (const Job& job : behind) {
        const auto result = rig.end(job);
        ASSERT_FALSE(result);
        EXPECT_EQ(result.error().code, ErrorCode::timed_out);
        EXPECT_TRUE(says(result.error(), "a copy before it on the stream failed")) << result.error().message;
        EXPECT_TRUE(says(result.error(), "the deadline of 2000 ms")) << result.error().message;
    }
    EXPECT_EQ(rig.fake->pieces.size(), started) << "the staged one was not begun";
    EXPECT_TRUE(rig.end(elsewhere));
    EXPECT_TRUE(rig.end(rig.one_hop(rig.here)));
    const Job again = rig.staged(rig.here);
    rig.gate(2).reached = true;
    EXPECT_TRUE(rig.end(again));
    EXPECT_TRUE(rig.equal());
}

// Two threads put copies on one stream at the same time, a third one comes after both. Either may end first.
TEST(Gates, ACopyIsBehindBothOfTwoThatCameAtOnce) {
    for (const bool first_fails : {true, false}) {
        StreamRig rig;
        transfer::StreamOrder order(rig.registry);
        transfer::StreamPlace first, second, third;
        for (auto* place : {&first, &second}) ASSERT_TRUE(place->join(order, rig.here));
        for (auto* place : {&first, &second}) ASSERT_TRUE(place->hold(order, rig.registry, rig.here));
        ASSERT_TRUE(third.join(order, rig.here));
        (first_fails ? second : first).pass();
        (first_fails ? first : second).fail(broken());
        EXPECT_TRUE(third.failure_before());
    }
}

// One that comes behind does not make the stream wait for its caller as well.
TEST(Gates, OnlyTheFirstFailureHoldsTheStream) {
    StreamRig rig({.looks = 0});
    CopyOptions options = small_chunks();
    options.deadline = 2s;  // all of them are on the stream by then
    const Job first = rig.staged(rig.here, options);
    const Job second = rig.staged(rig.here);
    const Job third = rig.staged(rig.here);
    ASSERT_FALSE(rig.end(first));
    for (const std::size_t number : {1, 2}) {
        EXPECT_TRUE(becomes([&] { return rig.gate(number - 1).open.load(); }));
        rig.gate(number).reached = true;
        EXPECT_TRUE(becomes([&] { return rig.gate(number).open.load(); }));
    }
    EXPECT_FALSE(rig.end(second));
    EXPECT_FALSE(rig.end(third));
}

TEST(Gates, AFailureThatNobodyLookedAtComesUpAtTheNextCopy) {
    StreamRig rig({.looks = 0});
    CopyOptions options = small_chunks();
    options.deadline = 5ms;
    const Job job = rig.staged(rig.here, options);
    ASSERT_TRUE(becomes([&] { return job->finished(); }));
    rig.engine->let_go(*job);
    const Job next = rig.one_hop(rig.here);
    EXPECT_FALSE(rig.one_hop(rig.here)->result()) << "nobody has looked yet";
    const auto result = rig.end(next);
    ASSERT_FALSE(result);
    EXPECT_TRUE(says(result.error(), "the deadline of 5 ms")) << result.error().message;
    EXPECT_TRUE(rig.end(rig.one_hop(rig.here)));
}

// Who cancels knows.
TEST(Gates, ACancelledCopyLeavesTheStreamAsItWas) {
    StreamRig rig({.looks = 0});
    const Job job = rig.staged(rig.here);
    job->cancel();
    rig.engine->wait(job, 0ns);
    rig.engine->let_go(*job);
    EXPECT_TRUE(rig.gate(0).open);
    EXPECT_TRUE(rig.end(rig.one_hop(rig.here)));
}

}  // namespace
}  // namespace sidestep
