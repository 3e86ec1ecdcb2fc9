// Who goes on with movements: threads of backends that have ended a piece, how far, and whoever drives, when.
#include "transfer/driving.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "engine_rig.hpp"
#include "spread_rig.hpp"
#include "transfer/batch_plan.hpp"

namespace sidestep {
namespace {

using namespace std::chrono_literals;
using test::chunks_of;
using test::FakeFiles;
using test::SpreadRig;
using transfer::Activity;
using transfer::Lookout;

// Ends pieces as a backend's thread would until every byte is there; false where that never happens.
bool end_pieces_until_there(SpreadRig& rig, const Activity& job) {
    const auto limit = std::chrono::steady_clock::now() + 30s;
    while (job.bytes_done() < job.bytes_total() && std::chrono::steady_clock::now() < limit) rig.end_pieces();
    return job.bytes_done() == job.bytes_total();
}

// The engine's own thread holds still, as one that sleeps, from now on until this is destroyed: it is in a
// call of a copy that has ended. The rig has a file and a memory.
class EngineHeld {
public:
    explicit EngineHeld(SpreadRig& rig) {
        const auto hold = [state = state_] {
            state->held = true;
            while (!state->over) std::this_thread::yield();
        };
        const Buffer to = rig.spread.memories[0].slice(0, 4_KiB);
        while (
            !rig.engine->submit(Buffer::file("/file0", 0, 4_KiB), to, {}, nullptr)->completion().keep(hold)) {
        }
        while (!state_->held) std::this_thread::yield();
    }
    ~EngineHeld() { state_->over = true; }
    EngineHeld(const EngineHeld&) = delete;
    EngineHeld& operator=(const EngineHeld&) = delete;

private:
    struct State {
        std::atomic<bool> held{false}, over{false};
    };
    const std::shared_ptr<State> state_ = std::make_shared<State>();
};

void expect_only_the_end_is_left(SpreadRig& rig, const std::shared_ptr<Activity>& job) {
    ASSERT_TRUE(end_pieces_until_there(rig, *job)) << job->bytes_done() << " of " << job->bytes_total();
    EXPECT_TRUE(job->driven_beside());
    EXPECT_FALSE(job->driven_beside()) << "nobody was at it since";
    EXPECT_FALSE(job->finished()) << "what a copy holds must not be freed on a thread of a backend";
    rig.engine->wait(job, 0ns);
    ASSERT_TRUE(job->result()) << job->result().error().to_string();
}

TEST(Driving, TakesALoadToItsLastByteAndNoFurther) {
    SpreadRig rig({.gpus = 1, .files = {.looks = 2}, .gpu = {.looks = 3}, .drive_beside = true});
    rig.add_gpus(1, 4_MiB);
    rig.replicate(4_MiB);
    {
        const EngineHeld held(rig);
        expect_only_the_end_is_left(rig, rig.submit(chunks_of(64_KiB)));
    }
    EXPECT_TRUE(rig.arrived());
    EXPECT_TRUE(rig.nothing_left());
}

TEST(Driving, TakesACopyOfAFileToItsLastByteAndNoFurther) {
    SpreadRig rig({.gpus = 1, .files = {.looks = 2}, .gpu = {.looks = 3}, .drive_beside = true});
    rig.add_gpus(1, 4_MiB);
    rig.replicate(4_MiB);
    CopyOptions options = chunks_of(64_KiB);
    options.max_staging = 512_KiB;  // more than its start submits
    const EngineHeld held(rig);
    expect_only_the_end_is_left(
        rig, rig.engine->submit(Buffer::file("/file0", 0, 4_MiB), rig.spread.memories[0], options, nullptr));
    EXPECT_TRUE(rig.arrived());
}

// Else a driver rests beside itself: it sees the end of what its own look began only when it has slept.
TEST(Driving, ALookOfADriverIsNobodyBesideIt) {
    SpreadRig rig({.gpus = 1, .files = {.looks = 2}, .gpu = {.looks = 3}, .drive_beside = true});
    rig.add_gpus(1, 4_MiB);
    rig.replicate(4_MiB);
    const EngineHeld held(rig);
    const auto job = rig.submit(chunks_of(64_KiB));
    bool moved = false, driven_beside = false;
    const auto limit = std::chrono::steady_clock::now() + 30s;
    while (job->bytes_done() < job->bytes_total() && std::chrono::steady_clock::now() < limit) {
        rig.engine->poll(job);
        moved |= job->moved_in_look();
        driven_beside |= job->driven_beside();
    }
    EXPECT_EQ(job->bytes_done(), job->bytes_total());
    EXPECT_TRUE(moved);
    EXPECT_FALSE(driven_beside);
    rig.engine->wait(job, 0ns);
    EXPECT_TRUE(job->result());
}

TEST(Driving, WhatItMeetsIsToldByWhoeverWaits) {
    SpreadRig rig({.gpus = 1,
                   .files = {.looks = 1,
                             .fail = [](const std::string&, Bytes offset, Bytes) -> std::optional<Error> {
                                 if (offset < 2_MiB) return std::nullopt;
                                 return Error{ErrorCode::io_error, "scripted", {}, {}};
                             }},
                   .drive_beside = true});
    rig.add_gpus(1, 4_MiB);
    rig.replicate(4_MiB);
    std::optional<EngineHeld> held(std::in_place, rig);
    const auto job = rig.submit(chunks_of(64_KiB));
    for (int i = 0; i < 1000; ++i) rig.end_pieces();
    EXPECT_FALSE(job->finished());
    held.reset();
    rig.engine->wait(job, 0ns);
    ASSERT_FALSE(job->result());
    EXPECT_EQ(job->result().error().code, ErrorCode::io_error);
    EXPECT_TRUE(rig.nothing_left());
}

// A driver that was woken for it, and came while the other thread was at it, sleeps again.
TEST(Driving, WhatIsCancelledOrAbandonedMeanwhileIsLeftToADriver) {
    for (const bool cancels : {true, false}) {
        std::function<void()> meanwhile;
        FakeFiles::Script files{.looks = 0, .told = true};
        files.before = [&](FakeFiles& at, std::size_t) {
            if (meanwhile && at.in_flight() > 0) std::exchange(meanwhile, nullptr)();
        };
        SpreadRig rig({.gpus = 1, .files = std::move(files), .drive_beside = true});
        rig.add_gpus(1, 4_MiB);
        rig.replicate(4_MiB);
        const auto job = rig.submit(chunks_of(64_KiB));
        job->waiters = 1;  // the engine's thread leaves it to this one
        job->step(true);
        meanwhile = [&] {
            if (cancels) return job->cancel();
            rig.files->abandon({ErrorCode::io_error, "it hangs", {}, {}});
        };
        rig.files->end_pieces();
        ASSERT_FALSE(meanwhile);
        EXPECT_TRUE(job->wants_step()) << cancels;
        job->step(true);
        rig.files->end_pieces();
        rig.engine->wait(job, 0ns);
        ASSERT_FALSE(job->result());
        EXPECT_EQ(job->result().error().code, cancels ? ErrorCode::cancelled : ErrorCode::io_error);
    }
}

// A wait beside a thread that drives all the time.
TEST(Driving, SomebodyMayWaitMeanwhile) {
    for (int round = 0; round < 20; ++round) {
        SpreadRig rig({.gpus = 2, .files = {.looks = 2}, .gpu = {.looks = 3}, .drive_beside = true});
        rig.add_gpus(2, 2_MiB);
        rig.replicate(2_MiB);
        std::atomic<bool> over{false};
        std::thread helper([&] {
            while (!over) rig.end_pieces();
        });
        const auto receipt = rig.run(chunks_of(64_KiB));
        over = true;
        helper.join();
        ASSERT_TRUE(receipt) << receipt.error().to_string();
        EXPECT_TRUE(rig.arrived());
        EXPECT_TRUE(rig.nothing_left());
    }
}

// Where processors are few nobody goes on with it but whoever drives, who is woken.
TEST(Driving, ThreadsOfBackendsLeaveItAloneWhereProcessorsAreFew) {
    SpreadRig rig({.gpus = 1, .files = {.looks = 0}, .gpu = {.looks = 0}, .drive_beside = false});
    rig.add_gpus(1, 4_MiB);
    rig.replicate(4_MiB);
    CopyOptions options = chunks_of(64_KiB);
    options.max_staging = 512_KiB;
    const EngineHeld held(rig);
    const auto job = rig.submit(options);
    const std::size_t started = rig.files->pieces.size();
    for (int i = 0; i < 100; ++i) rig.end_pieces();
    EXPECT_EQ(rig.files->pieces.size(), started);
    EXPECT_FALSE(job->driven_beside());
    rig.engine->wait(job, 0ns);
    EXPECT_TRUE(rig.arrived());
}

// A thread that has read goes on with copies that nobody tells of, and whoever drives sleeps at that time.
TEST(Driving, SomebodyLooksForWhatThreadsOfBackendsHaveBegun) {
    SpreadRig rig(
        {.gpus = 1, .files = {.looks = 0, .told = true}, .gpu = {.looks = 0}, .drive_beside = true});
    rig.add_gpus(1, 640_KiB);
    rig.replicate(640_KiB);
    CopyOptions options = chunks_of(64_KiB);
    options.max_staging = 64_KiB;  // one chunk at a time
    const auto start = std::chrono::steady_clock::now();
    const auto job = rig.submit(options);
    while (!job->finished() && std::chrono::steady_clock::now() - start < 30s) {
        std::this_thread::sleep_for(5ms);
        rig.files->end_pieces();
    }
    ASSERT_TRUE(job->finished() && job->result());
    EXPECT_TRUE(rig.arrived());
    EXPECT_LT(std::chrono::steady_clock::now() - start, 5s) << "the end of each copy was found in time only";
}

// Threads of a backend go on with it all the time, and it ends after so many looks.
class DrivenBeside final : public Activity {
public:
    explicit DrivenBeside(int looks) : looks_(looks) {}
    bool step(bool) override {
        driven_beside_.store(true);
        if (--looks_ > 0) return true;
        result_ = Receipt{};
        drained_.store(true);
        finish();
        return true;
    }
    bool try_step(bool may_block) override { return step(may_block); }

private:
    int looks_;
};

// Its processor is theirs meanwhile: with eight, an H200 was loaded a tenth more slowly where it looked on.
TEST(Driving, WhoWaitsRestsWhileOthersGoOn) {
    SpreadRig rig({.gpus = 1});
    constexpr int looks = 20;
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(rig.engine->wait(std::make_shared<DrivenBeside>(looks), 0ns));
    EXPECT_GE(std::chrono::steady_clock::now() - start, (looks - 1) * 200us);
}

class NeverMoves final : public Activity {
public:
    bool step(bool) override { return false; }
    bool try_step(bool) override { return false; }
    void cancel() override {
        result_ = Receipt{};
        drained_.store(true);
        finish();
    }
};

// It would hold up the driver's calls, and see no end sooner.
TEST(Driving, WhileSomebodyWaitsTheEnginesThreadDoesNotLook) {
    constexpr int looks = 48;
    const auto here = std::this_thread::get_id();
    std::atomic<int> mine{0}, others{0};
    test::FakeBackend::Script script;
    script.looks = looks;
    script.hang = [&](std::size_t) {
        if (std::this_thread::get_id() == here)
            ++mine;
        else if (mine > looks / 4)  // before, it may have been on its way
            ++others;
        return false;
    };
    test::EngineRig rig(script);
    ASSERT_TRUE(rig.copy(chunks_of(512_KiB)));
    EXPECT_TRUE(rig.equal());
    EXPECT_GT(mine, looks);
    EXPECT_LT(others, looks / 4);
}

// One look ends several, and each look at what nodes have sent is a call of the system.
TEST(Driving, WhoWaitsForWhatHasEndedDoesNotLook) {
    const auto here = std::this_thread::get_id();
    for (const auto& [drive_beside, polls] :
         {std::pair(false, false), {false, true}, {true, false}, {true, true}}) {
        int looks = 0;
        std::atomic<bool> hangs{true};
        test::FakeBackend::Script script;
        script.looks = 0;
        script.hang = [&](std::size_t piece) {
            if (piece < 2) return false;
            if (std::this_thread::get_id() == here) ++looks;
            return hangs.load();
        };
        test::EngineRig rig(script, 4_KiB);
        rig.engine = std::make_unique<transfer::Engine>(rig.topology, rig.registry, 10s, drive_beside);
        const Allocation pinned = *rig.fake->allocate(Place::host(), 4_KiB, MemoryKind::pinned);
        const auto submit = [&] {
            return rig.engine->submit(pinned.buffer(), rig.target.buffer(), {}, nullptr);
        };
        const auto first = submit(), second = submit(), third = submit();
        rig.engine->wait(first, 0ns);
        const int before = std::exchange(looks, 0);
        EXPECT_GT(before, 0);
        EXPECT_TRUE(polls ? rig.engine->poll(second) : rig.engine->wait(second, 0ns));
        EXPECT_TRUE(second->finished() && second->result());
        EXPECT_EQ(looks, 0) << drive_beside << polls;
        hangs = false;
        rig.engine->wait(third, 0ns);
        EXPECT_TRUE(third->result());
    }
}

// The thread need not be woken for it at once, but it comes to it: out of a nap, out of its sleep, and away from what it has besides.
TEST(Driving, SomethingSmallThatNobodyWaitsForEnds) {
    test::EngineRig rig({.looks = 3}, 4_KiB);
    CopyOptions options;
    options.verify = true;  // needs somebody who steps it
    const auto beside = std::make_shared<NeverMoves>();
    for (const auto pause : {0ms, 0ms, 10ms, 0ms, 10ms}) {
        std::this_thread::sleep_for(pause);
        const auto job = rig.engine->submit(rig.source.buffer(), rig.target.buffer(), options, nullptr);
        const auto limit = std::chrono::steady_clock::now() + 10s;
        while (!job->finished() && std::chrono::steady_clock::now() < limit) std::this_thread::sleep_for(1ms);
        ASSERT_TRUE(job->finished());
        EXPECT_TRUE(job->result());
        if (pause == 10ms) rig.engine->drive_in_background(beside);
    }
}

// One piece has no driver until somebody looks, whether that ends it or a thread of its backend did before.
TEST(Driving, WhatEndedWhileNobodyLookedHasNotStalled) {
    for (const bool drive_beside : {false, true})
        for (const bool batch : {false, true})
            for (const bool told : {false, true}) {
                test::FakeBackend::Script script;
                script.looks = 0;
                script.batches = true;
                test::EngineRig rig(script, 4_KiB);
                rig.engine =
                    std::make_unique<transfer::Engine>(rig.topology, rig.registry, 10s, drive_beside);
                const Allocation pinned = *rig.fake->allocate(Place::host(), 4_KiB, MemoryKind::pinned);
                const Buffer from = pinned.buffer(), to = rig.target.buffer();
                CopyOptions options;
                options.stall_limit = 10ms;
                const std::vector<transfer::BatchCopy> one{{&from, &to}};
                const auto job = batch ? rig.engine->submit_batch(one, options, nullptr)
                                       : rig.engine->submit(from, to, options, nullptr);
                if (told) rig.fake->look();
                std::this_thread::sleep_for(2 * options.stall_limit);
                rig.engine->wait(job, 0ns);
                EXPECT_TRUE(job->result())
                    << drive_beside << batch << told << ": " << job->result().error().to_string();
            }
}

TEST(Driving, WhatWasWaitedForIsNotKept) {
    test::EngineRig rig({.looks = 48});  // long enough for the thread to sleep
    auto job = rig.engine->submit(rig.source.buffer(), rig.target.buffer(), chunks_of(512_KiB), nullptr);
    rig.engine->wait(job, 0ns);
    const std::weak_ptr<Activity> gone = std::exchange(job, nullptr);
    const auto limit = std::chrono::steady_clock::now() + 10s;
    while (!gone.expired() && std::chrono::steady_clock::now() < limit) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(gone.expired());
}

TEST(Driving, PiecesMayEndBeforeAndAfterAndWithoutAnEngine) {
    SpreadRig rig({.gpus = 1, .drive_beside = true});
    rig.add_gpus(1, 1_MiB);
    rig.replicate(1_MiB);
    rig.end_pieces();
    auto job = rig.submit(chunks_of(64_KiB));
    rig.engine->wait(job, 0ns);
    rig.end_pieces();
    job.reset();
    rig.engine.reset();
    rig.end_pieces();
}

TEST(Lookout, ARingBetweenMarkAndSleepIsNotMissed) {
    const backend::Registry registry;
    Lookout lookout(registry);
    const auto mark = lookout.mark();
    lookout.ring();
    lookout.sleep(mark, Lookout::Clock::time_point::max(), true);  // returns
    const auto before = lookout.mark();
    lookout.begun_beside();
    lookout.sleep(before, Lookout::Clock::time_point::max(), false);  // returns too
    const auto start = Lookout::Clock::now();
    lookout.sleep(before, start + 5ms, true);
    EXPECT_GE(Lookout::Clock::now() - start, 5ms) << "who comes back soon need not be called";
    const auto sleeping = lookout.mark();
    std::thread ringer([&] {
        std::this_thread::sleep_for(5ms);
        lookout.ring();
    });
    lookout.sleep(sleeping, Lookout::Clock::time_point::max(), false);
    ringer.join();
}

// Whoever sees the end may let the owner go, and that waits for the thread that told of it.
TEST(Flight, AnOwnerStaysUntilItHasBeenTold) {
    struct Owner final : backend::PieceOwner {
        ~Owner() override { close(); }
        void ended() override {
            told = true;
            while (!go_on) std::this_thread::yield();
            *left = true;
        }
        std::atomic<bool> told{false}, go_on{false};
        std::atomic<bool>* left = nullptr;
    };
    std::atomic<bool> left{false};
    auto owner = std::make_unique<Owner>();
    owner->left = &left;
    backend::Flight flight(*owner);
    std::thread backend([&] { flight.end(Error{ErrorCode::io_error, "scripted", {}, {}}); });
    while (!owner->told) std::this_thread::yield();
    EXPECT_TRUE(flight.over());
    EXPECT_EQ(flight.result().error().code, ErrorCode::io_error);
    std::thread opener([told = owner.get()] {
        std::this_thread::sleep_for(5ms);
        told->go_on = true;
    });
    owner.reset();
    EXPECT_TRUE(left);
    opener.join();
    backend.join();
}

}  // namespace
}  // namespace sidestep
