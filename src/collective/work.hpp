// What an operation asks of the busiest rank, in each shape of tasks.
#pragma once

#include "collective/choose.hpp"

namespace sidestep::collective {

// What the busiest rank does in one shape.
struct Work {
    std::uint64_t bytes = 0;  // through its links, in the direction that has more
    std::uint64_t local = 0;  // within the GPU
    int hops = 0;             // from one GPU to another, one after the other
    int releases = 0;
    bool packets = false;
    std::uint64_t each = 0;  // packets: from one rank to each other one, in each phase
    double slowed = 1;       // packets: by polling
    int tasks = 0;           // copies: one after the other
    bool lines = false;      // packets: these are lines
    bool lamport = false;    // packets: these have no flags
    bool one_way = false;    // who sends the most does not wait for as much
    bool reads = false;      // slices: through links that carry the requests of other reads the other way
};

class Works {
protected:
    Works(const Operation& operation, const GroupFacts& facts)
        : operation_(operation),
          facts_(facts),
          figures_(facts.figures),
          ranks_(static_cast<unsigned>(facts.ranks)) {}

    bool is(Collective collective) const { return operation_.collective == collective; }
    // In bytes, of one rank for one other rank, or for all, as the operation counts it; 0 where that differs
    // from pair to pair.
    std::uint64_t block() const;
    std::uint64_t others() const { return ranks_ - 1; }
    std::uint64_t owners() const;
    // What goes out or comes in, whichever is more, as far as this rank knows.
    std::uint64_t pairs_bytes() const;

    Work work(protocol::Shape shape) const;
    // Of pairs: `bytes` altogether, of which `each` for each other rank.
    static Work eager_pairs(std::uint64_t bytes, std::uint64_t each);
    static Work direct_pairs(std::uint64_t bytes, std::uint64_t local);

    const Operation& operation_;
    const GroupFacts& facts_;
    const Figures& figures_;
    const unsigned ranks_;
    std::uint64_t eager_max_ = 0;  // of pairs; to be set before work()

private:
    std::uint64_t divided() const;
    std::uint64_t longest_pair() const;
    Work ring_work() const;
    Work copies_work() const;
    Work lines_work() const;
    Work slices_work() const;
    Work pushed_work() const;
    Work slices_through_host_memory() const;
    Work pairs_work() const;
};

}  // namespace sidestep::collective
