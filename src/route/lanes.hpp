// Lanes of a copy and their prices: one by itself, and several at once.
#pragma once

#include <vector>

#include "route/hops.hpp"

namespace sidestep::route {

// A lane that works, priced.
struct Candidate {
    Lane lane;
    std::vector<HopOption> options;  // of the hops
    double seconds = 0;
    int alternatives = 0;  // neighbours that would serve as well
};

// Rates, latency and seconds of a lane made of these hops: rate = min over hops, links that several hops
// of the lane cross in the same direction divided among them; seconds = latencies + first chunk through
// every hop + the rest at the lane's rate.
Candidate price(const Topology& topology, std::vector<HopOption> hops, Bytes bytes);

struct LaneSet {
    // With rate and share as parts of the whole; the quickest alone comes first.
    std::vector<Candidate> lanes;
    double gb_per_s = 0;
    double seconds = 0;
};

// `best`, or it and those of `others` that make the copy quicker beside it, at most `max` lanes. A set of one
// lane is `best` as it was priced: several are taken only where they win clearly, since an estimate is one.
LaneSet combine(const Topology& topology, const Candidate& best, std::vector<Candidate> others, Bytes bytes,
                std::size_t max);

// Whether a candidate may be a lane beside others: its hops between GPUs go over NVLink, and where an end is
// host memory, it is reached over a GPU's own link. What goes through host memory or PCIe switches twice
// would only take from the lane that is there.
bool may_share_the_work(const Candidate& candidate);

}  // namespace sidestep::route
