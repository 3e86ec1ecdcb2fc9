// Who is told that an activity has ended: an event loop, through a descriptor, and calls that wait for it.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "driver/event_fd.hpp"

namespace sidestep::transfer {

// Safe to use from several threads.
class Completion {
public:
    // Readable once ended() was called. Made at the first call; belongs to this object.
    Result<int> event_fd();
    // The descriptor is no longer watched.
    void close_event_fd();

    // Keeps a call for take_calls(), once. False where the end has come already: then it is not kept.
    bool keep(std::function<void()> call);
    // The calls to make. The caller makes them without a lock: a call may destroy the activity's last
    // handle. Empty before the end.
    std::vector<std::function<void()>> take_calls();
    bool has_calls() const;

    // The end has come. May be called again, and under locks: it makes no call.
    void ended();

private:
    mutable std::mutex mutex_;
    bool ended_ = false;
    std::optional<driver::EventFd> event_fd_;
    std::vector<std::function<void()>> calls_;
};

}  // namespace sidestep::transfer
