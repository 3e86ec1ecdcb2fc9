#include "transfer/spread_workers.hpp"

#include <algorithm>
#include <system_error>

#include "transfer/spread.hpp"

namespace sidestep::transfer {
namespace {

constexpr unsigned max_workers = 8;

}  // namespace

SpreadWorkers::SpreadWorkers() : max_threads_(std::min(usable_processors(), max_workers)) {}

SpreadWorkers::~SpreadWorkers() {
    drop_queued();
    {
        std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

Result<std::shared_ptr<TaskGroup>> SpreadWorkers::run(std::vector<Task> tasks) {
    auto group = std::make_shared<TaskGroup>();
    group->left_.store(tasks.size(), std::memory_order_relaxed);
    {
        std::lock_guard lock(mutex_);
        if (!start_threads(tasks.size() + queue_.size()))
            return Error{ErrorCode::out_of_memory, "no thread could be started to look at the bytes",
                         "spread", "raise the limit of threads (ulimit -u, the control group's pids.max)"};
        for (Task& task : tasks) queue_.push_back({std::move(task), group});
    }
    wake_.notify_all();
    return group;
}

// With the mutex held. One thread is enough to go on.
bool SpreadWorkers::start_threads(std::size_t wanted) {
    while (threads_.size() < std::min(wanted, max_threads_)) {
        try {
            threads_.emplace_back([this] { work(); });
        } catch (const std::system_error&) {
            break;
        }
    }
    return !threads_.empty();
}

void SpreadWorkers::drop_queued() {
    std::deque<Queued> dropped;
    {
        std::lock_guard lock(mutex_);
        dropped.swap(queue_);
    }
    for (const Queued& queued : dropped) queued.group->left_.fetch_sub(1, std::memory_order_release);
}

void SpreadWorkers::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (stopping_) return;
        Queued next = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        if (auto result = next.task(); !result) {
            std::lock_guard guard(next.group->mutex_);
            if (!next.group->error_) next.group->error_ = result.error();
        }
        next.task = nullptr;  // before the end is told: it may refer to what goes then
        next.group->left_.fetch_sub(1, std::memory_order_acq_rel);
        next.group.reset();
        lock.lock();
    }
}

}  // namespace sidestep::transfer
