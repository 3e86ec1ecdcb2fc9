#include "transfer/completion.hpp"

#include <utility>

#include "base/try.hpp"

namespace sidestep::transfer {

Result<int> Completion::event_fd() {
    std::lock_guard lock(mutex_);
    if (!event_fd_) {
        SIDESTEP_TRY(auto made, driver::EventFd::create());
        event_fd_.emplace(std::move(made));
        if (ended_) event_fd_->signal();
    }
    return event_fd_->get();
}

void Completion::close_event_fd() {
    std::lock_guard lock(mutex_);
    event_fd_.reset();
}

bool Completion::keep(std::function<void()> call) {
    std::lock_guard lock(mutex_);
    if (ended_) return false;
    calls_.push_back(std::move(call));
    return true;
}

std::vector<std::function<void()>> Completion::take_calls() {
    std::lock_guard lock(mutex_);
    if (!ended_) return {};
    return std::exchange(calls_, {});
}

bool Completion::has_calls() const {
    std::lock_guard lock(mutex_);
    return !calls_.empty();
}

void Completion::ended() {
    std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true)) return;
    if (event_fd_) event_fd_->signal();
}

}  // namespace sidestep::transfer
