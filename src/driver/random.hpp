// Random numbers from the kernel. std::random_device would tie the binary to glibc 2.36 (arc4random).
#pragma once

#include <cstdint>

namespace sidestep::driver {

// Never blocks for long: the kernel's pool is ready once the machine has booted. Where getrandom is refused,
// time and process make the number.
std::uint64_t random_number();

}  // namespace sidestep::driver
