// Who drives activities that nobody waits for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "transfer/activity.hpp"

namespace sidestep::transfer {

// While threads that read or write go on with a copy, whoever drives it leaves its processor to them, and is there for
// its end, and for what nobody else sees.
constexpr auto rest_beside_assistants = std::chrono::microseconds(200);

// How long a driver that sees nothing move waits before it looks again. A copy is looked at again and
// again from shortly before its expected end until well after it, so that the end is seen at once; at
// other times the core is left to those who move bytes, and the longer nothing moves the longer.
class Backoff {
public:
    using Clock = std::chrono::steady_clock;

    explicit Backoff(Clock::duration expected = {}) : expected_(expected) {}
    void moved() { since_ = Clock::now(); }
    // Zero: look again at once. `on_stream`: something of what is driven is on a caller's stream.
    std::chrono::microseconds next(bool on_stream);

private:
    Clock::duration expected_;
    Clock::time_point since_ = Clock::now();
};

// A thread that steps activities until they have ended and nothing of them is in flight, and then makes the
// calls that wait for them. Starts with the first one. Where no thread can be had, whoever waits is left to step
// them, and calls wait for the next try. Safe to use from several threads.
class DrivingThread {
public:
    DrivingThread() = default;
    ~DrivingThread();

    void add(std::shared_ptr<Activity> activity);

    // Ends the thread and hands over what it still had. A call that the thread makes may come here, when it
    // dropped the last handle of the engine: the thread then ends as soon as that call returns, without a
    // look at this object.
    std::vector<std::shared_ptr<Activity>> stop();

private:
    void start();
    void drive();
    // What a round came to: the largest of its activities. Bytes that others move need no look.
    enum class Seen { nothing, assisted, moved };
    Seen step_all(std::vector<std::shared_ptr<Activity>> activities);

    const std::shared_ptr<bool> gone_ = std::make_shared<bool>(false);  // seen by the thread alone

    std::mutex mutex_;  // guards what follows
    std::condition_variable wake_;
    std::vector<std::shared_ptr<Activity>> activities_;
    std::thread thread_;
    bool stop_ = false;
    bool added_ = false;  // an activity, since the last round began
};

}  // namespace sidestep::transfer
