// Calls that may block for long, such as open() on a file system that does not answer.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace sidestep::base {

// A thread that makes calls one after the other, beside whoever asked for them. Starts with the first one. Used by one
// thread at a time.
class Aside {
public:
    using Number = std::uint64_t;  // of a call: 1, 2, 3

    Aside() = default;
    ~Aside();  // waits for the call that is being made, and drops the others
    Aside(const Aside&) = delete;
    Aside& operator=(const Aside&) = delete;

    // Where no thread can be had the call is made here.
    Number add(std::function<void()> call);
    // Whether the call has ended, for which it waits that long; what it did is seen then.
    bool wait(Number call, std::chrono::nanoseconds patience) const;
    // Calls that have not begun never are.
    void drop();
    bool busy() const;
    void wait_until_idle() const;

private:
    void work();

    mutable std::mutex mutex_;  // guards what follows
    mutable std::condition_variable ended_;
    std::condition_variable wake_;
    std::deque<std::function<void()>> calls_;
    Number added_ = 0;
    Number over_ = 0;  // how many have ended, or were dropped
    bool calling_ = false;
    bool stop_ = false;
    std::thread thread_;
};

}  // namespace sidestep::base
