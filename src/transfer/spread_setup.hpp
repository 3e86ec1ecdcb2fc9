// What a spread works with, made ready before the first byte moves: engines, memories, slots.
//
// A lane is what the route calls so: one for each memory that files are spread over, and one for each place,
// and kind of memory there, that files are written from, however many memories lie there. All files of one machine
// that others are written from are one lane.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "route/fan_out.hpp"
#include "transfer/job.hpp"
#include "transfer/spread_move.hpp"
#include "transfer/spread_sources.hpp"

namespace sidestep::transfer {

// What a spread's bytes come to.
struct SpreadBytes {
    Bytes files = 0;
    Bytes memories = 0;       // that arrive in all memories, or leave them
    double shared = 0;        // part of the files' bytes that every memory gets
    std::vector<double> own;  // by lane: part that it alone gets or gives
};

// Asks the placement for the runs; of a spread that says how many bytes there are, for some chunks only.
// `lane_of`: by memory.
SpreadBytes measure(const Spread& spread, const std::vector<std::size_t>& lane_of);

// One thread at a time.
class SpreadSetup {
public:
    static Result<std::unique_ptr<SpreadSetup>> make(const Machine& machine, const Spread& spread,
                                                     const CopyOptions& options);

    const route::FanOut& way() const { return way_; }
    const SpreadBytes& bytes() const { return bytes_; }
    Bytes chunk() const { return chunk_; }
    std::size_t slots() const { return slots_; }

    const Mover& storage() const { return storage_; }  // between file and slot
    // Who moves bytes between the files and slots or memories.
    std::vector<backend::Backend*> file_backends() const;
    std::size_t lanes() const { return ends_.size(); }
    std::size_t lane_of(std::size_t memory) const { return lane_of_[memory]; }
    // To files: those that are read for them, and memory.
    SpreadSources& sources() { return *reading_; }
    // It is opening some: this object has to stay meanwhile.
    bool calling() const { return reading_ && reading_->calling(); }
    // To files: whether what is read for them is what it was in the beginning. May block.
    Result<void> check_sources() const;
    const Place& place(std::size_t lane) const { return ends_[lane].place; }
    // By lane: between slot and memory, in the direction of the spread; where storage reaches the memory, between file and it.
    const Mover& link(std::size_t lane) const { return links_[lane]; }
    const Mover& peer(std::size_t from, std::size_t to) const { return peers_[from][to]; }
    // Of verification: file to slot, and memory to slot.
    const Mover& reader() const { return reader_; }
    const Mover& fetcher(std::size_t lane) const { return fetchers_[lane]; }

    // Nothing where too few slots are free.
    std::optional<std::vector<std::size_t>> take_slots(std::size_t count);
    void give_back(std::size_t slot) { free_slots_.push_back(slot); }
    const char* slot_data(std::size_t slot) const;

    // The side of a move by that engine, which was attached for that access.
    MoveSide slot_side(const Mover& mover, backend::Access access, std::size_t slot, Bytes cell_begin) const;
    MoveSide memory_side(const Mover& mover, backend::Access access, std::size_t lane) const;
    MoveSide fetched_side(std::size_t lane) const;  // of verification

    // Of a group, the place with the least bytes on the way to it; of equal ones the one that carried least. One that storage
    // reaches, where there is one.
    std::size_t owner_of(const std::vector<std::size_t>& group) const;
    void begin_share(std::size_t lane, Bytes bytes) { shares_[lane].outstanding += bytes; }
    void end_share(std::size_t lane, Bytes bytes);

private:
    // The last one says which memory; the ring comes after them.
    using Key = std::tuple<backend::Backend*, backend::Access, std::size_t>;
    struct Share {
        Bytes outstanding = 0;
        Bytes carried = 0;
    };

    SpreadSetup(const Machine& machine, const Spread& spread, const CopyOptions& options)
        : machine_(machine), spread_(spread), options_(options) {}
    Result<void> look_at_memories();
    Result<void> check_memory(const Buffer& memory) const;
    // No file that is read is one that is written.
    Result<void> check_targets() const;
    Result<void> plan();
    Result<Mover> mover(const std::vector<backend::Offer>& offers, const route::Choice& choice) const;
    Result<void> plan_verification(route::FanOutRequest request, const std::vector<backend::Offer>& offers);
    Result<void> make_ring();
    Result<void> attach_all();
    Result<backend::Registration*> attach(const Mover& mover, backend::Access access, std::size_t which);
    backend::AttachOptions options_for(backend::Access access, std::size_t which) const;
    Result<void> attach_memory(std::size_t memory);
    Result<SpreadSources::Open> open_source(std::size_t memory) const;
    backend::Registration* find(const Mover& mover, backend::Access access, std::size_t which) const;
    void count_traffic();

    const Machine machine_;
    const Spread& spread_;
    const CopyOptions options_;
    std::vector<route::End> ends_;                         // by lane
    std::vector<std::size_t> lane_of_;                     // by memory
    std::map<std::size_t, backend::Description> sources_;  // by memory: files that are read
    SpreadBytes bytes_;
    route::FanOut way_;
    Mover storage_;
    std::vector<Mover> links_;
    std::vector<std::vector<Mover>> peers_;
    Mover reader_;
    std::vector<Mover> fetchers_;
    std::vector<HostLinkTraffic::Use> traffic_;
    Bytes chunk_ = 0;
    std::size_t slots_ = 0;
    std::vector<std::size_t> free_slots_;
    StagingLease ring_;
    std::map<Key, std::unique_ptr<backend::Registration>> attached_;  // after the ring: gone before it
    std::unique_ptr<SpreadSources>
        reading_;  // of to_file: attached to their lane's link, and for verification
    std::vector<Share> shares_;
};

}  // namespace sidestep::transfer
