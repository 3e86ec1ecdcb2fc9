// When the log tells of a rank that waits for another one: after half a minute, then at doubling times, and
// once it goes on.
#pragma once

namespace sidestep::collective {

class StallWatch {
public:
    static constexpr double first_s = 30;
    enum class Say { nothing, waits, goes_on };

    // `waiting_s`: how long the rank has been waiting by now.
    Say look(double waiting_s) {
        const bool moved = waiting_s < waited_s_;
        const bool told = next_s_ > first_s;
        if (moved) next_s_ = first_s;
        if (!moved || !told) waited_s_ = waiting_s;
        if (moved && told) return Say::goes_on;
        if (waiting_s < next_s_) return Say::nothing;
        next_s_ *= 2;
        return Say::waits;
    }
    // After `goes_on`: how long it was.
    double take_waited_s() {
        const double waited_s = waited_s_;
        waited_s_ = 0;
        return waited_s;
    }

private:
    double waited_s_ = 0;
    double next_s_ = first_s;
};

}  // namespace sidestep::collective
