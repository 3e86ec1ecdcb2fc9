#include "shims/cufile/task_threads.hpp"

#include <algorithm>
#include <system_error>
#include <thread>

namespace sidestep::cufile {

std::size_t TaskThreads::as_many_as_suit() {
    return std::clamp<std::size_t>(std::thread::hardware_concurrency(), 4, 16);
}

bool TaskThreads::ready() noexcept {
    const std::lock_guard guard(mutex_);
    return started_ > 0 || start_one();
}

bool TaskThreads::start_one() noexcept {
    try {
        std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
        return false;
    }
    ++started_;
    return true;
}

void TaskThreads::run(Task& task) noexcept {
    {
        const std::lock_guard guard(mutex_);
        task.next_ = nullptr;
        (last_ == nullptr ? first_ : last_->next_) = &task;
        last_ = &task;
        ++waiting_;
        // One that cannot be started leaves the task to those that are there.
        if (waiting_ > idle_ && started_ < most_) start_one();
    }
    come_.notify_one();
}

void TaskThreads::serve() noexcept {
    std::unique_lock lock(mutex_);
    for (;;) {
        ++idle_;
        come_.wait(lock, [this] { return first_ != nullptr; });
        --idle_;
        Task* const task = first_;
        first_ = task->next_;
        if (first_ == nullptr) last_ = nullptr;
        --waiting_;
        lock.unlock();
        task->carry_out();
        lock.lock();
    }
}

Task* TaskThreads::unlink(const void* owner) noexcept {
    const std::lock_guard guard(mutex_);
    Task* taken = nullptr;
    Task** end_of_taken = &taken;
    Task** place = &first_;
    last_ = nullptr;
    while (Task* const task = *place) {
        if (task->owner_ == owner) {
            *place = task->next_;
            task->next_ = nullptr;
            *end_of_taken = task;
            end_of_taken = &task->next_;
            --waiting_;
        } else {
            last_ = task;
            place = &task->next_;
        }
    }
    return taken;
}

}  // namespace sidestep::cufile
