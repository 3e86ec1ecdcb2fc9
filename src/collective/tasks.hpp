// An operation and a choice, as the tasks of one rank.
#pragma once

#include <vector>

#include "collective/choose.hpp"

namespace sidestep::collective {

// Whether tasks_of() knows how to carry the collective in this shape.
bool carries(protocol::Shape shape, Collective collective);

// Among how many ranks what is reduced or broadcast is shared out; 1 where each owner has a slice of the size
// of the call's.
unsigned owners_of_slices(Collective collective, unsigned ranks);

// Whether a broadcast by copies is made of two tasks: the root sends a part to each, who hand them on to each
// other. Its links would carry it ranks - 1 times otherwise.
bool cuts_broadcast_of_copies(std::uint64_t bytes, unsigned ranks);

// With room for the last packet's payload of 8 bytes.
constexpr std::uint64_t rounded_to_packets(std::uint64_t bytes) {
    return (bytes + 7) / 8 * 8;
}

// In the order in which the rank runs them; seldom more than one. Tokens are filled in for each task by
// whoever knows them (`send` and `recv` of the task say for which memory); `number` too. Empty for an
// operation that moves nothing on any rank, and for a shape that does not carry it. Each rank gets what fits
// what the others get from the same operation. The operation has passed check().
std::vector<protocol::CollectiveTask> tasks_of(const Operation& operation, const Choice& choice, int rank,
                                               int ranks);

}  // namespace sidestep::collective
