// From the buffers a caller names to ends that are known to exist and to fit.
#pragma once

#include "backend/registry.hpp"
#include "route/planner.hpp"

namespace sidestep::transfer {

struct Ends {
    Buffer from;
    Buffer to;               // a whole-file target keeps the size Buffer::whole
    route::End from_end;
    route::End to_end;
    Bytes bytes = 0;
};

// Checks that the place is on this machine and there: not_found names the GPUs or NUMA nodes there are.
Result<void> check_place(const Topology& topology, const Place& place);

// Asks the backends what the buffers are, and checks that sizes agree, that the target may be written
// and that the two do not overlap. Opens nothing, changes nothing.
Result<Ends> resolve_ends(const Topology& topology, const backend::Registry& registry, const Buffer& from,
                          const Buffer& to);

}  // namespace sidestep::transfer
