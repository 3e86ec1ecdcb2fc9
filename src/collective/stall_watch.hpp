// When the log mentions a rank that waits for another one: after half a minute, then at doubling intervals,
// and once it continues.
#pragma once

#include <algorithm>

namespace sidestep::collective {

class StallWatch {
public:
    static constexpr double first_s = 30;
    enum class Say { nothing, waits, goes_on };

    // `waiting_s`: how long the rank has been waiting by now. It may fall by less than all where the rank waits for one that
    // came to the operation later than another did: that is no end of waiting.
    Say look(double waiting_s) {
        const bool told = next_s_ > first_s;
        if (waiting_s < first_s) {
            next_s_ = first_s;
            return told ? Say::goes_on : Say::nothing;
        }
        waited_s_ = std::max(waited_s_, waiting_s);
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
