// Which stage of a movement is at work, and which one holds the others up.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <sidestep/stage.hpp>

namespace sidestep::transfer {

// Seconds in which something of a stage is in flight count as busy; those in which nothing else is, as its
// limit. One thread at a time.
class SpreadStages {
public:
    // Answers the stage's number.
    std::size_t add(std::string name);

    void begin(std::size_t stage);
    // What began has ended; that many bytes of it arrived.
    void end(std::size_t stage, Bytes bytes);

    const std::vector<Stage>& stages() const { return stages_; }

private:
    using Clock = std::chrono::steady_clock;
    void tick();

    std::vector<Stage> stages_;
    std::vector<int> in_flight_;
    Clock::time_point last_ = Clock::now();
};

}  // namespace sidestep::transfer
