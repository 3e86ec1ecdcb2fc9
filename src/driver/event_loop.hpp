// One thread that waits for descriptors and times (epoll).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <sidestep/result.hpp>

namespace sidestep::driver {

// Calls handlers, one at a time, on a thread of its own. Any thread may call any method, a handler too.
class EventLoop {
public:
    struct Ready {
        bool in = false;     // there is something to read, or the end of it
        bool out = false;    // there is room to write
        bool ended = false;  // an error, or both ends are shut
        bool look = false;   // none of them: see look_at()
    };
    using Handler = std::function<void(Ready)>;
    using Id = std::uint64_t;  // never given twice

    // `name` stands in errors. For `awake` after something has come to a descriptor the thread looks for more without sleeping: who
    // is woken sees it some microseconds later. out_of_memory where there is no thread or descriptor left.
    static Result<std::unique_ptr<EventLoop>> create(std::string name, std::chrono::microseconds awake = {});
    ~EventLoop() { end(); }
    EventLoop(const EventLoop&) = delete;
    EventLoop& operator=(const EventLoop&) = delete;

    // `handler` is called as long as the descriptor is readable (`in`), writable (`out`), or has ended.
    Result<Id> add(int descriptor, bool in, bool out, Handler handler);
    // What is waited for from now on. Nothing happens where the id is gone.
    void change(Id id, bool in, bool out);
    // As long as `look` is set the handler is called between events too, again and again, and the thread does not sleep. False where
    // the id is gone, or the loop is ending.
    bool look_at(Id id, bool look);
    // Calls `task` every `period`, first after one, until removed.
    Id every(std::chrono::milliseconds period, std::function<void()> task);
    // No call of that handler or task begins after it; one that runs has ended, unless it is this caller. A descriptor
    // is to be removed before it is closed.
    void remove(Id id);
    // Calls `task` once, soon. False where the loop is ending.
    bool post(std::function<void()> task);
    // Ends the thread after the handler that runs; what was posted and not begun is dropped. Nothing is called afterwards.
    // By one caller, and not from a handler.
    void end();

private:
    struct Shared;
    explicit EventLoop(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
    const std::shared_ptr<Shared> shared_;
};

}  // namespace sidestep::driver
