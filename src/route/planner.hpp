// Topology and offers in, Route out. Pure functions: no clock, no device, no file is asked.
#pragma once

#include <map>
#include <vector>

#include <sidestep/options.hpp>
#include <sidestep/route.hpp>
#include <sidestep/topology.hpp>
#include "backend/capability.hpp"
#include "base/rounding.hpp"

namespace sidestep::route {

// One end of a copy: a place and the kind of memory that lies there.
struct End {
    Place place;
    MemoryKind memory = MemoryKind::pageable;

    bool operator==(const End&) const = default;
};

struct Request {
    End from;
    End to;
    Bytes bytes = 0;
    Require require = Require::any;
    Prefer prefer = Prefer::automatic;
    Bytes max_staging = Bytes{256} << 20;
    int lanes = 0;                           // as CopyOptions::lanes
    std::map<int, Bytes> relay_memory = {};  // by GPU: what it lends as a relay; others lend
};

// Which offer and which of its capabilities carries out a hop.
struct Choice {
    std::size_t offer = 0;
    std::size_t capability = 0;

    bool operator==(const Choice&) const = default;
};

// A Route for people, and the same route for the executor: `choices[l][h]` belongs to
// `route.lanes[l].hops[h]`.
struct Plan {
    Route route;
    std::vector<std::vector<Choice>> choices;
};

// The best lane there is, or several where together they are clearly quicker, every other candidate with the
// reason it was refused. Fails with
// ErrorCode::path_unavailable, the message holding every refusal, where no candidate is left.
Result<Plan> plan(const Topology& topology, const std::vector<backend::Offer>& offers,
                  const Request& request);

// Bytes that a staged lane moves at a time unless another size is requested.
constexpr Bytes staged_chunk = Bytes{4} << 20;

// The same for one of several lanes: so small that each moves four chunks or more, so large that a chunk is
// worth its two copies. The most was the best of 1 to 16 MiB on 4 x H200.
constexpr Bytes min_lane_chunk = Bytes{1} << 20;
// Staging memory that a stop takes at least: a block of a file.
constexpr Bytes min_stop = 4096;
constexpr Bytes max_lane_chunk = Bytes{8} << 20;
constexpr Bytes lane_chunk(Bytes bytes, std::size_t lanes) {
    const Bytes part = base::round_up(bytes / (4 * lanes), 4096);
    return part < min_lane_chunk ? min_lane_chunk : part > max_lane_chunk ? max_lane_chunk : part;
}

}  // namespace sidestep::route
