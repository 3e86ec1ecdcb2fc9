#include "transfer/lane.hpp"

#include <algorithm>

#include "base/try.hpp"

namespace sidestep::transfer {

Bytes phase_of(const Buffer& from, const Buffer& to) {
    if (from.place().is_file()) return from.offset() % file_block;
    return to.place().is_file() ? to.offset() % file_block : 0;
}

Cursor::Span Cursor::take(Bytes chunk) {
    const auto max = [&](Bytes offset) { return offset == 0 && chunk > phase_ ? chunk - phase_ : chunk; };
    if (!returned_.empty()) {
        Span& last = returned_.back();
        const Span span{last.offset, std::min(max(last.offset), last.size)};
        last.offset += span.size;
        last.size -= span.size;
        if (last.size == 0) returned_.pop_back();
        return span;
    }
    const Span span{next_, std::min(max(next_), total_ - next_)};
    next_ += span.size;
    return span;
}

Result<std::unique_ptr<LaneRunner>> LaneRunner::create(LaneSetup setup, StagingPool& pool) {
    // One that moves nothing at a time would do so for ever, and each piece of nothing would pass for progress.
    if (setup.chunk == 0)
        return Error{ErrorCode::internal, "a lane moves at least one byte at a time", "lane"};
    auto lane = std::make_unique<LaneRunner>(std::move(setup));
    const std::span<const ReadyHop> hops = lane->setup_.hops;
    const Bytes chunk = lane->setup_.chunk;
    const std::size_t slots = std::max<Bytes>(lane->setup_.staging / chunk, 1);
    for (std::size_t hop = 0; hop < hops.size() - (lane->setup_.sink ? 0 : 1); ++hop) {
        backend::Backend* const reader = hop + 1 < hops.size() ? hops[hop + 1].backend : nullptr;
        SIDESTEP_TRY(auto ring, SlotRing::create(pool, hops[hop].to, hops[hop].to_memory, slots, chunk,
                                                 hops[hop].backend, reader));
        lane->stops_.push_back(std::move(ring));
    }
    return lane;
}

Result<bool> LaneRunner::step(Cursor& cursor) {
    bool moved = false;
    std::optional<Error> failure;
    const auto note = [&](Result<bool> result) {
        if (result) {
            moved |= *result;
            return;
        }
        stopped_ = true;
        if (!failure) failure = result.error();
    };
    // The chunk furthest along first, so that slots come free for those behind it.
    for (Flight& flight : flights_) note(advance(flight, cursor));
    std::erase_if(flights_, [](const Flight& flight) { return flight.ended; });

    const std::size_t limit = stops_.empty() ? setup_.depth : stops_.size() * stops_[0].slots;
    // Small chunks may end on the spot; a bound on those of one step lets the job see a cancellation, a
    // deadline and its waiters in between.
    for (std::size_t taken = 0; taken < std::min(limit, setup_.max_new); ++taken) {
        if (flights_.size() >= limit || !may_take(cursor)) break;
        Flight& flight = flights_.emplace_back();
        flight.span = cursor.take(setup_.chunk);
        note(advance(flight, cursor));
        moved = true;
        if (flight.ended) flights_.pop_back();
    }
    if (failure) return *failure;
    return moved;
}

void LaneRunner::stop() {
    stopped_ = true;
    for (Flight& flight : flights_)
        if (flight.piece && flight.piece->withdraw()) flight.piece.reset();
}

bool LaneRunner::may_take(const Cursor& cursor) const {
    if (stopped_ || cursor.empty()) return false;
    if (setup_.yields_to != nullptr && setup_.yields_to->load(std::memory_order_relaxed) > 0) return false;
    return stops_.empty() || !stops_[0].free.empty();
}

// Takes one chunk as far as it goes without waiting.
Result<bool> LaneRunner::advance(Flight& flight, Cursor& cursor) {
    bool moved = false;
    while (!flight.ended) {
        if (stopped_ && !flight.piece) {
            drop(flight, cursor);
            return true;
        }
        auto went = flight.piece ? landed(flight) : begin(flight);
        if (!went) {
            if (!flight.ended) drop(flight, cursor);
            if (setup_.parts != nullptr) return setup_.parts->told(went.error(), flight.span);
            return went.error();
        }
        if (!*went) return moved;
        moved = true;
    }
    return moved;
}

// False while the piece is in flight.
Result<bool> LaneRunner::landed(Flight& flight) {
    if (!flight.piece->over()) return false;
    const Result<void> result = flight.piece->result();
    flight.piece.reset();
    SIDESTEP_CHECK(result);
    SIDESTEP_CHECK(land(flight));
    return true;
}

// Starts the flight's next hop; false where no slot is free to receive it.
Result<bool> LaneRunner::begin(Flight& flight) {
    const ReadyHop& hop = setup_.hops[flight.hop];
    backend::Piece piece;
    piece.size = flight.span.size;
    piece.capability = hop.capability;
    piece.stream = setup_.stream;
    piece.awaited = setup_.hops.size() > 1;
    piece.from = setup_.from;
    piece.from_offset = flight.span.offset;
    if (flight.source_slot) {
        piece.from = stops_[flight.hop - 1].read.get();
        piece.from_offset = place_in(*flight.source_slot, flight.span.offset);
    }
    piece.to = setup_.to;
    piece.to_offset = flight.span.offset;
    if (flight.hop < stops_.size()) {
        SlotRing& stop = stops_[flight.hop];
        if (stop.free.empty()) return false;
        flight.target_slot = stop.take();
        piece.to = stop.written.get();
        piece.to_offset = place_in(*flight.target_slot, flight.span.offset);
        // The rest of the slot is the chunk's too.
        piece.room_before = piece.to_offset - *flight.target_slot * setup_.chunk;
        piece.room_after = setup_.chunk - piece.room_before - piece.size;
    }
    const auto started = start(hop, piece, flight);
    if (started && *started == backend::Progress::pending) return true;
    flight.piece.reset();
    SIDESTEP_CHECK(started);
    SIDESTEP_CHECK(land(flight));
    return true;
}

Result<backend::Progress> LaneRunner::start(const ReadyHop& hop, const backend::Piece& piece,
                                            Flight& flight) {
    backend::Flight& begun = flight.piece.emplace(*setup_.owner);
    if (setup_.parts == nullptr) return hop.backend->start(piece, begun);
    const auto pieces = setup_.parts->pieces(flight.span, piece);
    return pieces.size() == 1 ? hop.backend->start(pieces.front(), begun)
                              : hop.backend->batcher()->start_batch(pieces, begun);
}

// The flight's hop has ended well: frees the slot it came from and makes it ready for the next hop.
Result<void> LaneRunner::land(Flight& flight) {
    if (flight.source_slot) stops_[flight.hop - 1].free.push_back(*flight.source_slot);
    flight.source_slot = flight.target_slot;
    flight.target_slot.reset();
    ++flight.hop;
    if (flight.hop < setup_.hops.size()) return {};

    Result<void> seen;
    if (setup_.sink) {
        const char* data = stops_.back().at(0) + place_in(*flight.source_slot, flight.span.offset);
        seen = setup_.sink(flight.span.offset, data, flight.span.size);
        stops_.back().free.push_back(*flight.source_slot);
    }
    arrived_ += flight.span.size;
    flight.ended = true;
    return seen;
}

// Where in a ring a chunk lies: as far into a block as in the file, so that whole blocks go there from a file
// and from there to a file. Only the first chunk does not begin at a block, and that one is shorter for it.
Bytes LaneRunner::place_in(std::size_t slot, Bytes offset) const {
    return slot * setup_.chunk + (offset == 0 ? setup_.phase : 0);
}

// Gives up a chunk of which nothing is in flight.
void LaneRunner::drop(Flight& flight, Cursor& cursor) {
    if (flight.source_slot) stops_[flight.hop - 1].free.push_back(*flight.source_slot);
    if (flight.target_slot) stops_[flight.hop].free.push_back(*flight.target_slot);
    cursor.give_back(flight.span);
    flight.ended = true;
}

}  // namespace sidestep::transfer
