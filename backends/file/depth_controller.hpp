// How many requests to have outstanding at once. Pure.
#pragma once

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
    explicit DepthController(Bounds bounds);

    unsigned depth() const { return depth_; }
    // The best one that was found; depth() may be trying another just now.
    unsigned settled() const { return kept_; }

    // A request was started while no other was outstanding.
    void woken(Time now);
    // A request ended. `wanted`: more were waiting, or as many as may be were outstanding.
    void ended(Time now, Bytes bytes, bool wanted);

private:
    enum class Phase { base, growing, shrinking, resting };

    void decide(double rate);
    bool grow();  // false: no further
    void shrink_or_rest();
    void rest();
    void set(unsigned depth, Phase phase);
    void open_window(Time now);

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
