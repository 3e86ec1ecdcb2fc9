// Threads that look at bytes while those who drive a spread go on.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <sidestep/result.hpp>

namespace sidestep::transfer {

// Tasks that are waited for together. The one who made it asks; the workers answer.
class TaskGroup {
public:
    // All tasks have ended, or were dropped.
    bool ended() const { return left_.load(std::memory_order_acquire) == 0; }
    // The first error, once ended() is true.
    const std::optional<Error>& error() const { return error_; }

private:
    friend class SpreadWorkers;
    std::atomic<std::size_t> left_{0};
    std::mutex mutex_;  // guards the error until all have ended
    std::optional<Error> error_;
};

// A queue that is bounded by who fills it: a spread has a few blocks of each of its slots there. The threads
// start with the first task and end with this object; what is still queued then is dropped.
class SpreadWorkers {
public:
    using Task = std::function<Result<void>()>;

    // Up to 8 threads, and not more than processors this process may use.
    SpreadWorkers();
    ~SpreadWorkers();

    // Fails with out_of_memory where no thread can start.
    Result<std::shared_ptr<TaskGroup>> run(std::vector<Task> tasks);
    // Tasks that no thread has begun count as ended from now on.
    void drop_queued();

private:
    struct Queued {
        Task task;
        std::shared_ptr<TaskGroup> group;
    };

    bool start_threads(std::size_t wanted);
    void work();

    const std::size_t max_threads_;
    std::mutex mutex_;  // guards what follows
    std::condition_variable wake_;
    std::deque<Queued> queue_;
    std::vector<std::thread> threads_;
    bool stopping_ = false;
};

}  // namespace sidestep::transfer
