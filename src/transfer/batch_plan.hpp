// Sorts the copies of a batch: which go out together in one call, and which are copies of their own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "transfer/movement.hpp"

namespace sidestep::transfer {

// One copy of a batch. Refers.
struct BatchCopy {
    const Buffer* from;
    const Buffer* to;
};

// Memory that a backend described in one go, in which several ends of the batch lie.
struct BatchRange {
    Buffer memory;
    MemoryKind kind = MemoryKind::pageable;
};

// One copy of a group.
struct BatchPiece {
    std::uint32_t position = 0;  // in the batch
    std::uint32_t from_range = 0;
    std::uint32_t to_range = 0;
    Bytes from_offset = 0;
    Bytes to_offset = 0;
    Bytes size = 0;
};

// Copies that go one way, many in a call. Groups may share ranges.
struct BatchGroup {
    Ends ends;  // those of its first piece's ranges, and all bytes
    std::vector<BatchPiece> pieces;
    std::shared_ptr<const std::vector<BatchRange>> from_ranges;
    std::shared_ptr<const std::vector<BatchRange>> to_ranges;
    std::shared_ptr<const ReadyPlan> plan;  // one lane of one hop, or of two

    const ReadyHop& first() const { return plan->lanes[0].front(); }
    const ReadyHop& last() const { return plan->lanes[0].back(); }
    // By staging memory between two hops.
    bool relayed() const { return plan->lanes[0].size() > 1; }
};

// A piece of a relayed group has at most so many bytes.
constexpr Bytes largest_relayed = Bytes{1} << 20;

struct BatchPlan {
    std::vector<BatchGroup> groups;
    std::vector<std::size_t> singles;  // positions; those that cannot be resolved are among them
    Bytes bytes = 0;                   // of all whose size is known
};

// Groups by places and kinds of memory. Describing a buffer costs a call of the driver, so ends are described
// together where they lie in one allocation: neighbours in address order are tried as one range, and fewer of
// them where that is refused. `on_stream`: everything that one hop carries goes into groups, whatever its size.
BatchPlan plan_batch(Machine& machine, const CopyOptions& options, bool on_stream,
                     const std::vector<BatchCopy>& copies);

}  // namespace sidestep::transfer
