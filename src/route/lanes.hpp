// Several lanes of one copy at once: which of them make it quicker, and what they reach together.
#pragma once

#include <vector>

#include "route/candidate.hpp"

namespace sidestep::route {

struct LaneSet {
    std::vector<Candidate>
        lanes;  // with rate and share as parts of the whole; the quickest alone comes first
    double gb_per_s = 0;
    double seconds = 0;
};

// `best`, or it and those of `others` that make the copy quicker beside it, at most `max` lanes. Links that
// lanes share are divided max-min fairly (progressive filling: Bertsekas and Gallager, Data Networks, 6.5.2).
// A set of one lane is `best` as it was priced: several are taken only where they win clearly, since an
// estimate is one.
LaneSet combine(const Topology& topology, const Candidate& best, std::vector<Candidate> others, Bytes bytes,
                std::size_t max);

// What each lane reaches when all run at once, in GB/s.
std::vector<double> fair_rates(const Topology& topology, const std::vector<Candidate>& lanes);

// Whether a candidate may be a lane beside others: its hops between GPUs go over NVLink, and where an end is
// host memory, it is reached over a GPU's own link. What goes through host memory or PCIe switches twice
// would only take from the lane that is there.
bool may_share_the_work(const Candidate& candidate);

}  // namespace sidestep::route
