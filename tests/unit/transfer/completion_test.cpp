// Who is told that a copy has ended: descriptors and coroutines, over a scripted backend.
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <coroutine>
#include <deque>
#include <thread>

#include <sidestep/transfer.hpp>
#include "fake_backend.hpp"
#include "transfer/engine.hpp"

namespace sidestep {

// The door by which the context makes Transfers; here without one.
struct ContextAccess {
    static Transfer make(std::shared_ptr<transfer::Engine> engine,
                         std::shared_ptr<transfer::Activity> activity) {
        return Transfer(std::move(engine), std::move(activity));
    }
};

namespace {

using namespace std::chrono_literals;
using test::FakeBackend;

bool readable(int descriptor, int wait_ms = 0) {
    pollfd entry{descriptor, POLLIN, 0};
    return ::poll(&entry, 1, wait_ms) == 1 && (entry.revents & POLLIN) != 0;
}

bool is_open(int descriptor) {
    pollfd entry{descriptor, POLLIN, 0};
    return ::poll(&entry, 1, 0) >= 0 && (entry.revents & POLLNVAL) == 0;
}

struct TransferRig {
    explicit TransferRig(FakeBackend::Script script) {
        Topology::Parts parts;
        parts.name = "test";
        parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0});
        parts.devices.push_back({DeviceKind::gpu, 0, "gpu:0", "", "", 0, 1_GiB});
        parts.links.push_back({0, 1, LinkKind::pcie, 16, 50, 1});
        topology.emplace(*Topology::create(std::move(parts)));
        auto owned = std::make_unique<FakeBackend>(std::move(script));
        fake = owned.get();
        registry.add(std::move(owned), *topology);
        source = *fake->allocate(Place::host(), 1_MiB, MemoryKind::pinned);
        target = *fake->allocate(Place::gpu(0), 1_MiB, MemoryKind::device);
        engine = std::make_shared<transfer::Engine>(*topology, registry);
    }
    // One piece of pinned memory: nobody drives it by itself.
    Transfer copy(const CopyOptions& options = {}) {
        return ContextAccess::make(engine,
                                   engine->submit(source.buffer(), target.buffer(), options, nullptr));
    }

    std::optional<Topology> topology;
    backend::Registry registry;
    FakeBackend* fake = nullptr;
    Allocation source, target;
    std::shared_ptr<transfer::Engine> engine;
};

// What a test waits for, without a limit that a slow machine could miss.
class Signal {
public:
    void give() {
        std::lock_guard lock(mutex_);
        given_ = true;
        wake_.notify_all();
    }
    void wait() {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return given_; });
    }

private:
    std::mutex mutex_;
    std::condition_variable wake_;
    bool given_ = false;
};

// A coroutine that starts at once and belongs to whoever holds its handle, until it ends by itself.
struct DetachedTask {
    struct promise_type {
        DetachedTask get_return_object() {
            return {std::coroutine_handle<promise_type>::from_promise(*this)};
        }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { std::terminate(); }
    };
    std::coroutine_handle<promise_type> frame;
};

struct Seen {
    std::optional<Result<Receipt>> result;
    std::thread::id where;
    int times = 0;
    Signal signal;
};

DetachedTask wait_for(Transfer transfer, Seen& seen) {
    Result<Receipt> result = co_await std::move(transfer);
    seen.result = std::move(result);
    seen.where = std::this_thread::get_id();
    ++seen.times;
    seen.signal.give();
}

DetachedTask wait_on(Transfer transfer, Executor executor, Seen& seen) {
    Result<Receipt> result = co_await std::move(transfer).resume_on(std::move(executor));
    seen.result = std::move(result);
    seen.where = std::this_thread::get_id();
    ++seen.times;
}

TEST(Completion, CallsAreKeptUntilTheEndAndTakenOnce) {
    transfer::Completion completion;
    int called = 0;
    EXPECT_TRUE(completion.keep([&] { ++called; }));
    EXPECT_TRUE(completion.has_calls());
    EXPECT_TRUE(completion.take_calls().empty()) << "not before the end";
    completion.ended();
    completion.ended();
    for (auto& call : completion.take_calls()) call();
    EXPECT_EQ(called, 1);
    EXPECT_TRUE(completion.take_calls().empty());
    EXPECT_FALSE(completion.keep([&] { ++called; })) << "too late: the caller goes on by itself";
    EXPECT_FALSE(completion.has_calls());
}

