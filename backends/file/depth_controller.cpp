#include "backends/file/depth_controller.hpp"

#include <algorithm>

namespace sidestep::backends::file {
namespace {

// Throughput of one window differs from the next by a few percent of its own accord.
constexpr double gain = 1.05;  // worth twice the depth
constexpr double loss = 0.97;  // more than half the depth is worth
// Twice as long after each look that found nothing, up to the last: a look costs what it tries.
constexpr int rest_windows = 32;
constexpr int longest_rest = 1024;
// A window of a few microseconds would measure the clock.
constexpr auto shortest_window = std::chrono::milliseconds(1);

}  // namespace

DepthController::DepthController(Bounds bounds)
    : bounds_(bounds), depth_(bounds.first), kept_(bounds.first), next_rest_(rest_windows) {}

void DepthController::woken(Time now) {
    // What is tried belongs to the load before.
    if (phase_ == Phase::growing || phase_ == Phase::shrinking) {
        depth_ = kept_;
        phase_ = Phase::base;
    }
    // What comes after a pause may be another file.
    next_rest_ = rest_windows;
    rests_ = std::min(rests_, next_rest_);
    passing_ = 0;
    open_window(now);
}

void DepthController::ended(Time now, Bytes bytes, bool wanted) {
    if (!wanted) {
        // Whoever asks decides how much is outstanding, so nothing is learnt about the depth.
        passing_ = 0;
        return open_window(now);
    }
    if (passing_ > 0) {
        if (--passing_ == 0) open_window(now);
        return;
    }
    ++requests_;
    bytes_ += bytes;
    if (requests_ < 2 * depth_ || now - opened_ < shortest_window) return;
    const double rate = static_cast<double>(bytes_) / std::chrono::duration<double>(now - opened_).count();
    open_window(now);
    decide(rate);
}

void DepthController::decide(double rate) {
    switch (phase_) {
        case Phase::base:
            base_ = rate;
            grew_ = false;
            return grow() ? void() : shrink_or_rest();
        case Phase::growing:
            if (rate > base_ * gain) {
                base_ = rate;
                kept_ = depth_;
                grew_ = true;
                return grow() ? void() : rest();
            }
            // Requests only wait longer. A depth that has just proved better than its half needs no look at
            // that.
            set(kept_, Phase::base);
            return grew_ ? rest() : shrink_or_rest();
        case Phase::shrinking:
            // Against the rate at the start of the trials, so that many small losses do not add up.
            if (rate >= base_ * loss) {
                kept_ = depth_;
                return shrink_or_rest();
            }
            set(kept_, Phase::base);
            return rest();
        case Phase::resting:
            if (--rests_ <= 0) phase_ = Phase::base;
            return;
    }
}

bool DepthController::grow() {
    if (depth_ >= bounds_.max || (bounds_.busy > 0 && base_ >= bounds_.busy * depth_)) return false;
    set(std::min(2 * depth_, bounds_.max), Phase::growing);
    return true;
}

void DepthController::shrink_or_rest() {
    if (depth_ > bounds_.min) return set(std::max(depth_ / 2, bounds_.min), Phase::shrinking);
    rest();
}

void DepthController::rest() {
    if (kept_ != rested_) next_rest_ = rest_windows;
    rested_ = kept_;
    phase_ = Phase::resting;
    rests_ = next_rest_;
    next_rest_ = std::min(2 * next_rest_, longest_rest);
}

void DepthController::set(unsigned depth, Phase phase) {
    passing_ = std::max({passing_, depth_, depth});
    depth_ = depth;
    phase_ = phase;
}

void DepthController::open_window(Time now) {
    opened_ = now;
    requests_ = 0;
    bytes_ = 0;
}

}  // namespace sidestep::backends::file
