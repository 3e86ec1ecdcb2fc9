// Which way pieces of a slice go in Shape::ring. Included by device code.
//
// Combined: a piece goes up from rank 0 to the last rank, which completes the sum, then down to the lowest target. The slices
// follow each other, and the pieces of each are in order.
// Moved: a piece goes from its source to the next rank, wraps around after the last rank, and stops at the last target. For
// each piece number a rank sends its own piece first, then the one from the rank before it, and so on. So a rank takes what
// the others sent before it sends its second piece, and no ranks wait for each other in a circle.
#pragma once

#include "protocol/collective_task.hpp"

namespace sidestep::protocol {

// What one message holds, in elements.
constexpr uint64_t ring_piece_elements(const CollectiveTask& task, unsigned ranks) {
    const unsigned size =
        task.combine == Combine::none ? size_of(task.element) : accumulator_size_of(task.element);
    return ArenaLayout{ranks}.ring_piece_bytes() / size;
}

// Whether what has come down to `rank` goes on to the rank below.
constexpr bool ring_descends(const Slice& slice, unsigned rank) {
    return (slice.targets & ((1u << rank) - 1)) != 0;
}

// How many ranks a slice that is moved has passed when it comes to `rank`; 0: it begins there.
constexpr unsigned ring_distance(const Slice& slice, unsigned rank, unsigned ranks) {
    unsigned source = 0;
    while (source + 1 < ranks && (slice.sources >> source & 1) == 0) ++source;
    return (rank + ranks - source) % ranks;
}

// Whether a slice that is moved goes on from `rank`.
constexpr bool ring_goes_on(const Slice& slice, unsigned rank, unsigned ranks) {
    const unsigned distance = ring_distance(slice, rank, ranks);
    for (unsigned further = 1; distance + further < ranks; ++further)
        if (slice.targets >> ((rank + further) % ranks) & 1) return true;
    return false;
}

}  // namespace sidestep::protocol
