// Threads that work through a queue.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <sidestep/result.hpp>

namespace sidestep::base {

// The one rule for threads that carry out tasks: they start as long as more is to be done than threads are at hand, up to a
// bound; fewer than wished for will do, if there is one; they end with this object. First come, first served. Any
// thread may call.
class Workers {
public:
    struct Limits {
        std::size_t threads = 1;
        std::size_t idle = ~std::size_t{0};  // threads that are kept for what comes
        std::size_t queued = 65536;          // tasks that no thread has begun
        bool behind_others = true;           // a task may wait for a thread that is busy
    };
    using Task = std::function<void()>;

    // `name` stands in errors. Each thread calls `first` before all else; empty: nothing.
    Workers(Limits limits, std::string name, Task first = {});
    // Waits until all is done. Where something may hang, end() comes first.
    ~Workers();
    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;

    // ErrorCode::out_of_memory where the queue is full, or no thread can be had that would do it: nothing was added then.
    Result<void> add(Task task);
    Result<void> add(std::vector<Task> tasks);
    // Until nothing is queued or being done.
    void wait();
    // Or that long; answers whether nothing is.
    bool wait_for(std::chrono::nanoseconds limit);
    // Drops tasks that have not begun, and waits for the rest until a second after the last one began. False
    // where something still hangs then: its thread is abandoned, and what its task uses has to be kept
    // (base::keep). Must be the last call.
    bool end();

private:
    struct Shared;
    static void work(const std::shared_ptr<Shared>& shared);
    bool start_threads();  // with the mutex held; false where nobody would do what was added

    const std::shared_ptr<Shared> shared_;
};

// Makes work(0) to work(count - 1), each once, by the caller's thread and others, as many as can be had up to `threads` in
// all. Returns when all are done.
void in_parallel(std::size_t threads, std::size_t count, const std::function<void(std::size_t)>& work);

// Tasks whose end is told once, with the first error: by the thread that makes the last of them, or drops it. Fails as
// Workers::add does, and tells of nothing then.
Result<void> run_together(Workers& workers, std::vector<std::function<Result<void>()>> tasks,
                          std::function<void(Result<void>)> over);

}  // namespace sidestep::base
