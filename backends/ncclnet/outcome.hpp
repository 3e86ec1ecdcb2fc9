// What comes of something that the pump's thread does, which may never end.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include <sidestep/result.hpp>

namespace sidestep::backends::ncclnet {

// Any thread. In a shared_ptr: who waits may have gone when it is told.
class Outcome {
public:
    void tell(Result<void> what) {
        const std::lock_guard lock(mutex_);
        result_ = std::move(what);
        over_.notify_all();
    }
    // Nothing where that time was not enough.
    std::optional<Result<void>> wait(std::chrono::milliseconds patience) {
        std::unique_lock lock(mutex_);
        over_.wait_for(lock, patience, [&] { return result_.has_value(); });
        return result_;
    }

private:
    std::mutex mutex_;  // guards what follows
    std::condition_variable over_;
    std::optional<Result<void>> result_;
};

}  // namespace sidestep::backends::ncclnet
