#include "driver/event_fd.hpp"

#include <sys/eventfd.h>

#include <cerrno>
#include <cstdint>

#include "driver/system_error.hpp"

namespace sidestep::driver {

Result<EventFd> EventFd::create() {
    Fd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (fd) return EventFd(std::move(fd));
    return system_error(errno, "cannot create an eventfd for the end", "eventfd",
                        "close descriptors, or raise the limit (ulimit -n)");
}

void EventFd::signal() const {
    const std::uint64_t one = 1;
    // Fails only where the counter is full: it is readable then.
    [[maybe_unused]] const auto written = ::write(fd_.get(), &one, sizeof(one));
}

}  // namespace sidestep::driver
