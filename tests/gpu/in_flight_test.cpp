// When pieces of which nothing marks the end are seen to have ended.
#include <algorithm>
#include <cstdlib>
#include <list>
#include <optional>
#include <thread>
#include <vector>

#include "backend/flight.hpp"
#include "backends/cuda/in_flight.hpp"
#include "base/thread.hpp"
#include "tests/gpu/slow_stream.hpp"

namespace sidestep::gpu_tests::in_flight {
namespace {

using backends::cuda::Enqueued;
using backends::cuda::InFlight;
using backends::cuda::Mark;
using backends::cuda::Told;
using std::chrono::milliseconds;

class InFlightTest : public GpuTest, protected backend::PieceOwner {
protected:
    void SetUp() override {
        GpuTest::SetUp();
        if (IsSkipped()) return;
        stream.emplace(0);
        pieces.emplace(
            std::shared_ptr<const driver::CudaContext>(std::shared_ptr<void>(), &machine().context(0)), 0);
    }
    void TearDown() override {
        busy = false;
        while (pieces && pieces->look()) std::this_thread::yield();
        EXPECT_TRUE(std::ranges::all_of(flights, [](const auto& flight) { return flight.over(); }));
    }
    void ended() override {}

    // A piece on the stream, which is at work until `busy` is false if it is `slow`.
    Enqueued& add(Mark mark, bool slow) { return add(mark, slow, *stream, *pieces); }
    Enqueued& add(Mark mark, bool slow, SlowStream& on, InFlight& to) {
        driver::ScopedCudaContext current(machine().context(0));
        Enqueued* const piece = to.take(on.get(), mark).value();
        piece->flight = &flights.emplace_back(static_cast<PieceOwner&>(*this));
        // A driver calls functions of all streams one after the other.
        if (slow)
            on.run([this] {
                while (busy) std::this_thread::sleep_for(milliseconds(1));
            });
        to.mark(*piece, mark);
        to.add(piece);
        return *piece;
    }
    // The same on a thread with a share of its own.
    void add_elsewhere(Mark mark, bool slow) { add_elsewhere(mark, slow, *stream); }
    void add_elsewhere(Mark mark, bool slow, SlowStream& on) {
        const std::size_t here = base::thread_number();
        for (bool added = false; !added;) {
            std::thread thread([&] {
                added = base::thread_number() % 16 != here % 16;
                if (added) add(mark, slow, on, *pieces);
            });
            thread.join();
        }
    }
    bool first_ends_within(milliseconds limit) {
        const auto until = std::chrono::steady_clock::now() + limit;
        while (!flights.front().over() && std::chrono::steady_clock::now() < until) pieces->look();
        return flights.front().over();
    }

    void expect_first_alone_ends() {
        EXPECT_TRUE(first_ends_within(milliseconds(20000)));
        EXPECT_FALSE(flights.back().over());
    }

    std::atomic<bool> busy{true};
    std::optional<SlowStream> stream;
    std::list<backend::Flight> flights;
    std::optional<InFlight> pieces;
};

TEST_F(InFlightTest, WhatTheSameThreadEnqueuesBehindIsNotWaitedFor) {
    add(Mark::later, false);
    add(Mark::later, true);
    expect_first_alone_ends();
}

TEST_F(InFlightTest, WhatMayTakeLongIsNotWaitedForWhoeverEnqueuedIt) {
    add(Mark::later, false);
    add_elsewhere(Mark::now, true);
    expect_first_alone_ends();
}

// Between the two it was seen to be in flight.
TEST_F(InFlightTest, AfterALookNothingIsWaitedFor) {
    std::atomic<bool> holds{true};
    stream->run([&] {
        while (holds) std::this_thread::sleep_for(milliseconds(1));
    });
    add(Mark::later, false);
    EXPECT_FALSE(first_ends_within(milliseconds(1)));
    add_elsewhere(Mark::later, true);
    holds = false;
    expect_first_alone_ends();
}

// No look has found it in flight, and nothing has marked it since.
TEST_F(InFlightTest, WhatIsAwaitedEndsBeforeWhatAnyThreadEnqueuesBehind) {
    add(Mark::awaited, false);
    add_elsewhere(Mark::later, true);
    expect_first_alone_ends();
}

// Words of several threads at a time hold them up.
TEST_F(InFlightTest, AWordIsWrittenOnlyWhileNothingElseIsInFlight) {
    EXPECT_EQ(add(Mark::awaited, true).told, Told::by_word);
    EXPECT_EQ(add(Mark::awaited, true).told, Told::by_stream);
}

// Each time anew, and however often it was looked for before.
TEST_F(InFlightTest, WhatIsAwaitedIsNotOverWhileItRuns) {
    for (int i = 0; i < 3; ++i) {
        busy = true;
        flights.clear();
        add(Mark::awaited, true);
        EXPECT_FALSE(first_ends_within(milliseconds(20)));
        busy = false;
        EXPECT_TRUE(first_ends_within(milliseconds(20000)));
    }
}

// What hangs writes it after all, when nobody looks any more.
TEST_F(InFlightTest, AWordThatWillBeWrittenIsKept) {
    EXPECT_EQ(add(Mark::awaited, true).told, Told::by_word);
    pieces.reset();
    flights.clear();
    busy = false;
    EXPECT_TRUE(stream->drained(milliseconds(20000)));
}

// Whoever waits looks at all GPUs in turn.
TEST_F(InFlightTest, WhatAnotherThreadEnqueuedIsSeenBesideSlowPiecesOfTwoGpus) {
    SlowStream quick(0);
    InFlight second(
        std::shared_ptr<const driver::CudaContext>(std::shared_ptr<void>(), &machine().context(0)), 0);
    add(Mark::now, true);
    add(Mark::now, true, *stream, second);
    add_elsewhere(Mark::now, false, quick);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!flights.back().over() && std::chrono::steady_clock::now() < until) {
        pieces->look();
        second.look();
    }
    EXPECT_TRUE(flights.back().over());
    EXPECT_FALSE(flights.front().over());
    busy = false;
    while (second.look()) std::this_thread::yield();
}

// The stand-in driver can be without them. On a real GPU this is one more awaited piece.
TEST_F(InFlightTest, WithoutWordsTheStreamTells) {
    ::setenv("FAKE_CUDA_NO_STREAM_WORDS", "1", 1);
    add(Mark::awaited, true);
    EXPECT_FALSE(first_ends_within(milliseconds(20)));
    busy = false;
    EXPECT_TRUE(first_ends_within(milliseconds(20000)));
    ::unsetenv("FAKE_CUDA_NO_STREAM_WORDS");
}

}  // namespace
}  // namespace sidestep::gpu_tests::in_flight
