#include "base/workers.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/thread.hpp"

namespace sidestep::base {
namespace {

constexpr std::chrono::seconds end_limit{1};

}  // namespace

// Outlives the object where a thread hangs.
struct Workers::Shared {
    const Limits limits;
    const std::string name;
    const Task first;

    std::mutex mutex;  // guards what follows
    std::condition_variable wake;
    std::condition_variable changed;  // a task has ended, or a thread
    std::deque<Task> queue;
    std::size_t threads = 0;
    std::size_t busy = 0;
    std::chrono::steady_clock::time_point last_begun;
    bool stopping = false;
    bool hangs = false;
};

Workers::Workers(Limits limits, std::string name, Task first)
    : shared_(new Shared{limits, std::move(name), std::move(first), {}, {}, {}, {}, 0, 0, {}, false, false}) {
}

Workers::~Workers() {
    std::unique_lock lock(shared_->mutex);
    shared_->stopping = true;
    shared_->wake.notify_all();
    shared_->changed.wait(lock, [this] { return shared_->hangs || shared_->threads == 0; });
}

Result<void> Workers::add(Task task) {
    std::vector<Task> one;
    one.push_back(std::move(task));
    return add(std::move(one));
}

Result<void> Workers::add(std::vector<Task> tasks) {
    const std::size_t count = tasks.size();
    {
        const std::lock_guard lock(shared_->mutex);
        std::deque<Task>& queue = shared_->queue;
        if (count > shared_->limits.queued - std::min(queue.size(), shared_->limits.queued))
            return Error{ErrorCode::out_of_memory, fmt::format("{} tasks are waiting already", queue.size()),
                         shared_->name, "wait for some of them before starting more"};
        queue.insert(queue.end(), std::make_move_iterator(tasks.begin()),
                     std::make_move_iterator(tasks.end()));
        if (!start_threads()) {
            queue.resize(queue.size() - count);
            return Error{ErrorCode::out_of_memory, "no thread could be started", shared_->name,
                         "raise the limit of threads (ulimit -u, the control group's pids.max)"};
        }
    }
    count == 1 ? shared_->wake.notify_one() : shared_->wake.notify_all();
    return {};
}

bool Workers::start_threads() {
    Shared& all = *shared_;
    const auto behind = [&all] { return all.threads - all.busy < all.queue.size(); };
    while (behind() && all.threads < all.limits.threads) {
        auto started = start_thread([shared = shared_] { work(shared); }, all.name);
        if (!started) break;
        started->detach();
        ++all.threads;
    }
    return all.limits.behind_others ? all.threads > 0 : !behind();
}

void Workers::wait() {
    std::unique_lock lock(shared_->mutex);
    shared_->changed.wait(lock, [this] { return shared_->queue.empty() && shared_->busy == 0; });
}

bool Workers::wait_for(std::chrono::nanoseconds limit) {
    std::unique_lock lock(shared_->mutex);
    return shared_->changed.wait_for(lock, limit,
                                     [this] { return shared_->queue.empty() && shared_->busy == 0; });
}

bool Workers::end() {
    std::deque<Task> dropped;
    std::unique_lock lock(shared_->mutex);
    shared_->stopping = true;
    dropped.swap(shared_->queue);
    shared_->wake.notify_all();
    shared_->hangs = !shared_->changed.wait_until(lock, shared_->last_begun + end_limit,
                                                  [this] { return shared_->busy == 0; });
    return !shared_->hangs;
}

void Workers::work(const std::shared_ptr<Shared>& shared) {
    Shared& all = *shared;
    if (all.first) all.first();
    std::unique_lock lock(all.mutex);
    for (;;) {
        all.wake.wait(lock, [&all] { return all.stopping || !all.queue.empty(); });
        if (all.queue.empty()) break;
        Task task = std::move(all.queue.front());
        all.queue.pop_front();
        ++all.busy;
        all.last_begun = std::chrono::steady_clock::now();
        lock.unlock();
        task();
        task = nullptr;  // before its end is told
        lock.lock();
        --all.busy;
        all.changed.notify_all();
        if (all.queue.empty() && all.threads - all.busy > all.limits.idle) break;
    }
    --all.threads;
    all.changed.notify_all();
}

void in_parallel(std::size_t threads, std::size_t count, const std::function<void(std::size_t)>& work) {
    std::atomic<std::size_t> next{0};
    const auto take = [&] {
        for (std::size_t i = next++; i < count; i = next++) work(i);
    };
    const std::size_t others = std::min(threads, count) - std::min<std::size_t>(count, 1);
    Workers workers({others}, "work side by side");
    for (std::size_t i = 0; i < others && workers.add(take); ++i) {
    }
    take();
}

Result<void> run_together(Workers& workers, std::vector<std::function<Result<void>()>> tasks,
                          std::function<void(Result<void>)> over) {
    // Goes with the last task, whether that was carried out or not.
    struct Together {
        ~Together() {
            if (over) over(std::move(first));
        }
        std::function<void(Result<void>)> over;
        std::mutex mutex;  // guards the error
        Result<void> first;
    };
    const auto together = std::make_shared<Together>();
    std::vector<Workers::Task> parts;
    for (auto& task : tasks)
        parts.push_back([together, task = std::move(task)]() mutable {
            const Result<void> result = std::exchange(task, nullptr)();
            const std::lock_guard lock(together->mutex);
            if (together->first) together->first = result;
        });
    together->over = std::move(over);
    auto added = workers.add(std::move(parts));
    if (!added) together->over = nullptr;
    return added;
}

}  // namespace sidestep::base
