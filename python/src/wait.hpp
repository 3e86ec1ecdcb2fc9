// Waiting for a copy, a load or a save without holding the GIL, and with an eye on Ctrl-C.
#pragma once

#include <chrono>
#include <utility>

#include "failure.hpp"

namespace sidestep::python {

// How often signals and progress are looked at.
constexpr std::chrono::milliseconds glance{50};

// Cancels what is in flight and waits for its pieces: `pending` may be freed after.
template <typename Pending>
void stop(Pending& pending) {
    const py::gil_scoped_release without_gil;
    pending.cancel();
    static_cast<void>(pending.wait());
}

// The value of a Transfer or a Loading; throws sidestep.Error. With the GIL, which is released while waiting.
// `progress` is None, or called with (bytes done, bytes in all) at once and then every 50 ms on this thread;
// what it raises, and a KeyboardInterrupt (in the main thread, where Python handles signals), cancels.
template <typename Pending>
auto finish(Pending& pending, const py::object& progress) {
    for (;;) {
        try {
            if (!progress.is_none()) progress(pending.bytes_done(), pending.bytes_total());
            if (PyErr_CheckSignals() != 0) throw py::error_already_set();
        } catch (py::error_already_set&) {
            stop(pending);
            throw;
        }
        auto ended = [&pending] {
            const py::gil_scoped_release without_gil;
            return pending.wait_for(glance);
        }();
        if (ended) return value(std::move(*ended));
    }
}

}  // namespace sidestep::python
