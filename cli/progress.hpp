// The bar on a terminal.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

#include "interrupt.hpp"

namespace sidestep::cli {

// One line of a progress bar, at most `columns` wide and without control characters: share done, bytes,
// rate and time left. The bytes took `seconds`; `last` is what is being done once all of them are.
std::string progress_line(Bytes done, Bytes total, double seconds, int columns, std::string_view last);

// Draws on standard error and wipes the line when it goes.
class Progress {
public:
    // Draws only if `wanted` and standard error is a terminal. `last`: as progress_line's.
    explicit Progress(bool wanted, const char* last = "finishing");
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    void update(Bytes done, Bytes total);
    // Words instead of a bar, "3 of 8, lamport".
    void update(const std::string& words);

private:
    const char* const last_;
    std::optional<double> seconds_;  // that all bytes took
    bool enabled_ = false;
    bool drawn_ = false;
    std::chrono::steady_clock::time_point begun_;
};

inline Result<void> say_nothing() {
    return {};
}

// Waits for the Transfer or Loading that `begin` starts; Ctrl-C cancels it. `say` prints the first line, once the work
// has started: what is refused at once has only its error.
template <typename Begin, typename Say = Result<void> (*)()>
auto watch(Interrupt& interrupt, bool bar, Begin begin, const char* last = "finishing",
           Say say = say_nothing) {
    const Interrupt::Cancellable cancellable(interrupt);
    Progress progress(bar, last);  // its clock runs from here: much may be copied before the first look
    auto running = begin();
    auto ended = running.wait_for(std::chrono::milliseconds(0));
    if (ended && !*ended) return std::move(*ended);
    if (auto said = say(); !said) return decltype(running.wait())(said.error());
    for (bool cancelled = false; !ended; ended = running.wait_for(std::chrono::milliseconds(50))) {
        if (interrupt.requested() && !cancelled) {
            running.cancel();
            cancelled = true;
        }
        progress.update(running.bytes_done(), running.bytes_total());
    }
    return std::move(*ended);
}

}  // namespace sidestep::cli
