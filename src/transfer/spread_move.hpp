// Runs of a chunk on their way between two sides, each a file, a slot or memories.
#pragma once

#include <algorithm>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "base/try.hpp"
#include "transfer/plans.hpp"
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

// Starts the runs piece by piece, or several at once where the engine takes batches. Driven by one thread at
// a time; must be idle before it is destroyed.
class Move {
public:
    // `owner`, `mover`, `attached` and `runs` outlive the move; no run is empty. All memory is attached to the mover.
    Move(backend::PieceOwner& owner, const Mover& mover, const AttachedMemory& attached, const MoveSide& from,
         const MoveSide& to, std::span<const Run> runs)
        : owner_(owner), mover_(mover), attached_(attached), from_(from), to_(to), runs_(runs) {
        for (const Run& run : runs) bytes_ += run.size;
    }

    // Looks at what is in flight and starts what may be started; answers whether anything moved. After an error
    // nothing new is started, and step() only waits for what is in flight.
    Result<bool> step() {
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

    void stop() { stopped_ = true; }

    bool idle() const { return flights_.empty(); }
    // Every run has arrived.
    bool ended() const { return idle() && next_ == runs_.size(); }
    Bytes bytes() const { return bytes_; }
    // The file's byte at which the piece begins that failed.
    Bytes failed_at() const { return failed_at_; }

private:
    struct Flight {
        Flight(backend::PieceOwner& owner, Bytes offset) : piece(owner), file_offset(offset) {}
        backend::Flight piece;
        Bytes file_offset;
    };
    // Of one move: the rest follows as these end, so that a chunk of many small runs stays bounded.
    static constexpr std::size_t max_flights = 16;
    static constexpr std::size_t max_in_batch = 4080;

    Result<void> start_next() {
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

    backend::Registration* of(const MoveSide& side, const Run& run, backend::Access access) const {
        if (side.kind == MoveSide::Kind::file) return side.registration;
        const std::size_t which = side.memory != MoveSide::of_each_run ? side.memory : run.memory;
        return attached_.find(which, mover_.backend, access);
    }

    backend::Piece piece_of(std::size_t run) const {
        const Run& moved = runs_[run];
        backend::Piece piece;
        piece.from = of(from_, moved, backend::Access::read);
        piece.from_offset = from_.offset_of(moved);
        piece.to = of(to_, moved, backend::Access::write);
        piece.to_offset = to_.offset_of(moved);
        piece.size = moved.size;
        piece.capability = mover_.capability;
        if (from_.kind == MoveSide::Kind::file && to_.kind == MoveSide::Kind::slot) {
            // Up to the neighbours in the slot, and its ends.
            const Bytes floor =
                run == 0 ? to_.slot_begin : to_.offset_of(runs_[run - 1]) + runs_[run - 1].size;
            const Bytes ceiling =
                run + 1 == runs_.size() ? to_.slot_begin + to_.slot_size : to_.offset_of(runs_[run + 1]);
            piece.room_before = piece.to_offset - floor;
            piece.room_after = ceiling - (piece.to_offset + piece.size);
        }
        return piece;
    }

    backend::PieceOwner& owner_;
    const Mover& mover_;
    const AttachedMemory& attached_;
    const MoveSide from_;
    const MoveSide to_;
    const std::span<const Run> runs_;
    Bytes bytes_ = 0;
    std::size_t next_ = 0;
    std::list<Flight> flights_;
    Bytes failed_at_ = 0;
    bool stopped_ = false;
};

}  // namespace sidestep::transfer
