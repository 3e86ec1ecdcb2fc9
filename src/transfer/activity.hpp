// Something in flight that ends in a Receipt, as its waiter and its driver see it, and who is told of its end.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sidestep/receipt.hpp>
#include <sidestep/result.hpp>
#include "base/try.hpp"
#include "driver/event_fd.hpp"

namespace sidestep::transfer {

// Who is told that an activity has ended: an event loop, through a descriptor, and calls that wait for it. Safe to use from
// several threads.
class Completion {
public:
    // Readable once ended() was called. Made at the first call; belongs to this object.
    Result<int> event_fd() {
        std::lock_guard lock(mutex_);
        if (!event_fd_) {
            SIDESTEP_TRY(auto made, driver::EventFd::create());
            event_fd_.emplace(std::move(made));
            if (ended_) event_fd_->signal();
        }
        return event_fd_->get();
    }

    // The descriptor is no longer watched.
    void close_event_fd() {
        std::lock_guard lock(mutex_);
        event_fd_.reset();
    }

    // Keeps a call for take_calls(), once. False where the end has come already: then it is not kept.
    bool keep(std::function<void()> call) {
        std::lock_guard lock(mutex_);
        if (ended_) return false;
        calls_.push_back(std::move(call));
        return true;
    }

    // The calls to make. The caller makes them without a lock: a call may destroy the activity's last
    // handle. Empty before the end.
    std::vector<std::function<void()>> take_calls() {
        std::lock_guard lock(mutex_);
        if (!ended_) return {};
        return std::exchange(calls_, {});
    }
    bool has_calls() const {
        std::lock_guard lock(mutex_);
        return !calls_.empty();
    }

    // The end has come. May be called again, and under locks: it makes no call.
    void ended() {
        std::lock_guard lock(mutex_);
        if (std::exchange(ended_, true)) return;
        if (event_fd_) event_fd_->signal();
    }

private:
    mutable std::mutex mutex_;
    bool ended_ = false;
    std::optional<driver::EventFd> event_fd_;
    std::vector<std::function<void()>> calls_;
};

// step() and try_step() may come from any thread; implementations serialise them.
class Activity {
public:
    using Clock = std::chrono::steady_clock;

    virtual ~Activity() = default;

    // Goes on as far as it can without waiting; answers whether anything moved. With `may_block` it also
    // makes a written target final, which can wait for a device. Ends no pieces: whoever steps looks first
    // (Lookout::look).
    virtual bool step(bool may_block) = 0;
    // The same if nobody else is driving right now.
    virtual bool try_step(bool may_block) = 0;

    // Since the last question threads of backends went on with it, or a look of somebody who drives did.
    bool driven_beside() { return driven_beside_.exchange(false, std::memory_order_relaxed); }
    bool moved_in_look() { return moved_in_look_.exchange(false, std::memory_order_relaxed); }
    // What the next step waits for has come.
    bool wants_step() const { return wants_step_.load(std::memory_order_relaxed); }
    // When it has to be stepped again, whatever happens before; as of the last step.
    Clock::time_point wake_by() const { return wake_by_.load(std::memory_order_relaxed); }

    // Its steps begin whole copies, which may block for a while.
    virtual bool starts_copies() const { return false; }

    virtual void cancel() { cancel_.store(true, std::memory_order_relaxed); }

    // After the end: the caller has the result, or (not `seen`) has dropped its handle.
    virtual void hand_over(bool seen) { static_cast<void>(seen); }

    // The result is there. Stays true.
    bool finished() const { return finished_.load(std::memory_order_acquire); }
    // Nothing is in flight any more, and no stream is held: the activity may be destroyed.
    bool drained() const { return drained_.load(std::memory_order_acquire); }
    // It ends only if a thread calls step(): there is more to start, or the target to make final.
    bool needs_driving() const { return needs_driving_ && !finished(); }

    // In a child of fork(), which has nobody who would drive it. Tells no one: descriptors are the parent's too.
    void abandon(Error error) {
        result_.emplace(std::move(error));
        drained_.store(true, std::memory_order_relaxed);
        finished_.store(true, std::memory_order_release);
    }

    // It has ended, and pieces in flight may still read or write its buffers; no longer than the drain limit.
    bool touches_buffers() const { return touches_buffers_.load(std::memory_order_acquire); }

    // Only once finished() is true.
    Result<Receipt>& result() { return *result_; }

    Bytes bytes_done() const { return done_.load(std::memory_order_relaxed); }
    Bytes bytes_total() const { return total_.load(std::memory_order_relaxed); }

    // How long what ends next should take by the route's prices; zero where that is not known, or where the machine is a
    // model.
    Clock::duration expected() const { return expected_; }

    // Adds to the Receipt's notes, by whoever submitted, before anybody else has the activity. Without effect
    // unless it has ended well by then.
    void add_note(std::string text) {
        if (finished() && *result_) (*result_)->notes.push_back(std::move(text));
    }

    // By whoever submits it, before others have it. What its buffers count on goes once nothing is in flight any more.
    void count_on(std::shared_ptr<void> held) { held_ = std::move(held); }
    // By whoever has its handle. `owner` goes with the activity.
    void keep(std::shared_ptr<const void> owner) { owners_.push_back(std::move(owner)); }

    // It has a place on a caller's stream, which may come to it after any time. Constant after the start.
    bool on_stream() const { return on_stream_; }

    // Called at the end.
    Completion& completion() { return completion_; }

    // Set while a caller drives, so that the engine's thread leaves it alone.
    std::atomic<int> waiters{0};
    // That thread has it.
    std::atomic<bool> in_background{false};

protected:
    bool cancelled() const { return cancel_.load(std::memory_order_relaxed); }

    // Publishes the result; called after result_ is set, possibly again when the last piece has ended.
    void finish() {
        finished_.store(true, std::memory_order_release);
        completion_.ended();
    }

    std::optional<Result<Receipt>> result_;
    std::atomic<bool> needs_driving_{true};
    bool on_stream_ = false;
    std::atomic<bool> driven_beside_{false}, moved_in_look_{false}, wants_step_{false};
    std::atomic<Clock::time_point> wake_by_{Clock::time_point::max()};
    std::atomic<Clock::duration> expected_{Clock::duration(0)};
    std::atomic<bool> touches_buffers_{false}, drained_{false};
    std::atomic<Bytes> done_{0}, total_{0};
    std::shared_ptr<void> held_;

private:
    std::atomic<bool> cancel_{false}, finished_{false};
    std::vector<std::shared_ptr<const void>> owners_;
    Completion completion_;
};

// One that was over before it could be in flight.
class EndedActivity final : public Activity {
public:
    explicit EndedActivity(Result<Receipt>&& outcome) {
        const Bytes moved = outcome ? outcome->bytes : 0;
        done_.store(moved, std::memory_order_relaxed);
        total_.store(moved, std::memory_order_relaxed);
        result_.emplace(std::move(outcome));
        drained_.store(true, std::memory_order_relaxed);
        finish();
    }
    bool step(bool) override { return false; }
    bool try_step(bool) override { return false; }
};

}  // namespace sidestep::transfer