TEST(EventFd, BecomesReadableWhenTheCopyHasEnded) {
    std::atomic<bool> hang{true};
    TransferRig rig({.looks = 0, .hang = [&](std::size_t) { return hang.load(); }});
    Transfer transfer = rig.copy();
    const auto descriptor = transfer.event_fd();
    ASSERT_TRUE(descriptor) << descriptor.error().to_string();
    EXPECT_FALSE(readable(*descriptor, 5));
    EXPECT_EQ(*transfer.event_fd(), *descriptor) << "one a transfer";
    hang = false;
    ASSERT_TRUE(readable(*descriptor, 60'000)) << "nobody waits and nobody polls: the engine drives";
    const auto result = transfer.poll();
    ASSERT_TRUE(result);
    EXPECT_TRUE(*result);
    EXPECT_TRUE(readable(*descriptor)) << "it stays so";
}

TEST(EventFd, AskedForAfterTheEnd) {
    TransferRig rig({});
    Transfer transfer = rig.copy();
    ASSERT_TRUE(transfer.wait());
    const auto descriptor = transfer.event_fd();
    ASSERT_TRUE(descriptor);
    EXPECT_TRUE(readable(*descriptor));
}

TEST(EventFd, TellsOfFailureAndCancellation) {
    std::atomic<bool> hang{true};
    TransferRig rig({.looks = 0, .hang = [&](std::size_t) { return hang.load(); }});
    Transfer transfer = rig.copy();
    const auto descriptor = transfer.event_fd();
    ASSERT_TRUE(descriptor);
    transfer.cancel();
    EXPECT_FALSE(readable(*descriptor, 5)) << "a piece is in flight";
    hang = false;
    ASSERT_TRUE(readable(*descriptor, 60'000));
    EXPECT_EQ(transfer.poll()->error().code, ErrorCode::cancelled);
}

TEST(EventFd, GoesWithItsTransfer) {
    TransferRig rig({});
    int descriptor = -1;
    {
        Transfer transfer = rig.copy();
        descriptor = *transfer.event_fd();
        Transfer moved = std::move(transfer);
        EXPECT_TRUE(is_open(descriptor));
    }
    EXPECT_FALSE(is_open(descriptor));
}

TEST(Coroutine, GoesOnOnTheEnginesThread) {
    std::atomic<bool> hang{true};
    TransferRig rig({.looks = 0, .hang = [&](std::size_t) { return hang.load(); }});
    Seen seen;
    wait_for(rig.copy(), seen);
    EXPECT_EQ(seen.times, 0) << "it waits";
    hang = false;
    seen.signal.wait();
    ASSERT_TRUE(seen.result && *seen.result) << seen.result->error().to_string();
    EXPECT_EQ((*seen.result)->bytes, 1_MiB);
    EXPECT_NE(seen.where, std::this_thread::get_id());
    EXPECT_EQ(seen.times, 1);
}

TEST(Coroutine, DoesNotWaitForWhatHasEnded) {
    TransferRig rig({});
    Transfer transfer = rig.copy();
    ASSERT_TRUE(transfer.wait());
    Seen seen;
    wait_for(std::move(transfer), seen);
    EXPECT_EQ(seen.times, 1);
    EXPECT_EQ(seen.where, std::this_thread::get_id());
}

TEST(Coroutine, GetsTheError) {
    TransferRig rig({.looks = 3, .fail_end = [](std::size_t) -> std::optional<Error> {
                         return Error{ErrorCode::device_error, "scripted failure", "fake", {}};
                     }});
    Seen seen;
    wait_for(rig.copy(), seen);
    seen.signal.wait();
    ASSERT_TRUE(seen.result);
    ASSERT_FALSE(*seen.result);
    EXPECT_EQ(seen.result->error().message, "scripted failure");
}

TEST(Coroutine, MayDropTheLastHandleOfTheEngine) {
    std::atomic<bool> hang{true};
    TransferRig rig({.looks = 0, .hang = [&](std::size_t) { return hang.load(); }});
    Seen seen;
    Signal gone;
    std::thread::id where;
    const auto end = [&](transfer::Engine* engine) {
        where = std::this_thread::get_id();
        delete engine;
        gone.give();
    };
    rig.engine = std::shared_ptr<transfer::Engine>(new transfer::Engine(*rig.topology, rig.registry), end);
    wait_for(rig.copy(), seen);
    rig.engine.reset();  // the transfer keeps it
    hang = false;
    gone.wait();
    seen.signal.wait();
    EXPECT_TRUE(*seen.result);
    EXPECT_EQ(where, seen.where) << "on its own thread";
}

TEST(Coroutine, GoesOnWhereTheExecutorSays) {
    std::atomic<bool> hang{true};
    TransferRig rig({.looks = 0, .hang = [&](std::size_t) { return hang.load(); }});
    Seen seen;
    std::function<void()> posted;
    Signal told;
    wait_on(
        rig.copy(),
        [&](std::function<void()> go_on) {
            posted = std::move(go_on);
            told.give();
        },
        seen);
    hang = false;
    told.wait();
    EXPECT_EQ(seen.times, 0);
    posted();
    EXPECT_EQ(seen.times, 1);
    EXPECT_EQ(seen.where, std::this_thread::get_id());
    EXPECT_TRUE(*seen.result);
    posted();
    EXPECT_EQ(seen.times, 1) << "resumed once, however often it is called";
}

TEST(Coroutine, AFrameThatIsDestroyedIsNotResumed) {
    std::atomic<bool> hang{true};
    TransferRig rig({.looks = 0, .hang = [&](std::size_t) { return hang.load(); }});
    Seen seen;
    std::function<void()> posted;
    Signal told;
    const DetachedTask task = wait_on(
        rig.copy(),
        [&](std::function<void()> go_on) {
            posted = std::move(go_on);
            told.give();
        },
        seen);
    hang = false;
    told.wait();
    task.frame.destroy();
    posted();
    EXPECT_EQ(seen.times, 0);
}

TEST(Coroutine, DestroyingAFrameThatWaitsCancelsAndDrains) {
    std::atomic<bool> hang{true};
    TransferRig rig({.looks = 0, .hang = [&](std::size_t) { return hang.load(); }});
    Seen seen;
    Signal told;
    const DetachedTask task = wait_on(
        rig.copy(), [&](std::function<void()>) { told.give(); }, seen);
    std::thread release([&] {
        std::this_thread::sleep_for(5ms);
        hang = false;
    });
    task.frame.destroy();  // waits for the piece in flight
    EXPECT_EQ(rig.fake->in_flight, 0);
    EXPECT_EQ(rig.fake->attached, 0);
    EXPECT_EQ(seen.times, 0);
    release.join();
    // The executor is told of the end all the same, and what it is given does nothing.
    rig.engine.reset();
}

}  // namespace
}  // namespace sidestep
