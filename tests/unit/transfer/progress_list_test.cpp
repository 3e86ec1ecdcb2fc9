// Threads of backends that go on with copies: how far they take one, and what its end waits for.
#include "transfer/progress_list.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>

#include "spread_rig.hpp"

namespace sidestep {
namespace {

using namespace std::chrono_literals;
using test::chunks_of;
using test::SpreadRig;
using transfer::Activity;
using transfer::ProgressList;

// Calls as a backend's thread would until every byte is there; false where that never happens.
bool progress_until_there(const SpreadRig& rig, const Activity& job) {
    const auto limit = std::chrono::steady_clock::now() + 30s;
    while (job.bytes_done() < job.bytes_total() && std::chrono::steady_clock::now() < limit)
        rig.files->progress();
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
    ASSERT_TRUE(progress_until_there(rig, *job)) << job->bytes_done() << " of " << job->bytes_total();
    EXPECT_TRUE(job->assisted());
    EXPECT_FALSE(job->assisted()) << "nobody was at it since";
    EXPECT_FALSE(job->finished()) << "what a copy holds must not be freed on a thread of a backend";
    rig.engine->wait(job, 0ns);
    ASSERT_TRUE(job->result()) << job->result().error().to_string();
}

TEST(ProgressList, TakesALoadToItsLastByteAndNoFurther) {
    SpreadRig rig({.gpus = 1, .files = {.polls = 2}, .gpu = {.polls = 3}});
    rig.add_gpus(1, 4_MiB);
    rig.replicate(4_MiB);
    {
        const EngineHeld held(rig);
        expect_only_the_end_is_left(rig, rig.submit(chunks_of(64_KiB)));
    }
    EXPECT_TRUE(rig.arrived());
    EXPECT_TRUE(rig.nothing_left());
}

TEST(ProgressList, TakesACopyOfAFileToItsLastByteAndNoFurther) {
    SpreadRig rig({.gpus = 1, .files = {.polls = 2}, .gpu = {.polls = 3}});
    rig.add_gpus(1, 4_MiB);
    rig.replicate(4_MiB);
    CopyOptions options = chunks_of(64_KiB);
    options.max_staging = 512_KiB;  // more than its start submits
    const EngineHeld held(rig);
    expect_only_the_end_is_left(
        rig, rig.engine->submit(Buffer::file("/file0", 0, 4_MiB), rig.spread.memories[0], options, nullptr));
    EXPECT_TRUE(rig.arrived());
}

TEST(ProgressList, WhatItMeetsIsToldByWhoeverWaits) {
    SpreadRig rig(
        {.gpus = 1,
         .files = {.polls = 1, .fail = [](const std::string&, Bytes offset, Bytes) -> std::optional<Error> {
                       if (offset < 2_MiB) return std::nullopt;
                       return Error{ErrorCode::io_error, "scripted", {}, {}};
                   }}});
    rig.add_gpus(1, 4_MiB);
    rig.replicate(4_MiB);
    std::optional<EngineHeld> held(std::in_place, rig);
    const auto job = rig.submit(chunks_of(64_KiB));
    for (int i = 0; i < 1000; ++i) rig.files->progress();
    EXPECT_FALSE(job->finished());
    held.reset();
    rig.engine->wait(job, 0ns);
    ASSERT_FALSE(job->result());
    EXPECT_EQ(job->result().error().code, ErrorCode::io_error);
    EXPECT_TRUE(rig.nothing_left());
}

// A wait beside a thread that drives all the time.
TEST(ProgressList, SomebodyMayWaitMeanwhile) {
    for (int round = 0; round < 20; ++round) {
        SpreadRig rig({.gpus = 2, .files = {.polls = 2}, .gpu = {.polls = 3}});
        rig.add_gpus(2, 2_MiB);
        rig.replicate(2_MiB);
        std::atomic<bool> over{false};
        std::thread helper([&] {
            while (!over) rig.files->progress();
        });
        const auto receipt = rig.run(chunks_of(64_KiB));
        over = true;
        helper.join();
        ASSERT_TRUE(receipt) << receipt.error().to_string();
        EXPECT_TRUE(rig.arrived());
        EXPECT_TRUE(rig.nothing_left());
    }
}

class Slow final : public Activity {
public:
    bool step(bool) override { return false; }
    bool try_step(bool) override { return false; }
    void assist() override {
        ++begun;
        while (!go_on) std::this_thread::yield();
        ended = true;
    }
    std::atomic<int> begun{0};
    std::atomic<bool> go_on{false}, ended{false};
};

// What a thread has ended when it finds another at it is looked at by that one.
TEST(ProgressList, WhoComesMeanwhileIsNotForgotten) {
    const auto all = std::make_shared<ProgressList>();
    Slow slow;
    ProgressList::Entry entry = all->enter(slow);
    std::thread helper([&] { all->progress(); });
    while (slow.begun == 0) std::this_thread::yield();
    all->progress();
    slow.go_on = true;
    helper.join();
    EXPECT_EQ(slow.begun, 2);
}

// As one that opens a file of a file system that does not answer.
TEST(ProgressList, OneThatIsSlowHoldsUpNoOther) {
    const auto all = std::make_shared<ProgressList>();
    Slow slow, quick;
    quick.go_on = true;
    ProgressList::Entry entry = all->enter(slow);
    ProgressList::Entry other = all->enter(quick);
    std::thread helper([&] { all->progress(); });
    while (slow.begun == 0) std::this_thread::yield();
    all->progress();
    EXPECT_EQ(quick.begun, 1);
    other.leave();
    EXPECT_FALSE(slow.ended);
    slow.go_on = true;
    helper.join();
}

// A thread that comes while another one drives goes away again.
void expect_left_alone_while_driven(bool whole_load) {
    SpreadRig* all = nullptr;
    std::atomic<bool> somebody_comes{false};
    SpreadRig rig(
        {.gpus = 1,
         .files = {.polls = 1, .fail = [&](const std::string&, Bytes, Bytes) -> std::optional<Error> {
                       if (somebody_comes.exchange(false))
                           std::thread([&] { all->files->progress(); }).join();
                       return std::nullopt;
                   }}});
    all = &rig;
    rig.add_gpus(1, 4_MiB);
    rig.replicate(4_MiB);
    CopyOptions options = chunks_of(64_KiB);
    options.max_staging = 512_KiB;  // more than its start submits
    const EngineHeld held(rig);
    const auto job = whole_load ? rig.submit(options)
                                : rig.engine->submit(Buffer::file("/file0", 0, 4_MiB), rig.spread.memories[0],
                                                     options, nullptr);
    job->step(true);
    somebody_comes = true;
    for (int i = 0; i < 1000 && somebody_comes; ++i) job->step(true);
    EXPECT_FALSE(somebody_comes);
    EXPECT_FALSE(job->assisted());
    rig.engine->wait(job, 0ns);
    EXPECT_TRUE(job->result()) << job->result().error().to_string();
    EXPECT_TRUE(rig.arrived());
}

TEST(ProgressList, WhoComesWhileALoadIsDrivenGoesAway) {
    expect_left_alone_while_driven(true);
}

TEST(ProgressList, WhoComesWhileACopyIsDrivenGoesAway) {
    expect_left_alone_while_driven(false);
}

// Threads of a backend go on with it all the time, and it ends after so many looks.
class Assisted final : public Activity {
public:
    explicit Assisted(int looks) : looks_(looks) {}
    bool step(bool) override {
        assisted_.store(true);
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
TEST(ProgressList, WhoWaitsRestsWhileOthersGoOn) {
    SpreadRig rig({.gpus = 1});
    constexpr int looks = 20;
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(rig.engine->wait(std::make_shared<Assisted>(looks), 0ns));
    EXPECT_GE(std::chrono::steady_clock::now() - start, (looks - 1) * 200us);
}

TEST(ProgressList, NobodyIsAtAnActivityOnceItHasLeft) {
    const auto all = std::make_shared<ProgressList>();
    Slow slow;
    ProgressList::Entry entry = all->enter(slow);
    std::thread helper([&] { all->progress(); });
    while (slow.begun == 0) std::this_thread::yield();
    all->progress();  // over at once: another thread is at it, and has another look
    std::thread opener([&] {
        std::this_thread::sleep_for(5ms);
        slow.go_on = true;
    });
    entry.leave();
    EXPECT_TRUE(slow.ended);
    opener.join();
    helper.join();
    const int begun = slow.begun;
    all->progress();
    EXPECT_EQ(slow.begun, begun);
}

TEST(ProgressList, ACopyThatHasEndedHasLeft) {
    SpreadRig rig({.gpus = 1});
    rig.add_gpus(1, 1_MiB);
    rig.replicate(1_MiB);
    auto job = rig.submit(chunks_of(64_KiB));
    rig.engine->wait(job, 0ns);
    job->assisted();
    rig.files->progress();
    EXPECT_FALSE(job->assisted());
    job.reset();
    rig.files->progress();
    rig.engine.reset();
    rig.files->progress();
}

}  // namespace
}  // namespace sidestep
