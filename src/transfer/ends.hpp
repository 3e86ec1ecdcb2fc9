// From the buffers a caller names to ends that are known to exist and to fit.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "backend/registry.hpp"
#include "route/planner.hpp"

namespace sidestep::transfer {

class SharedMemory;

struct Ends {
    Buffer from;
    Buffer to;  // a whole-file target keeps the size Buffer::whole
    MemoryKind from_memory = MemoryKind::pageable;
    MemoryKind to_memory = MemoryKind::pageable;
    Bytes bytes = 0;
    std::uint64_t from_identity = 0;  // backend::Description::identity
    std::uint64_t from_version = 0;   // of a file that is read whole: Description::version
    std::uint64_t to_identity = 0;
    // Keep memory of other processes mapped; null for an end that is none. To be held until nothing is in
    // flight.
    std::shared_ptr<const void> from_lease = {};
    std::shared_ptr<const void> to_lease = {};
};

// "NAME: REASON" of the first unusable backend that would reach memory at such a place; empty where there is
// none.
std::string why_out_of_reach(const backend::Registry& registry, const Place& place);

// What a buffer is, as the backends say; plain host memory is pageable. ErrorCode::unsupported for files that
// no backend reads, path_unavailable for memory that none reaches.
Result<backend::Description> describe(const backend::Registry& registry, const Buffer& buffer);

// Checks that the place is on this machine and there: not_found names the GPUs or NUMA nodes there are. A place of a node
// (Place::node) is refused, or, by the second one, left to that node to check.
Result<void> check_here(const Topology& topology, const Place& place);
Result<void> check_place(const Topology& topology, const Place& place);

// Checks what a buffer says of itself: a range that can be, memory with an address and a size, a target that is not const.
Result<void> check_buffer(const Buffer& buffer, bool target);

// Asks the backends what the buffers are, and checks that sizes agree, that the target may be written and
// that the two do not overlap. Published memory is mapped by `shared` (null: refused), and its end is then
// what it really is, an address at a host or gpu place; `limit` bounds the wait for its publisher, as for
// SharedMemory::import. Apart from that it opens nothing, and changes nothing.
Result<Ends> resolve_ends(const Topology& topology, const backend::Registry& registry, const Buffer& from,
                          const Buffer& to, SharedMemory* shared = nullptr,
                          std::chrono::milliseconds limit = {});

// Whether two ranges share a byte.
inline bool overlap(Bytes a, Bytes a_size, Bytes b, Bytes b_size) {
    if (a_size == 0 || b_size == 0) return false;
    return a < b ? b - a < a_size : a - b < b_size;
}
// The same of memory: one address space holds that of the host and of every GPU.
inline bool overlap(const Buffer& a, const Buffer& b, Bytes bytes) {
    return overlap(reinterpret_cast<std::uintptr_t>(a.address()), bytes,
                   reinterpret_cast<std::uintptr_t>(b.address()), bytes);
}

inline bool touches_node(const Ends& ends) {
    return !ends.from.place().node().empty() || !ends.to.place().node().empty();
}
inline bool touches_file(const Ends& ends) {
    return ends.from.place().is_file() || ends.to.place().is_file();
}

}  // namespace sidestep::transfer
