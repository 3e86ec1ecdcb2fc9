// The bar on a terminal.
#pragma once

#include <chrono>
#include <string>
#include <utility>

#include <sidestep/units.hpp>

#include "interrupt.hpp"

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

// Waits for the Transfer or Loading that `begin` starts; Ctrl-C cancels it.
template <typename Begin>
auto watch(Interrupt& interrupt, bool bar, Begin begin) {
    const Interrupt::Cancellable cancellable(interrupt);
    Progress progress(bar);
    auto running = begin();
    bool cancelled = false;
    for (;;) {
        auto ended = running.wait_for(std::chrono::milliseconds(50));
        if (ended) return std::move(*ended);
        if (interrupt.requested() && !cancelled) {
            running.cancel();
            cancelled = true;
        }
        progress.update(running.bytes_done(), running.bytes_total());
    }
}

}  // namespace sidestep::cli
