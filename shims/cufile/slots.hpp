// Page-locked memory of threads that read and write by themselves.
#pragma once

#include <array>

#include <sidestep/context.hpp>

namespace sidestep::cufile {

inline constexpr Bytes slot_bytes = Bytes{1} << 20;
inline constexpr std::size_t slot_count = 2;

// This thread's slots. They go back when the thread ends, for the next one; none is ever freed.
Result<std::array<void*, slot_count>> slots_of_this_thread(const Context& context);

}  // namespace sidestep::cufile
