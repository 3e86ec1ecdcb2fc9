// Multiples of a page, a block, a granule.
#pragma once

#include <sidestep/units.hpp>

namespace sidestep::base {

inline constexpr Bytes page = 4096;

// The least multiple of `unit` that is not below `bytes`. Of the numbers just below 2^64, which have none, the
// largest multiple there is. `unit` is not 0.
constexpr Bytes round_up(Bytes bytes, Bytes unit) {
    const Bytes rest = bytes % unit;
    if (rest == 0) return bytes;
    const Bytes below = bytes - rest;
    return below > ~Bytes{0} - unit ? below : below + unit;
}

}  // namespace sidestep::base
