// Drives activities that have no waiting caller.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "transfer/activity.hpp"
#include "transfer/lookout.hpp"

namespace sidestep::transfer {

// What a driver saw in a round: a look, and a step of what it drives.
struct Round {
    Lookout::Mark mark;  // read before
    bool left = false;   // pieces are in flight whose ends only a look tells of
    bool moved = false;
    bool driven_beside = false;           // threads of backends went on with it
    bool on_stream = false;               // something of it is on a caller's stream
    Lookout::Clock::duration expected{};  // from the last move to the next end; zero: not known
    Lookout::Clock::time_point wake_by = Lookout::Clock::time_point::max();

    void add(Activity& activity);  // after its step
};

// How a driver rests between two rounds. It sleeps until it is woken or a time limit is due. Some ends are
// only seen by looking: for those it looks again and again, from shortly before the expected end until well
// after it, so that it sees the end at once. At other times it leaves the core to the threads that move
// bytes, and the longer nothing moves, the longer it sleeps.
class Rest {
public:
    using Clock = Lookout::Clock;

    // After a round; returns at once where another is worth while. Not beyond `until`.
    void after(const Round& round, Lookout& lookout, Clock::time_point until = Clock::time_point::max());

private:
    Clock::time_point began_ = Clock::now();
    Clock::time_point since_ = began_;  // something moved
};

// A thread that steps activities until they have ended and nothing of them is in flight, and then makes the
// calls that wait for them. Starts with the first one. Where no thread can be had, whoever waits is left to step
// them, and calls wait for the next try. Safe to use from several threads.
class DrivingThread {
public:
    explicit DrivingThread(std::shared_ptr<Lookout> lookout) : lookout_(std::move(lookout)) {}
    ~DrivingThread() { stop(); }

    // The thread comes to it when its nap is over: nearly always somebody waits for it before that.
    void add(std::shared_ptr<Activity> activity);

    // It looks what there is to do. `from_nap` false: a nap is left to end by itself, which takes nap_time at most.
    void wake(bool from_nap = true);

    // Ends the thread and hands over what it still had. A call that the thread makes may come here, when it
    // dropped the last handle of the engine: the thread then ends as soon as that call returns, without a
    // look at this object.
    std::vector<std::shared_ptr<Activity>> stop();

private:
    void start();
    void drive();
    void nap(std::unique_lock<std::mutex>& lock);
    Round step_all(std::vector<std::shared_ptr<Activity>> activities);

    const std::shared_ptr<bool> gone_ = std::make_shared<bool>(false);  // seen by the thread alone
    const std::shared_ptr<Lookout> lookout_;

    std::mutex mutex_;  // guards what follows
    std::condition_variable wake_;
    std::vector<std::shared_ptr<Activity>> activities_;
    std::thread thread_;
    bool stop_ = false;
    bool added_ = false;  // an activity, since the last round began
    bool naps_ = false, woken_ = false;
    Lookout::Clock::time_point naps_until_;
};

}  // namespace sidestep::transfer
