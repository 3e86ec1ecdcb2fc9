// The arithmetic of collectives on emulated GPUs.
#pragma once

#include <cstdint>
#include <span>

#include "backend/collective_task.hpp"

namespace sidestep::backends::host {

struct Reduction {
    backend::Element element = backend::Element::u8;
    backend::Combine combine = backend::Combine::sum;
    unsigned ranks = 1;  // what avg divides by
    // Of scaled_sum: what each source is multiplied by, one element in the first bytes of each entry.
    std::uint64_t scales[backend::most_ranks] = {};
};

// Combines `count` elements of every source, in their order, into `out`: `numbers[i]` is the rank of source
// i. Sources and `out` need no alignment; `out` may be one of the sources, but not overlap one otherwise. At
// least one source, and no Combine::none.
void combine(const Reduction& reduction, std::span<const char* const> sources,
             std::span<const unsigned> numbers, char* out, std::uint64_t count);

}  // namespace sidestep::backends::host
