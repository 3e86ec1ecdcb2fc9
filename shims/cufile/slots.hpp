// Page-locked memory for small reads and writes, one piece for each thread that makes some.
#pragma once

#include <sidestep/context.hpp>

namespace sidestep::cufile {

inline constexpr Bytes slot_bytes = Bytes{256} << 10;

// This thread's piece, of slot_bytes. It goes back when the thread ends, for the next one; pieces are never freed.
Result<void*> slot_of_this_thread(const Context& context);

}  // namespace sidestep::cufile
