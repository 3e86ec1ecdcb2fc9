// The bar on a terminal.
#pragma once

#include <chrono>
#include <string>

#include <sidestep/units.hpp>

namespace sidestep::cli {

// One line of a progress bar, at most `columns` wide and without control characters: share done, bytes,
// rate and time left. `seconds` have passed; all bytes done means that they are being verified.
std::string progress_line(Bytes done, Bytes total, double seconds, int columns);

// Draws on standard error and wipes the line when it goes.
class Progress {
public:
    // Draws only if `wanted` and standard error is a terminal.
    explicit Progress(bool wanted);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    void update(Bytes done, Bytes total);

private:
    bool enabled_ = false;
    bool drawn_ = false;
    std::chrono::steady_clock::time_point begun_;
};

}  // namespace sidestep::cli
