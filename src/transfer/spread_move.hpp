// Runs of a chunk on their way between two registrations.
#pragma once

#include <list>
#include <span>
#include <vector>

#include "backend/backend.hpp"
#include "transfer/spread.hpp"

namespace sidestep::transfer {

// One engine of one backend.
struct Mover {
    backend::Backend* backend = nullptr;
    std::size_t capability = 0;
};

// One side of a move, and where a run lies there.
struct MoveSide {
    enum class Kind { file, slot, memory };
    Kind kind = Kind::memory;
    backend::Registration* registration = nullptr;
    const std::vector<backend::Registration*>* by_memory = nullptr;  // instead: that of each run's memory
    // Slots: where the chunk's room begins in the ring, its size, and which byte of the file lies at its
    // beginning.
    Bytes slot_begin = 0;
    Bytes slot_size = 0;
    Bytes cell_begin = 0;

    backend::Registration* of(const Run& run) const {
        return by_memory != nullptr ? (*by_memory)[run.memory] : registration;
    }
    Bytes offset_of(const Run& run) const {
        if (kind == Kind::file) return run.file_offset;
        return kind == Kind::memory ? run.memory_offset : slot_begin + (run.file_offset - cell_begin);
    }
};

// Starts the runs piece by piece, or several at once where the engine takes batches. Driven by one thread at
// a time; must be idle before it is destroyed.
class Move {
public:
    // `owner`, `mover` and `runs` outlive the move; no run is empty.
    Move(backend::PieceOwner& owner, const Mover& mover, const MoveSide& from, const MoveSide& to,
         std::span<const Run> runs);

    // Looks at what is in flight and starts what may be started; answers whether anything moved. After an error
    // nothing new is started, and step() only waits for what is in flight.
    Result<bool> step();
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

    Result<void> start_next();
    backend::Piece piece_of(std::size_t run) const;

    backend::PieceOwner& owner_;
    const Mover& mover_;
    const MoveSide from_;
    const MoveSide to_;
    const std::span<const Run> runs_;
    Bytes bytes_ = 0;
    std::size_t next_ = 0;
    std::list<Flight> flights_;
    Bytes failed_at_ = 0;
    bool stopped_ = false;
};

// Joins runs that lie together in the file, the memory and the target memory. Runs of one memory, in the
// order of the file.
void merge_adjacent(std::vector<Run>& runs);

}  // namespace sidestep::transfer
