// Deadlines of calls that may block for long.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <sidestep/result.hpp>

#include "base/thread.hpp"

namespace sidestep::base {

// What is left of a deadline (0: none) that began then, 1 ms where it has passed.
inline std::chrono::milliseconds left_of(std::chrono::milliseconds deadline,
                                         std::chrono::steady_clock::time_point begin) {
    if (deadline.count() == 0) return deadline;
    const auto gone = std::chrono::steady_clock::now() - begin;
    return std::max(deadline - std::chrono::duration_cast<std::chrono::milliseconds>(gone),
                    std::chrono::milliseconds(1));
}

// What poll() and epoll_wait() are to wait: never less than what is left, so that none is called twice for the last one.
inline int milliseconds_left(std::chrono::steady_clock::time_point until) {
    const auto now = std::chrono::steady_clock::now();
    if (until <= now) return 0;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - now).count();
    return static_cast<int>(std::min<long>(left + 1, 1 << 30));
}

// What work() answers, or timed_out at `where` with the deadline (0: none) and what it waited for: then it goes on with what
// it holds. Where no thread can be had the call is made here.
template <typename Value>
Result<Value> make_within(std::chrono::milliseconds deadline, const std::string& where,
                          std::function<Result<Value>()> work,
                          const char* missing = "the file system has not answered") {
    if (deadline.count() == 0) return work();
    const auto made = std::make_shared<std::packaged_task<Result<Value>()>>(std::move(work));
    auto answer = made->get_future();
    if (auto thread = start_thread([made] { (*made)(); }, "a call that may block"))
        thread->detach();
    else
        (*made)();
    if (answer.wait_for(deadline) == std::future_status::ready) return answer.get();
    return Error{ErrorCode::timed_out,
                 fmt::format("the deadline of {} ms passed; {}", deadline.count(), missing), where,
                 "raise the deadline"};
}

}  // namespace sidestep::base
