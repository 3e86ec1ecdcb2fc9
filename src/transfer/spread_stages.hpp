// Which stage of a movement is at work, and which one holds the others up.
#pragma once

#include <algorithm>
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
    // Answers the stage's number.
    std::size_t add(std::string name) {
        stages_.push_back({std::move(name), 0, 0, 0});
        in_flight_.push_back(0);
        return stages_.size() - 1;
    }
    void begin(std::size_t stage) {
        tick();
        ++in_flight_[stage];
    }
    // What began has ended; that many bytes of it arrived.
    void end(std::size_t stage, Bytes bytes) {
        tick();
        --in_flight_[stage];
        stages_[stage].bytes += bytes;
    }
    const std::vector<Stage>& stages() const { return stages_; }

private:
    using Clock = std::chrono::steady_clock;
    void tick() {
        const auto now = Clock::now();
        const double seconds = std::chrono::duration<double>(now - std::exchange(last_, now)).count();
        const auto busy =
            std::count_if(in_flight_.begin(), in_flight_.end(), [](int count) { return count > 0; });
        for (std::size_t i = 0; i < stages_.size(); ++i) {
            if (in_flight_[i] == 0) continue;
            stages_[i].busy_seconds += seconds;
            if (busy == 1) stages_[i].limit_seconds += seconds;
        }
    }

    std::vector<Stage> stages_;
    std::vector<int> in_flight_;
    Clock::time_point last_ = Clock::now();
};

}  // namespace sidestep::transfer
