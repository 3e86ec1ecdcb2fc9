// What the chunks of one spread share: engines, memories, slots, and what came of the bytes.
//
// A lane is what the route calls so: one for each memory that files are spread over, and one for each place,
// and kind of memory there, that files are written from, however many memories lie there. All files of one machine
// that others are written from are one lane.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "base/workers.hpp"
#include "route/fan_out.hpp"
#include "transfer/movement.hpp"
#include "transfer/spread_files.hpp"
#include "transfer/spread_move.hpp"
#include "transfer/spread_sources.hpp"
#include "transfer/spread_stages.hpp"

namespace sidestep::transfer {

// One thread at a time; what the workers do is theirs.
class SpreadWork {
public:
    // All outlive this. `of_pieces`: their owner, and that of what the workers do.
    SpreadWork(Machine& machine, const Spread& moved, const CopyOptions& options,
               const SpreadFiles& its_files, backend::PieceOwner& of_pieces)
        : spread(moved), files(its_files), owner(of_pieces), machine_(machine), options_(options) {}
    // Called once, before all else. Looks at the memories, plans, takes staging memory and attaches. May block.
    Result<void> prepare();

    bool loads() const { return spread.direction == SpreadDirection::to_memory; }
    std::size_t lanes() const { return ends.size(); }
    std::size_t lane_of(std::size_t memory) const { return lane_of_[memory]; }
    // Who moves bytes between the files and slots or memories.
    std::vector<backend::Backend*> file_backends() const;
    // To files: those that are read for them, and memory.
    SpreadSources& sources() { return *reading_; }
    const AttachedMemory& attached() const { return attached_; }
    // It is opening some: this object has to stay meanwhile.
    bool calling() const { return reading_ && reading_->calling(); }
    // To files: whether what is read for them is what it was in the beginning. May block.
    Result<void> check_sources() const;

    // Of a group, the place with the least bytes on the way to it; of equal ones the one that carried least. One that storage
    // reaches, where there is one.
    std::size_t owner_of(const std::vector<std::size_t>& group) const;
    void begin_share(std::size_t lane, Bytes part) { shares_[lane].outstanding += part; }
    void end_share(std::size_t lane, Bytes part) {
        shares_[lane].outstanding -= part;
        shares_[lane].carried += part;
    }

    const Spread& spread;
    const SpreadFiles& files;
    backend::PieceOwner& owner;
    std::atomic<bool> stopped = false;  // nothing has to be looked at any more
    // Look at bytes while those who drive the spread go on.
    base::Workers workers{{std::min<std::size_t>(usable_processors(), 8)}, "spread"};
    SpreadStages stages;
    std::vector<Bytes> arrived;  // by lane: that reached it, or left it

    // Constant once prepared.
    std::vector<route::End> ends;  // by lane
    struct {
        Bytes files = 0;
        Bytes memories = 0;       // that arrive in all memories, or leave them
        double shared = 0;        // part of the files' bytes that every memory gets
        std::vector<double> own;  // by lane: part that it alone gets or gives
    } bytes;
    route::FanOut way;
    ReadyHop storage;  // between file and slot
    // By lane: between slot and memory, in the direction of the spread; where storage reaches the memory, between file and it.
    std::vector<ReadyHop> links;
    std::map<std::pair<std::size_t, std::size_t>, ReadyHop> peers;  // from, to: lanes of one group
    ReadyHop reader;                                                // of verification: file to slot
    std::vector<ReadyHop> fetchers;                                 // by lane: memory to slot
    Bytes chunk = 0;
    SlotRing ring;

private:
    struct Share {
        Bytes outstanding = 0;
        Bytes carried = 0;
    };

    Result<void> look_at_memories();
    Result<void> check_memory(const Buffer& memory) const;
    Result<void> check_targets() const;
    void measure();
    Result<void> plan();
    Result<void> plan_verification(const std::vector<backend::Offer>& offers);
    Result<void> make_ring();
    Result<void> attach_all();
    backend::AttachOptions options_for(backend::Access access, std::size_t which) const;
    Result<SpreadSources::Open> open_source(std::size_t memory) const;
    Result<void> attach(const ReadyHop& mover, backend::Access access, std::size_t which);

    Machine& machine_;
    const CopyOptions options_;
    std::vector<std::size_t> lane_of_;                     // by memory
    std::map<std::size_t, backend::Description> sources_;  // by memory: files that are read
    std::vector<HostLinkTraffic::Use> traffic_;
    AttachedMemory attached_;                 // after the ring: gone before it
    std::unique_ptr<SpreadSources> reading_;  // of to_file
    std::vector<Share> shares_;
};

}  // namespace sidestep::transfer
