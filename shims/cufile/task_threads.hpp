// Threads that carry out reads and writes which no caller waits for in its call.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace sidestep::cufile {

// Something to carry out once. It belongs to whoever made it, and lies still until it has been carried out.
class Task {
public:
    explicit Task(const void* owner = nullptr) : owner_(owner) {}
    virtual ~Task() = default;
    virtual void carry_out() noexcept = 0;

private:
    friend class TaskThreads;
    const void* const owner_;
    Task* next_ = nullptr;
};

// Carries tasks out in the order in which they came, so many at a time. Threads start with the first tasks and end with the
// process: what stands in a program's destructors may still need them, so this is never destroyed.
class TaskThreads {
public:
    explicit TaskThreads(std::size_t most) : most_(most) {}

    // As many as a machine of this size needs to read from its page cache at full rate, within bounds.
    static std::size_t as_many_as_suit();

    // Whether tasks will be carried out: there is a thread, or one could be started.
    bool ready() noexcept;
    // After ready() has said yes. Never waits and takes no memory.
    void run(Task& task) noexcept;
    // Those of the owner that no thread has begun; they are not carried out. Each is given to `returned`, later ones later.
    template <typename Returned>
    void take_back(const void* owner, Returned&& returned) {
        for (Task* task = unlink(owner); task != nullptr;) {
            Task* const next = task->next_;
            returned(*task);
            task = next;
        }
    }

private:
    bool start_one() noexcept;  // with the mutex held
    void serve() noexcept;
    Task* unlink(const void* owner) noexcept;

    const std::size_t most_;
    std::mutex mutex_;  // guards what follows
    std::condition_variable come_;
    std::size_t started_ = 0;
    std::size_t idle_ = 0;
    std::size_t waiting_ = 0;  // tasks
    Task* first_ = nullptr;
    Task* last_ = nullptr;
};

}  // namespace sidestep::cufile
