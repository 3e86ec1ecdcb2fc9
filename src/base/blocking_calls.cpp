#include "base/blocking_calls.hpp"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

namespace sidestep::base {

bool BlockingCalls::make(std::function<void()> call, std::chrono::nanoseconds patience) {
    struct Made {
        std::function<void()> call;
        std::mutex mutex;
        std::condition_variable changed;
        bool over = false;  // under mutex
    };
    const auto made = std::make_shared<Made>();
    made->call = std::move(call);
    const auto added = workers_.add([this, made] {
        made->call();
        made->call = nullptr;  // nobody who waits may be the one to destroy what it holds
        {
            const std::lock_guard lock(made->mutex);
            made->over = true;
            made->changed.notify_all();
        }
        if (ended_) ended_();
    });
    if (!added) return made->call(), true;
    std::unique_lock lock(made->mutex);
    return made->changed.wait_for(lock, patience, [&made] { return made->over; });
}

void BlockingCall::make(BlockingCalls* calls, Work work, std::chrono::nanoseconds patience) {
    if (calls == nullptr) return void(outcome_.emplace(work()));
    running_.store(true, std::memory_order_relaxed);
    calls->make(
        [this, work = std::move(work)] {
            outcome_.emplace(work());
            running_.store(false, std::memory_order_release);
        },
        patience);
}

std::optional<Result<void>> BlockingCall::take() {
    if (running()) return std::nullopt;
    return std::exchange(outcome_, std::nullopt);
}

}  // namespace sidestep::base
