// Calls that may block for long, such as open() on a file system that does not answer.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace sidestep::base {

// Makes each call on a thread that has nothing else to do, so that none waits behind one that hangs. Any thread.
class BlockingCalls {
public:
    BlockingCalls();
    ~BlockingCalls();  // waits for the calls that are being made
    BlockingCalls(const BlockingCalls&) = delete;
    BlockingCalls& operator=(const BlockingCalls&) = delete;

    // Answers whether the call has ended, for which it waits that long; what it did is seen then. Where no thread can be
    // had the call is made here.
    bool make(std::function<void()> call, std::chrono::nanoseconds patience);

private:
    struct Worker;
    struct Shared;
    static void work(const std::shared_ptr<Shared>& shared, const std::shared_ptr<Worker>& worker);

    std::shared_ptr<Shared> shared_;
};

}  // namespace sidestep::base
