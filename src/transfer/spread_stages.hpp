// Which stage of a movement is at work, and which one holds the others up.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <sidestep/stage.hpp>

namespace sidestep::transfer {

// Seconds in which something of a stage is in flight count as busy; those in which nothing else is, as its
// limit. One thread at a time.
class SpreadStages {
public:
    // What fills slots, or memories that storage reaches itself; what empties slots; GPU to GPU; verification.
    enum Number : std::size_t { filling, emptying, handing_on, verifying };

    // One without a name is not reported.
    void name(Number stage, std::string name) { stages_[stage].name = std::move(name); }
    void begin(Number stage) {
        tick();
        ++in_flight_[stage];
    }
    // What began has ended; that many bytes of it arrived.
    void end(Number stage, Bytes bytes) {
        tick();
        --in_flight_[stage];
        stages_[stage].bytes += bytes;
    }
    std::vector<Stage> stages() const {
        std::vector<Stage> named(stages_.begin(), stages_.end());
        std::erase_if(named, [](const Stage& stage) { return stage.name.empty(); });
        return named;
    }

private:
    using Clock = std::chrono::steady_clock;
    void tick() {
        const auto now = Clock::now();
        const double seconds = std::chrono::duration<double>(now - std::exchange(last_, now)).count();
        const auto busy = std::ranges::count_if(in_flight_, [](int count) { return count > 0; });
        for (std::size_t i = 0; i < stages_.size(); ++i) {
            if (in_flight_[i] == 0) continue;
            stages_[i].busy_seconds += seconds;
            if (busy == 1) stages_[i].limit_seconds += seconds;
        }
    }

    std::array<Stage, 4> stages_;
    std::array<int, 4> in_flight_{};
    Clock::time_point last_ = Clock::now();
};

}  // namespace sidestep::transfer
