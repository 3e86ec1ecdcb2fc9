#include "transfer/driving.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/thread.hpp"

namespace sidestep::transfer {

std::chrono::microseconds Backoff::next() {
    const auto still = Clock::now() - since_;
    const auto longest_look = std::chrono::microseconds(100) + expected_ / 2;
    if (still > expected_ + longest_look) return std::chrono::microseconds(100);
    // A sleep of 50 us lasts up to 110 (the kernel's timer slack), hence the early wake.
    if (still + std::chrono::microseconds(250) < expected_ * 9 / 10) return std::chrono::microseconds(50);
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
        auto activities = activities_;
        lock.unlock();
        const bool moved = step_all(std::move(activities));
        if (*gone) return;
        if (moved) backoff.moved();
        const auto pause = moved ? std::chrono::microseconds(0) : backoff.next();
        lock.lock();
        if (pause.count() > 0 && !stop_) wake_.wait_for(lock, pause);
    }
}

// The calls come last, when nothing of this object or of an activity is held: they may end both.
bool DrivingThread::step_all(std::vector<std::shared_ptr<Activity>> activities) {
    bool moved = false;
    std::vector<std::function<void()>> calls;
    for (auto& activity : activities) {
        if (activity->waiters.load(std::memory_order_relaxed) == 0)
            moved |= activity->try_step(true) && !activity->assisted();
        if (!activity->finished()) continue;
        auto taken = activity->completion().take_calls();
        calls.insert(calls.end(), std::make_move_iterator(taken.begin()),
                     std::make_move_iterator(taken.end()));
    }
    activities.clear();
    for (auto& call : calls) std::exchange(call, nullptr)();
    return moved;
}

}  // namespace sidestep::transfer
