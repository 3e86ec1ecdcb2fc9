// Runs of a chunk on their way between two sides, each a file, a slot or memories.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "transfer/lane.hpp"
#include "transfer/spread.hpp"

namespace sidestep::transfer {

// The memories of a spread, and its ring of slots, as they are attached.
struct AttachedMemory {
    // A few for each.
    struct One {
        backend::Backend* backend = nullptr;
        backend::Access access = backend::Access::read;
        std::unique_ptr<backend::Registration> registration;
    };

    // Null where it is not attached so.
    backend::Registration* find(std::size_t which, const backend::Backend* backend,
                                backend::Access access) const {
        for (const One& one : all[which])
            if (one.backend == backend && one.access == access) return one.registration.get();
        return nullptr;
    }

    std::vector<std::vector<One>> all;  // by memory; the ring comes after them
};

// One side of a move, and where a run lies there.
struct MoveSide {
    enum class Kind { file, slot, memory };
    static constexpr std::size_t of_each_run = ~std::size_t{0};

    Kind kind = Kind::memory;
    std::size_t memory = of_each_run;               // as AttachedMemory counts: the one that all runs move by
    backend::Registration* registration = nullptr;  // of a file
    // Slots: where the chunk's room begins in the ring, its size, and which byte of the file lies at its
    // beginning.
    Bytes slot_begin = 0;
    Bytes slot_size = 0;
    Bytes cell_begin = 0;

    Bytes offset_of(const Run& run) const {
        if (kind == Kind::file) return run.file_offset;
        return kind == Kind::memory ? run.memory_offset : slot_begin + (run.file_offset - cell_begin);
    }
};

// A lane of one hop, whose chunks are single runs, or many of them where the engine takes batches. Driven by one thread at a
// time; must be idle before it is destroyed.
class Move : LaneParts {
public:
    // `owner`, `mover`, `attached` and `runs` outlive the move; no run is empty. All memory is attached to the mover.
    Move(backend::PieceOwner& owner, const ReadyHop& mover, const AttachedMemory& attached,
         const MoveSide& from, const MoveSide& to, std::span<const Run> runs)
        : attached_(attached),
          mover_(mover),
          from_(from),
          to_(to),
          runs_(runs),
          calls_(
              cursor_of_parts(runs, mover.backend->batcher() != nullptr ? parts_a_call : 1, Buffer::whole)),
          lane_({.owner = &owner,
                 .hops = {&mover, 1},
                 .parts = this,
                 .chunk = Buffer::whole,
                 .depth = max_flights}) {
        for (const Run& run : runs) bytes_ += run.size;
    }

    // As LaneRunner's.
    Result<bool> step() { return lane_.step(calls_); }
    void stop() { lane_.stop(); }
    bool idle() const { return lane_.idle(); }
    // Every run has arrived.
    bool ended() const { return idle() && calls_.empty(); }
    Bytes bytes() const { return bytes_; }

protected:
    const Run& first_of(Cursor::Span call) const { return runs_[call.offset]; }

private:
    // Of one move: the rest follows as these end, so that a chunk of many small runs stays bounded.
    static constexpr std::size_t max_flights = 16;

    std::span<const backend::Piece> pieces(Cursor::Span call, const backend::Piece& all) final {
        pieces_.clear();
        for (const Run& run : parts_of(runs_, call)) pieces_.push_back(piece_of(run, all));
        return pieces_;
    }

    backend::Registration* of(const MoveSide& side, const Run& run, backend::Access access) const {
        if (side.kind == MoveSide::Kind::file) return side.registration;
        const std::size_t which = side.memory != MoveSide::of_each_run ? side.memory : run.memory;
        return attached_.find(which, mover_.backend, access);
    }

    backend::Piece piece_of(const Run& moved, backend::Piece piece) const {
        piece.from = of(from_, moved, backend::Access::read);
        piece.from_offset = from_.offset_of(moved);
        piece.to = of(to_, moved, backend::Access::write);
        piece.to_offset = to_.offset_of(moved);
        piece.size = moved.size;
        if (from_.kind == MoveSide::Kind::file && to_.kind == MoveSide::Kind::slot) {
            // Up to the neighbours in the slot, and its ends.
            const Run* const run = &moved;
            const Bytes floor =
                run == &runs_.front() ? to_.slot_begin : to_.offset_of(run[-1]) + run[-1].size;
            const Bytes ceiling =
                run == &runs_.back() ? to_.slot_begin + to_.slot_size : to_.offset_of(run[1]);
            piece.room_before = piece.to_offset - floor;
            piece.room_after = ceiling - (piece.to_offset + piece.size);
        }
        return piece;
    }

    const AttachedMemory& attached_;
    const ReadyHop& mover_;
    const MoveSide from_;
    const MoveSide to_;
    const std::span<const Run> runs_;
    Bytes bytes_ = 0;
    std::vector<backend::Piece> pieces_;  // of the call that is made
    Cursor calls_;
    LaneRunner lane_;
};

}  // namespace sidestep::transfer
