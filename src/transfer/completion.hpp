// Who is told that an activity has ended: an event loop, through a descriptor, and calls that wait for it.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/try.hpp"
#include "driver/event_fd.hpp"

namespace sidestep::transfer {

// Safe to use from several threads.
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

}  // namespace sidestep::transfer
