// How many requests to have outstanding at once. Pure.
#pragma once

#include <algorithm>
#include <chrono>

#include <sidestep/units.hpp>

namespace sidestep::backends::file {

// Finds the smallest depth that gives the most throughput: doubles it as long as that moves more bytes a
// second, and takes back what only made requests wait longer. By Little's law a device that answers within L
// and moves R bytes a second needs R x L bytes outstanding; more than that wait in line (so at full depth the
// rate tells the latency too), and hurt where the line is short.
//
// Measures in windows of two rounds of requests, and only while more are wanted than the depth allows. What
// was found is looked at again after a rest, since devices and neighbours change; the rests grow while
// nothing better is found. One thread at a time.
class DepthController {
public:
    using Time = std::chrono::steady_clock::time_point;

    struct Bounds {
        unsigned min = 4;
        unsigned first = 16;  // to start with
        unsigned max = 128;
        // A depth at which each request moves that many bytes a second or more is not raised: the requests do
        // not wait, they copy, and more of them only take processors from each other. 0: no such bound.
        double busy = 0;
    };
    // 0 < min <= first <= max.
    explicit DepthController(Bounds bounds)
        : bounds_(bounds), depth_(bounds.first), kept_(bounds.first), next_rest_(rest_windows) {}

    unsigned depth() const { return depth_; }
    // The best one that was found; depth() may be trying another just now.
    unsigned settled() const { return kept_; }

    // A request was started while no other was outstanding.
    void woken(Time now) {
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
    // A request ended. `wanted`: more were waiting, or as many as may be were outstanding.
    void ended(Time now, Bytes bytes, bool wanted) {
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
        const double rate =
            static_cast<double>(bytes_) / std::chrono::duration<double>(now - opened_).count();
        open_window(now);
        decide(rate);
    }

private:
    // Throughput of one window differs from the next by a few percent of its own accord.
    static constexpr double gain = 1.05;  // worth twice the depth
    static constexpr double loss = 0.97;  // more than half the depth is worth
    // Twice as long after each look that found nothing, up to the last: a look costs what it tries.
    static constexpr int rest_windows = 32;
    static constexpr int longest_rest = 1024;
    // A window of a few microseconds would measure the clock.
    static constexpr auto shortest_window = std::chrono::milliseconds(1);

    enum class Phase { base, growing, shrinking, resting };

    void decide(double rate) {
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
    // False: no further.
    bool grow() {
        if (depth_ >= bounds_.max || (bounds_.busy > 0 && base_ >= bounds_.busy * depth_)) return false;
        set(std::min(2 * depth_, bounds_.max), Phase::growing);
        return true;
    }
    void shrink_or_rest() {
        if (depth_ > bounds_.min) return set(std::max(depth_ / 2, bounds_.min), Phase::shrinking);
        rest();
    }
    void rest() {
        if (kept_ != rested_) next_rest_ = rest_windows;
        rested_ = kept_;
        phase_ = Phase::resting;
        rests_ = next_rest_;
        next_rest_ = std::min(2 * next_rest_, longest_rest);
    }
    void set(unsigned depth, Phase phase) {
        passing_ = std::max({passing_, depth_, depth});
        depth_ = depth;
        phase_ = phase;
    }
    void open_window(Time now) {
        opened_ = now;
        requests_ = 0;
        bytes_ = 0;
    }

    const Bounds bounds_;
    unsigned depth_;
    unsigned kept_;  // the depth to go back to where a trial fails
    Phase phase_ = Phase::base;
    double base_ = 0;      // bytes a second at kept_, or where shrinking began
    bool grew_ = false;    // kept_ has proved better than its half
    int rests_ = 0;        // windows left
    int next_rest_;        // windows of the next rest
    unsigned rested_ = 0;  // kept_ at the last rest

    unsigned passing_ = 0;  // requests of the depth before, still to end
    Time opened_{};
    unsigned requests_ = 0;
    Bytes bytes_ = 0;
};

}  // namespace sidestep::backends::file
