// Page-locked memory of threads that read and write by themselves.
#pragma once

#include <array>
#include <memory>

#include <sidestep/context.hpp>
#include "shims/cufile/failure.hpp"

namespace sidestep::cufile {

inline constexpr Bytes slot_bytes = Bytes{1} << 20;
inline constexpr std::size_t slot_count = 2;

using Slots = std::array<void*, slot_count>;

// This thread's slots. They go back when the thread ends, for the next one; none is ever freed.
Result<std::shared_ptr<const Slots>> slots_of_this_thread(const Context& context);

// The end of a copy into or out of slots of this thread. Where it fails, a device may still reach them: the thread gets others,
// and these go back when that is over.
Refusal wait(Transfer& copy, const std::shared_ptr<const Slots>& slots);

}  // namespace sidestep::cufile
