// Random numbers from the kernel. std::random_device would tie the binary to glibc 2.36 (arc4random).
#pragma once

#include <cstddef>
#include <cstdint>

namespace sidestep::driver {

// Never blocks for long: the kernel's pool is ready once the machine has booted. Where getrandom is refused,
// time and process make the number.
std::uint64_t random_number();

// Fit for keys: the kernel's bytes or none, from /dev/urandom where getrandom is refused. False where neither gives
// them; what is in the buffer then is not to be used.
[[nodiscard]] bool fill_random(void* to, std::size_t size);

// With bytes that nobody knew before, or, where the kernel gives none, with any: to see whether they arrive.
void fill_unknown(void* to, std::size_t size);

}  // namespace sidestep::driver
