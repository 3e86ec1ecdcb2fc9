#include "driver/random.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <chrono>

namespace sidestep::driver {

std::uint64_t random_number() {
    std::uint64_t number = 0;
    if (::getrandom(&number, sizeof number, 0) == sizeof number) return number;
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    return static_cast<std::uint64_t>(now) * 2654435761u + static_cast<std::uint64_t>(::getpid());
}

}  // namespace sidestep::driver
