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

// The longest sleep: limits are seen so late, and whoever cancels waits so long. What comes behind on a caller's stream
// does not.
constexpr auto longest_pause = std::chrono::microseconds(40'000);
constexpr auto longest_pause_of_streams = std::chrono::microseconds(1000);

std::chrono::microseconds pause_of(Backoff::Clock::duration wanted, bool on_stream) {
    return std::chrono::duration_cast<std::chrono::microseconds>(
        std::min<Backoff::Clock::duration>(wanted, on_stream ? longest_pause_of_streams : longest_pause));
}

}  // namespace

std::chrono::microseconds Backoff::next(bool on_stream) {
    using std::chrono::microseconds;
    const auto still = Clock::now() - since_;
    const auto longest_look = microseconds(100) + expected_ / 2;
    // So an end is seen at most a sixteenth later than it could be, and what hangs costs nothing.
    if (still > expected_ + longest_look)
        return pause_of(std::max<Clock::duration>(still / 16, microseconds(100)), on_stream);
    // A sleep of 50 us lasts up to 110 (the kernel's timer slack), hence the early wake.
    const auto asleep = expected_ * 9 / 10 - still - microseconds(250);
    if (asleep > Clock::duration(0))
        return pause_of(std::max<Clock::duration>(asleep / 2, microseconds(50)), on_stream);
    std::this_thread::yield();
    return std::chrono::microseconds(0);
}

DrivingThread::~DrivingThread() {
    stop();
}

void DrivingThread::add(std::shared_ptr<Activity> activity) {
    {
        std::lock_guard lock(mutex_);
        const bool known = std::find(activities_.begin(), activities_.end(), activity) != activities_.end();
        if (!known) activities_.push_back(std::move(activity));
        added_ = true;
        start();
    }
    wake_.notify_one();
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
    wake_.notify_all();
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
    Backoff backoff;
    std::unique_lock lock(mutex_);
    while (!stop_) {
        std::erase_if(activities_, [](const auto& activity) {
            return activity->finished() && activity->drained() && !activity->completion().has_calls();
        });
        if (activities_.empty()) {
            wake_.wait(lock);
            backoff.moved();
            continue;
        }
        if (std::exchange(added_, false)) backoff.moved();
        auto activities = activities_;
        const bool on_stream = std::any_of(activities.begin(), activities.end(),
                                           [](const auto& activity) { return activity->on_stream(); });
        lock.unlock();
        const Seen seen = step_all(std::move(activities));
        if (*gone) return;
        if (seen != Seen::nothing) backoff.moved();
        const auto pause = seen == Seen::moved      ? std::chrono::microseconds(0)
                           : seen == Seen::assisted ? rest_beside_assistants
                                                    : backoff.next(on_stream);
        lock.lock();
        if (pause.count() > 0) wake_.wait_for(lock, pause, [this] { return stop_ || added_; });
    }
}

// The calls come last, when nothing of this object or of an activity is held: they may end both.
DrivingThread::Seen DrivingThread::step_all(std::vector<std::shared_ptr<Activity>> activities) {
    Seen seen = Seen::nothing;
    std::vector<std::function<void()>> calls;
    for (auto& activity : activities) {
        if (activity->waiters.load(std::memory_order_relaxed) == 0) {
            const bool moved = activity->try_step(true);
            const bool assisted = activity->assisted();
            seen = std::max(seen, assisted ? Seen::assisted : moved ? Seen::moved : Seen::nothing);
        }
        if (!activity->finished()) continue;
        auto taken = activity->completion().take_calls();
        calls.insert(calls.end(), std::make_move_iterator(taken.begin()),
                     std::make_move_iterator(taken.end()));
    }
    activities.clear();
    for (auto& call : calls) std::exchange(call, nullptr)();
    return seen;
}

}  // namespace sidestep::transfer
