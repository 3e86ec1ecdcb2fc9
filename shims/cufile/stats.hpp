// cuFile's statistics, levels 0 to 3, out of what is counted anyway.
#pragma once

#include <array>
#include <chrono>
#include <mutex>

#include "shims/cufile/calls.hpp"
#include "shims/cufile/failure.hpp"

namespace sidestep::cufile {

// What programs see counts from a reset on, while statistics are wanted (a level above 0) and not stopped. Safe to use from
// several threads.
class Statistics {
public:
    static constexpr int highest_level = 3;

    static Statistics& get();

    int level() const;
    Refusal set_level(int level);
    void start();
    void stop();
    void reset();

    // In the layout of the version that this library says it is: never more bytes than a program built for that has there.
    // Refused below that level.
    Refusal fill(CUfileStatsLevel1_t& stats) const;
    Refusal fill(CUfileStatsLevel2_t& stats) const;
    Refusal fill(CUfileStatsLevel3_t& stats) const;

private:
    using Clock = std::chrono::steady_clock;

    // What was counted so far, and in how long a time.
    struct Seen {
        Totals totals;
        double seconds = 0;
    };

    Statistics();
    bool counting() const { return level_ > 0 && !stopped_; }
    void change(int level, bool stopped);  // with the mutex held
    Refusal seen(int level, Seen& seen) const;

    mutable std::mutex mutex_;  // guards what follows
    int level_ = 0;
    bool stopped_ = false;
    Seen before_;   // in times of counting that are over
    Totals since_;  // at the beginning of the one that is not
    Clock::time_point begun_;
};

// Bytes of the latest submission of a batch.
void note_submission(std::uint64_t read_bytes, std::uint64_t written_bytes) noexcept;

}  // namespace sidestep::cufile
