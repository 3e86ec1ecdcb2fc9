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

// Combines `count` elements of every source, in their order, into `out`: `numbers[i]` is the rank of source
// i. Sources and `out` need no alignment; `out` may be one of the sources, but not overlap one otherwise. At
// least one source, and no Combine::none.
void combine(const Reduction& reduction, std::span<const char* const> sources,
             std::span<const unsigned> numbers, char* out, std::uint64_t count);

// One rank's share in a sum that goes from rank to rank.
struct RingStep {
    // In the accumulator's type (protocol::accumulator_size_of); null: nothing yet.
    const char* so_far = nullptr;
    const char* elements = nullptr;  // of this rank
    unsigned rank = 0;
    bool last = false;  // the result is what elements are: divided where it is an average, and rounded
};

// The same arithmetic as combine(), so that a chain of steps over all ranks gives its bits. `out` holds
// accumulators, or elements after the last step; no alignment is needed, and nothing overlaps `out`, except
// that it may be `so_far` where elements are accumulated in their own type. No Combine::none.
void combine_step(const Reduction& reduction, const RingStep& step, char* out, std::uint64_t count);

}  // namespace sidestep::backends::host
