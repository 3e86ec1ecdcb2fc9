// Calls that may block for long, such as open() on a file system that does not answer.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <utility>

#include "base/workers.hpp"

namespace sidestep::base {

// Makes each call on a thread that has nothing else to do, so that none waits behind one that hangs. Any thread.
class BlockingCalls {
public:
    // `ended` is called after each call.
    explicit BlockingCalls(std::function<void()> ended = {}) : ended_(std::move(ended)) {}

    // Answers whether the call has ended, for which it waits that long; what it did is seen then. Where no thread can be
    // had the call is made here.
    bool make(std::function<void()> call, std::chrono::nanoseconds patience);
    // Until none is being made any more; the destructor does so too.
    void wait() { workers_.wait(); }

private:
    static constexpr std::size_t kept_idle = 8;
    static constexpr auto any_number = ~std::size_t{0};
    const std::function<void()> ended_;
    Workers workers_{{any_number, kept_idle, any_number, false}, "calls that may block"};
};

// One call after the other, and what came of each. Outlives what it calls; asked by one thread at a time.
class BlockingCall {
public:
    using Work = std::function<Result<void>()>;

    // Only while none is running. Null calls: the call is made here, however long it takes.
    void make(BlockingCalls* calls, Work work, std::chrono::nanoseconds patience);
    // Any thread; once it is false, what the call did is seen.
    bool running() const { return running_.load(std::memory_order_acquire); }
    // What came of it, once. Nothing while it is running, and where there was none.
    std::optional<Result<void>> take();

private:
    std::atomic<bool> running_{false};
    std::optional<Result<void>> outcome_;  // while it is running, the call's
};

}  // namespace sidestep::base
