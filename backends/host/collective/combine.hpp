// The arithmetic of collectives on emulated GPUs.
#pragma once

#include <cstdint>
#include <span>

#include "protocol/collective_task.hpp"

namespace sidestep::backends::host {

struct Reduction {
    protocol::Element element = protocol::Element::u8;
    protocol::Combine combine = protocol::Combine::sum;
    unsigned ranks = 1;  // what avg divides by
    // Of scaled_sum: what each source is multiplied by, one element in the first bytes of each entry.
    std::uint64_t scales[protocol::max_ranks] = {};
};

// Combines `count` elements of every source, in their order, into `out`: `numbers[i]` is the rank of source i. At least one
// source, and no Combine::none. No alignment is needed; `out` may be one of the sources, but not overlap one otherwise.
//
// A sum may also go from rank to rank: then `so_far` are the ranks before (null: none), and `out` is what they are unless
// `last`: in the accumulator's type (protocol::accumulator_size_of), neither divided nor rounded. A chain of steps over all
// ranks gives the bits of one call. `out` may be `so_far` where elements are accumulated in their own type.
void combine(const Reduction& reduction, std::span<const char* const> sources,
             std::span<const unsigned> numbers, char* out, std::uint64_t count, const char* so_far = nullptr,
             bool last = true);

}  // namespace sidestep::backends::host
