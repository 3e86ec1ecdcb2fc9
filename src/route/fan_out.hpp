// Files read once for several places, or written from them: who gets the bytes from whom. Pure, like the
// planner.
#pragma once

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "route/planner.hpp"

namespace sidestep::route {

struct FanOutRequest {
    Place file;               // one of the files
    Bytes bytes = 0;          // of all files
    std::vector<End> places;  // where the bytes go, or come from
    bool to_file = false;
    double shared = 1;          // part of the bytes that every place gets; of writing: nothing is shared
    std::vector<double> own;    // by place: part of the bytes that only it gets or gives; empty: none
    bool through_host = false;  // somebody looks at the bytes in host memory
    Require require = Require::any;
    Prefer prefer = Prefer::automatic;
};

// Bytes that every place gets go to one place of each group, which passes them on to the rest of its group: a
// place that storage reaches directly, where there is one. A place that no other can feed is a group by
// itself.
struct FanOut {
    // One lane a place, in the order of the request: file -> host -> place, or file -> place, with a further
    // hop where the place hands its share on; the other way round for writing. Bytes, rate and seconds count
    // bytes of the files, however many places get each.
    Route route;
    std::vector<bool> direct;   // by place: storage moves bytes to it itself, with no slot in between
    End slots;                  // where the bytes of the others wait
    Choice storage;             // between file and slot
    std::vector<Choice> links;  // by place: between slot and place; direct: between file and place
    std::vector<std::vector<std::size_t>> groups;                 // places, every one in exactly one group
    std::map<std::pair<std::size_t, std::size_t>, Choice> peers;  // from, to: two places of one group

    bool uses_slots() const { return direct.empty() || std::ranges::find(direct, false) != direct.end(); }
    bool any_direct() const { return std::ranges::find(direct, true) != direct.end(); }
};

// The quickest way by its price: seconds that each link, each engine, the storage and host memory need for
// one byte of the files, the largest of which counts. Every other way is kept in the route with the reason it
// was refused. Host memory gives what copies within it move, read and written; a chunk's way through a slot
// takes one part of it for the slot being filled and one for each copy out of it, since the slots of a ring
// stay in the caches while they are filled. Shares cross NVLink only: over PCIe they would take the links that copies
// out of host memory need. ErrorCode::path_unavailable, with all reasons, where no way is left.
Result<FanOut> fan_out(const Topology& topology, const std::vector<backend::Offer>& offers,
                       const FanOutRequest& request);

}  // namespace sidestep::route
