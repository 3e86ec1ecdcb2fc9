#include "base/aside.hpp"

#include <utility>

#include "base/thread.hpp"

namespace sidestep::base {

Aside::~Aside() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
}

Aside::Number Aside::add(std::function<void()> call) {
    std::unique_lock lock(mutex_);
    ++added_;
    if (!thread_.joinable()) {
        auto started = start_thread([this] { work(); }, "calls that may block");
        if (!started) {
            call();
            return over_ = added_;
        }
        thread_ = std::move(*started);
    }
    calls_.push_back(std::move(call));
    wake_.notify_all();
    return added_;
}

bool Aside::wait(Number call, std::chrono::nanoseconds patience) const {
    std::unique_lock lock(mutex_);
    return ended_.wait_for(lock, patience, [&] { return over_ >= call; });
}

void Aside::drop() {
    const std::lock_guard lock(mutex_);
    added_ -= calls_.size();
    calls_.clear();
}

bool Aside::busy() const {
    const std::lock_guard lock(mutex_);
    return calling_ || !calls_.empty();
}

void Aside::wait_until_idle() const {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return !calling_ && calls_.empty(); });
}

void Aside::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return stop_ || !calls_.empty(); });
        if (stop_) return;
        const std::function<void()> call = std::exchange(calls_.front(), nullptr);
        calls_.pop_front();
        calling_ = true;
        lock.unlock();
        call();
        lock.lock();
        calling_ = false;
        ++over_;
        ended_.notify_all();
    }
}

}  // namespace sidestep::base
