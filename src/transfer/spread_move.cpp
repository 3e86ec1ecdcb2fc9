#include "transfer/spread_move.hpp"

#include <algorithm>

#include "base/try.hpp"

namespace sidestep::transfer {

Move::Move(backend::PieceOwner& owner, const Mover& mover, const MoveSide& from, const MoveSide& to,
           std::span<const Run> runs)
    : owner_(owner), mover_(mover), from_(from), to_(to), runs_(runs) {
    for (const Run& run : runs) bytes_ += run.size;
}

backend::Piece Move::piece_of(std::size_t run) const {
    const Run& moved = runs_[run];
    backend::Piece piece;
    piece.from = from_.of(moved);
    piece.from_offset = from_.offset_of(moved);
    piece.to = to_.of(moved);
    piece.to_offset = to_.offset_of(moved);
    piece.size = moved.size;
    piece.capability = mover_.capability;
    if (from_.kind == MoveSide::Kind::file && to_.kind == MoveSide::Kind::slot) {
        // Up to the neighbours in the slot, and its ends.
        const Bytes floor = run == 0 ? to_.slot_begin : to_.offset_of(runs_[run - 1]) + runs_[run - 1].size;
        const Bytes ceiling =
            run + 1 == runs_.size() ? to_.slot_begin + to_.slot_size : to_.offset_of(runs_[run + 1]);
        piece.room_before = piece.to_offset - floor;
        piece.room_after = ceiling - (piece.to_offset + piece.size);
    }
    return piece;
}

Result<bool> Move::step() {
    bool moved = false;
    std::optional<Error> failure;
    std::erase_if(flights_, [&](const Flight& flight) {
        if (!flight.piece.over()) return false;
        moved = true;
        if (!flight.piece.result() && !failure) {
            failure = flight.piece.result().error();
            failed_at_ = flight.file_offset;
        }
        return true;
    });
    if (failure) {
        stopped_ = true;
        return *failure;
    }
    // Pieces that end on the spot are bounded too: the next step goes on.
    for (std::size_t started = 0; started < max_flights; ++started) {
        if (stopped_ || next_ == runs_.size() || flights_.size() >= max_flights) break;
        SIDESTEP_CHECK(start_next());
        moved = true;
    }
    return moved;
}

Result<void> Move::start_next() {
    failed_at_ = runs_[next_].file_offset;
    const std::size_t left = runs_.size() - next_;
    backend::Flight& flight = flights_.emplace_back(owner_, failed_at_).piece;
    Result<backend::Progress> begun = backend::Progress::done;
    std::size_t count = 1;
    backend::Batcher* const batcher = mover_.backend->batcher();
    if (batcher != nullptr && left > 1) {
        count = std::min(left, max_in_batch);
        std::vector<backend::Piece> pieces;
        pieces.reserve(count);
        for (std::size_t i = 0; i < count; ++i) pieces.push_back(piece_of(next_ + i));
        begun = batcher->start_batch(pieces, flight);
    } else {
        begun = mover_.backend->start(piece_of(next_), flight);
    }
    if (!begun || *begun == backend::Progress::done) flights_.pop_back();
    if (!begun) {
        stopped_ = true;
        return begun.error();
    }
    next_ += count;
    return {};
}

void merge_adjacent(std::vector<Run>& runs) {
    std::size_t last = 0;
    for (std::size_t i = 1; i < runs.size(); ++i) {
        Run& before = runs[last];
        const Run& run = runs[i];
        if (before.memory == run.memory && before.file_offset + before.size == run.file_offset &&
            before.memory_offset + before.size == run.memory_offset)
            before.size += run.size;
        else
            runs[++last] = run;
    }
    if (!runs.empty()) runs.resize(last + 1);
}

}  // namespace sidestep::transfer
