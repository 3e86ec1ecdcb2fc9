// One call of a collective, as the pure parts of this folder see it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sidestep/collective.hpp>
#include "protocol/collective_task.hpp"

namespace sidestep::collective {

// A send or a receive of a group of them.
struct PairItem {
    bool sends = false;
    int peer = 0;
    void* data = nullptr;
    std::uint64_t bytes = 0;
};

// A call of several that share a launch.
struct CoalescedItem {
    const void* send = nullptr;
    void* recv = nullptr;
    std::uint64_t count = 0;
};

struct Operation {
    Collective collective = Collective::barrier;
    const void* send = nullptr;
    void* recv = nullptr;
    std::uint64_t count = 0;  // as the call's own: of a rank for all_gather and its like
    protocol::Element element = protocol::Element::u8;
    protocol::Combine combine = protocol::Combine::none;  // of the reducing ones
    std::uint64_t scale = 0;                              // as CollectiveTask's
    const void* device_scale = nullptr;
    int root = 0;
    BlockLists blocks;                     // all_to_all_v, in elements
    std::vector<PairItem> pairs;           // send_recv, in the order of the calls
    std::vector<CoalescedItem> coalesced;  // the calls, where there are several; `count` is theirs together
};

// The element type, or why collectives do not take it. f8_e4m3, f8_e5m2, f16, bf16, f32, f64, and integers of
// 8, 32 and 64 bits; `boolean` counts as u8. Collectives that combine nothing take every type of whole bytes.
Result<protocol::Element> element_of(Dtype dtype, bool combines);
std::string_view to_string(protocol::Element element);
std::string_view to_string(protocol::Combine combine);

// all_reduce, reduce and reduce_scatter.
bool combines(Collective collective);
// broadcast, reduce, gather and scatter.
bool has_root(Collective collective);

// The call is sensible by itself: root within the group, pointers where bytes are, an op of the type, in
// place or not overlapping.
Result<void> check(const Operation& operation, int rank, int ranks);

// What every rank must have alike: never 0; equal for equal (collective, element, combine, count, root), and equal
// counts of the calls that are coalesced.
// Those of all_to_all_v and send_recv leave out the counts, which pairs compare themselves. A hash of 32 bits
// (FNV-1a).
std::uint32_t signature_of(const Operation& operation);

// "all_reduce 1048576 f32 sum", "all_reduce 96 f32 sum of 3 calls", "broadcast 3 bf16 from rank 2", "send_recv with ranks 1, 3".
std::string describe(const Operation& operation);

}  // namespace sidestep::collective
