#include "transfer/spread_stages.hpp"

#include <algorithm>
#include <utility>

namespace sidestep::transfer {

std::size_t SpreadStages::add(std::string name) {
    stages_.push_back({std::move(name), 0, 0, 0});
    in_flight_.push_back(0);
    return stages_.size() - 1;
}

void SpreadStages::begin(std::size_t stage) {
    tick();
    ++in_flight_[stage];
}

void SpreadStages::end(std::size_t stage, Bytes bytes) {
    tick();
    --in_flight_[stage];
    stages_[stage].bytes += bytes;
}

void SpreadStages::tick() {
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

}  // namespace sidestep::transfer
