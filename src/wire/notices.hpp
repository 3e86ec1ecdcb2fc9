// What clients told this node, until a program here takes it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <sidestep/network.hpp>
#include <sidestep/result.hpp>

namespace sidestep::wire {

// Any thread.
class Notices {
public:
    // At most so many wait; 0: none are taken.
    explicit Notices(std::size_t most) : most_(most) {}

    // unsupported where none are taken, out_of_memory where the most wait.
    Result<void> put(Notification notice) {
        if (most_ == 0)
            return Error{ErrorCode::unsupported, "this node takes no notifications", "node",
                         "set ServeOptions::notifications where it serves"};
        std::lock_guard lock(mutex_);
        if (waiting_.size() >= most_)
            return Error{ErrorCode::out_of_memory, "as many notifications wait there as the node keeps",
                         "node", "the program that serves has to take them (Serving::next_notification)"};
        waiting_.push_back(std::move(notice));
        there_.notify_one();
        return {};
    }
    // The oldest; nothing where none has come by then.
    std::optional<Notification> take(std::chrono::steady_clock::time_point until) {
        std::unique_lock lock(mutex_);
        if (!there_.wait_until(lock, until, [this] { return !waiting_.empty(); })) return std::nullopt;
        Notification notice = std::move(waiting_.front());
        waiting_.pop_front();
        return notice;
    }

private:
    const std::size_t most_;
    std::mutex mutex_;
    std::condition_variable there_;
    std::deque<Notification> waiting_;
};

}  // namespace sidestep::wire
