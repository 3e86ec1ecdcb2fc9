// An eventfd: a descriptor that event loops wait on.
#pragma once

#include <sidestep/result.hpp>
#include "driver/fd.hpp"

namespace sidestep::driver {

class EventFd {
public:
    // Not readable yet. Non-blocking, closed on exec. ErrorCode::out_of_memory where the process or the
    // machine has no descriptor left.
    static Result<EventFd> create();

    int get() const { return fd_.get(); }

    // Readable from now on, until it is read. Any thread; never blocks.
    void signal() const;

private:
    explicit EventFd(Fd fd) : fd_(std::move(fd)) {}
    Fd fd_;
};

}  // namespace sidestep::driver
