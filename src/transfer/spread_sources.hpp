// The files, and the published memory of nodes, that a spread to files reads.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "base/blocking_calls.hpp"
#include "base/try.hpp"
#include "transfer/spread_move.hpp"

namespace sidestep::transfer {

// Each is opened when a chunk comes to it, and stays open until others need its place: a process has few descriptors, and
// a save may read from more files than that. One thread at a time.
class SpreadSources {
public:
    // More only where one chunk needs them.
    static constexpr std::size_t max_open = 64;

    using Open = std::vector<AttachedMemory::One>;
    // May block; called on another thread.
    using Attach = std::function<Result<Open>(std::size_t memory)>;

    // What is opened is found in `attached`; what is there before needs no opening. Both outlive this.
    SpreadSources(base::BlockingCalls& calls, AttachedMemory& attached, Attach attach)
        : calls_(calls), attached_(attached), attach_(std::move(attach)), holders_(attached.all.size()) {}

    // Whether these are open. While they are not they are being opened, or wait until others are let go. `held` is the
    // caller's, false at first; once it is true they stay until let_go().
    Result<bool> hold(const std::vector<std::size_t>& memories, bool& held) {
        if (call_.running()) return false;
        if (const auto outcome = call_.take()) {
            SIDESTEP_CHECK(*outcome);
            for (auto& [memory, open] : std::exchange(new_, {})) {
                attached_.all[memory] = std::move(open);
                order_.push_back(memory);
            }
        }
        std::vector<std::size_t> missing;
        std::ranges::copy_if(memories, std::back_inserter(missing),
                             [this](std::size_t memory) { return attached_.all[memory].empty(); });
        if (!held) {
            // Held at once, lest those that are open already make room.
            for (const std::size_t memory : memories) ++holders_[memory];
            close_others(missing.size());
            held = order_.size() + missing.size() <= std::max(max_open, memories.size());
            if (!held) let_go(memories);
        }
        if (!held || missing.empty()) return held;
        const auto open = [this, missing = std::move(missing)]() -> Result<void> {
            closed_.clear();
            for (const std::size_t memory : missing) {
                SIDESTEP_TRY(Open opened, attach_(memory));
                new_.emplace_back(memory, std::move(opened));
            }
            return {};
        };
        call_.make(&calls_, open, usual_opening);
        return !call_.running() && hold(memories, held);
    }

    void let_go(const std::vector<std::size_t>& memories) {
        for (const std::size_t memory : memories) --holders_[memory];
    }

    // This object has to stay meanwhile.
    bool calling() const { return call_.running(); }

private:
    // What opens sooner is waited for: to hand a call over to another thread takes about as long.
    static constexpr std::chrono::microseconds usual_opening{100};

    // Those that nobody holds, the first of them first, until so many more may be opened.
    void close_others(std::size_t wanted) {
        std::size_t open = order_.size();
        std::erase_if(order_, [&](std::size_t memory) {
            if (open + wanted <= max_open || holders_[memory] > 0) return false;
            --open;
            closed_.push_back(std::exchange(attached_.all[memory], {}));
            return true;
        });
    }

    base::BlockingCalls& calls_;
    AttachedMemory& attached_;
    const Attach attach_;
    std::vector<std::size_t> holders_;  // by memory
    std::vector<std::size_t> order_;    // of those that were opened, the first of them first
    std::vector<Open> closed_;          // to be destroyed by the next call; while it is running, its
    std::vector<std::pair<std::size_t, Open>> new_;  // the same of what it opened
    base::BlockingCall call_;
};

}  // namespace sidestep::transfer
