// A piece that a test starts, and waits for.
#pragma once

#include <chrono>
#include <span>
#include <thread>

#include "backend/backend.hpp"

namespace sidestep::test {

// Where it is still in flight when it goes, as where it hangs, the backend has to be gone before.
class StartedPiece final : public backend::PieceOwner {
public:
    StartedPiece(backend::Backend& backend, const backend::Piece& piece)
        : backend_(backend), begun_(backend.start(piece, flight_)) {}
    StartedPiece(backend::Backend& backend, std::span<const backend::Piece> batch)
        : backend_(backend), begun_(backend.batcher()->start_batch(batch, flight_)) {}
    ~StartedPiece() override { close(); }

    // What start() answered.
    const Result<backend::Progress>& begun() const { return begun_; }
    bool done() const { return begun_ && *begun_ == backend::Progress::done; }

    // Looks once, and answers whether nothing of it is in flight.
    bool over() {
        if (!begun_ || done()) return true;
        backend_.look();
        return flight_.over();
    }
    // The same without a look: the backend may be gone.
    bool told() const { return flight_.over(); }
    // What became of it, within a minute.
    Result<void> wait() {
        const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
        while (!over()) {
            if (std::chrono::steady_clock::now() > limit)
                return Error{ErrorCode::timed_out, "the piece has not ended in 60 s", "test", {}};
            std::this_thread::yield();
        }
        if (!begun_) return begun_.error();
        return done() ? Result<void>() : flight_.result();
    }

private:
    void ended() override {}

    backend::Backend& backend_;
    backend::Flight flight_{*this};
    const Result<backend::Progress> begun_;
};

}  // namespace sidestep::test
