// Pieces that a node's sessions have in flight, so that somebody looks for their ends: CUDA and io_uring do not tell.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "transfer/activity.hpp"
#include "transfer/lookout.hpp"

namespace sidestep::wire {

// Never ends by itself; the engine's own thread drives it (transfer::Engine::drive_in_background). Any thread.
class Pieces final : public transfer::Activity {
public:
    explicit Pieces(std::shared_ptr<transfer::Lookout> lookout) : lookout_(std::move(lookout)) {}

    // `small`: its end is near, and whoever has to be woken to look for it would be later: this thread looks, for a moment. Where
    // nothing is left then, the engine's thread has nothing to look for: its looks hold up the driver's calls.
    void begun(bool small) {
        const auto until = Clock::now() + look_for_small;
        const unsigned before = ended_.load();
        bool left = true;
        if (small && !transfer::Lookout::looks_here()) {
            do left = lookout_->look();
            while (left && ended_.load() == before && Clock::now() < until);
            if (left && ended_.load() != before) left = lookout_->look();  // for others
        }
        if (left) moved_.store(true, std::memory_order_relaxed);
        lookout_->begun_beside();
    }
    void ended() { ended_.fetch_add(1); }
    // Something that waits has to be begun by then, or soon after: tell() says by whom.
    void call_by(Clock::time_point due) {
        auto earliest = wake_by_.load();
        while (due < earliest) {
            if (wake_by_.compare_exchange_weak(earliest, due)) return lookout_->ring();
        }
    }
    // What begins it, on the thread that drives; before anything waits.
    void tell(std::function<void()> due) { due_ = std::move(due); }
    // No more are begun, and nobody is called afterwards.
    void stop() {
        const std::lock_guard lock(calling_);
        due_ = nullptr;
        result_.emplace(Receipt{});
        drained_.store(true, std::memory_order_release);
        finish();
        lookout_->ring();
    }

    // The engine that drives it goes.
    void cancel() override { stop(); }

    bool step(bool) override {
        if (Clock::now() >= wake_by_.load()) {
            wake_by_.store(Clock::time_point::max());  // whoever is called says when the next comes
            const std::lock_guard lock(calling_);
            if (due_) due_();
        }
        return moved_.exchange(false, std::memory_order_relaxed);
    }
    bool try_step(bool may_block) override { return step(may_block); }

private:
    static constexpr std::chrono::microseconds look_for_small{30};

    const std::shared_ptr<transfer::Lookout> lookout_;
    std::atomic<unsigned> ended_{0};
    std::atomic<bool> moved_{false};
    std::mutex calling_;  // guards what follows, and is held while it is called
    std::function<void()> due_;
};

}  // namespace sidestep::wire
