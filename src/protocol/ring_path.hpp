// Which way pieces of a slice go in Shape::ring. Included by device code.
//
// Combined: up from rank 0 to the last one, who ends the sums, then down to the lowest target. All slices one
// after the other, the pieces of each in order. Moved: from the source on to the next rank, around the end,
// to the last target. Piece by piece: of each, first what comes from the rank itself, then what comes from
// the one before it, and so on; so nobody sends a second piece of its own before it has taken what others
// sent, and nobody waits in a circle.
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
