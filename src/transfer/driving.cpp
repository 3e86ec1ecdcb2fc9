#include "transfer/driving.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/thread.hpp"

namespace sidestep::transfer {
namespace {

using std::chrono::microseconds;

// While backend threads that read or write carry a movement on, its driver leaves them the processor. It only
// handles the end, and events that no other thread sees.
constexpr auto rest_beside_others = microseconds(200);

// Shorter sleeps last as long as this.
constexpr auto timer_slack = microseconds(50);

// The longest pause between two looks. What comes behind on a caller's stream does not wait so long.
constexpr auto longest_pause = microseconds(40'000);
constexpr auto longest_pause_of_streams = microseconds(1000);

// So long after something moved looks follow one another without a pause: a sleep of 50 us lasts up to 110 (the kernel's
// timer slack), in which slots stay full and readers wait. With few processors looks would keep the readers from theirs.
constexpr auto looks_for = microseconds(100);
constexpr auto looks_for_beside_others = microseconds(500);

// For so long after an activity came the thread naps, and finds the next one at the end of a nap. To wake it would take whoever
// begins something small, or sees its end, about 4 us each (docs/lab-book.md, "Between machines, over TCP").
constexpr auto naps_for = std::chrono::milliseconds(2);
constexpr auto nap_time = microseconds(100);

// Its own thread looks then, and one more would only hold up the driver's calls.
bool driven_by_waiter(const std::shared_ptr<Activity>& activity) {
    return activity->waiters.load() > 0 && !activity->finished();
}

}  // namespace

void Round::add(Activity& activity) {
    driven_beside |= activity.driven_beside();
    moved |= activity.moved_in_look();
    on_stream |= activity.on_stream();
    wake_by = std::min(wake_by, activity.wake_by());
}

void Rest::after(const Round& round, Lookout& lookout, Clock::time_point until) {
    const auto now = Clock::now();
    if (round.moved || round.driven_beside) since_ = now;
    if (round.moved && !round.driven_beside) return;
    const auto pause_until = [&](Clock::duration pause, bool looks = true) {
        lookout.sleep(round.mark, std::min({until, round.wake_by, now + pause}), looks);
    };
    if (round.driven_beside) {
        if (!round.left) return pause_until(rest_beside_others, false);
        // What only a look ends is not seen much later than it could be, however short the whole is.
        const auto rest = std::min<Clock::duration>(rest_beside_others, (now - began_) / 16);
        if (rest >= timer_slack) return pause_until(rest);
        return std::this_thread::yield();
    }
    const auto still = now - since_;
    const auto looks = (lookout.drives_beside() ? looks_for_beside_others : looks_for) + round.expected / 2;
    const auto asleep = round.expected * 9 / 10 - still - microseconds(250);
    if (still <= round.expected + looks) {
        if (asleep > Clock::duration(0))
            return pause_until(std::max<Clock::duration>(asleep / 2, microseconds(50)));
        std::this_thread::yield();
    } else if (!round.left) {
        lookout.sleep(round.mark, std::min(until, round.wake_by), false);
    } else {
        // So an end is seen at most a sixteenth later than it could be, and what hangs costs nothing.
        const Clock::duration longest = round.on_stream ? longest_pause_of_streams : longest_pause;
        pause_until(std::min(std::max<Clock::duration>(still / 16, microseconds(100)), longest));
    }
}

void DrivingThread::add(std::shared_ptr<Activity> activity) {
    activity->in_background.store(true);
    {
        std::lock_guard lock(mutex_);
        const bool known = std::ranges::find(activities_, activity) != activities_.end();
        if (!known) activities_.push_back(std::move(activity));
        added_ = true;
        naps_until_ = Lookout::Clock::now() + naps_for;
        start();
    }
    wake(false);
}

// With something to drive the thread sleeps at the lookout, else at the condition.
void DrivingThread::wake(bool from_nap) {
    {
        std::lock_guard lock(mutex_);
        if (naps_ && !from_nap) return;
        woken_ = true;
    }
    wake_.notify_all();
    lookout_->ring();
}

// There is nothing to do, or whoever waits does it. With the mutex held.
void DrivingThread::nap(std::unique_lock<std::mutex>& lock) {
    const auto woken = [&] { return woken_ || stop_; };
    naps_ = Lookout::Clock::now() < naps_until_;
    naps_ ? static_cast<void>(wake_.wait_for(lock, nap_time, woken)) : wake_.wait(lock, woken);
    naps_ = woken_ = false;
}

// With the mutex held. The next activity tries again.
void DrivingThread::start() {
    if (thread_.joinable()) return;
    auto started = base::start_thread([this] { drive(); }, "copies");
    if (started)
        thread_ = std::move(*started);
    else
        base::log(base::LogLevel::warn, fmt::format("copies go on only while somebody waits for them: {}",
                                                    started.error().to_string()));
}

std::vector<std::shared_ptr<Activity>> DrivingThread::stop() {
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
    }
    wake();
    if (thread_.get_id() == std::this_thread::get_id()) {
        *gone_ = true;
        thread_.detach();
    } else if (thread_.joinable()) {
        thread_.join();
    }
    return std::exchange(activities_, {});
}

void DrivingThread::drive() {
    const std::shared_ptr<const bool> gone = gone_;
    const std::shared_ptr<Lookout> lookout = lookout_;
    Rest rest;
    std::unique_lock lock(mutex_);
    while (!stop_) {
        if (std::ranges::all_of(activities_, driven_by_waiter)) {
            nap(lock);
            rest = Rest();
            continue;
        }
        if (std::exchange(added_, false)) rest = Rest();
        const Lookout::Mark mark = lookout->mark();
        auto activities = activities_;
        lock.unlock();
        Round round = step_all(std::move(activities));
        if (*gone) return;
        round.mark = mark;
        rest.after(round, *lookout);
        lock.lock();
    }
}

// The ends of activities, with what these keep, and the calls come last, when no lock is held: they may end this object.
Round DrivingThread::step_all(std::vector<std::shared_ptr<Activity>> activities) {
    Round round;
    round.left = lookout_->look();
    std::vector<std::function<void()>> calls;
    for (auto& activity : activities) {
        if (activity->waiters.load() == 0) {
            round.moved |= activity->try_step(true);
            round.add(*activity);
        }
        if (!activity->finished()) continue;
        auto taken = activity->completion().take_calls();
        std::ranges::move(taken, std::back_inserter(calls));
    }
    {
        const std::lock_guard lock(mutex_);
        std::erase_if(activities_, [](const auto& activity) {
            return activity->finished() && activity->drained() && !activity->completion().has_calls();
        });
    }
    activities.clear();
    for (auto& call : calls) std::exchange(call, nullptr)();
    return round;
}

}  // namespace sidestep::transfer
