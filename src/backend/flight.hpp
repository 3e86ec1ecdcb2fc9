// Pieces in flight, and the owners that are notified when they end.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include <sidestep/result.hpp>

namespace sidestep::backend {

// An owner that starts pieces. It has to live until all of them have ended, and then until close() has
// returned.
class PieceOwner {
public:
    virtual ~PieceOwner() = default;

protected:
    // A piece has ended, or more than one. On the thread that ended it, and on several at once: it does not block for long,
    // and it does not destroy this object. It may start other pieces.
    virtual void ended() = 0;
    // A piece will not end soon, as Flight::abandon() says. On any thread, like ended().
    virtual void abandoned(Error error) { static_cast<void>(error); }
    // Waits until no thread is in ended(). To be called before anything goes that ended() uses.
    void close() const;

private:
    friend class Flight;
    std::atomic<unsigned> inside_{0};
};

// What a backend has queued, where it can take that back.
class Withdrawable {
public:
    virtual ~Withdrawable() = default;
    // What nobody has begun never will be. True: nothing else was left, and Flight::end() is not called.
    virtual bool withdraw() = 0;
};

// One piece in flight, or one batch: what start() is given. Stays where it is until it is over.
class Flight {
public:
    explicit Flight(PieceOwner& owner) : owner_(owner) {}
    Flight(const Flight&) = delete;
    Flight& operator=(const Flight&) = delete;

    // For the backend, once, after start() or beside it: nothing of the piece is in flight any more. On any thread, with
    // no lock held; never from within start(). Afterwards the flight may be gone.
    void end(Result<void> result);

    // For the backend, within start(). What is queued may outlive the piece.
    void queued(std::shared_ptr<Withdrawable> work) { queued_ = std::move(work); }
    // For the owner, who wants the piece no more. True: it is over, and there is no result.
    bool withdraw() { return !over() && queued_ && queued_->withdraw(); }

    // For the backend, before end(), and not beside it: the piece will not end in any foreseeable time, since its peer is
    // dead, say, and may be read or written to until then. Its owner says so at once, and keeps all that the piece may
    // touch until end(), which is still to come.
    void abandon(Error error) { owner_.abandoned(std::move(error)); }

    // For the owner. Once true, result() is there, and what the piece wrote is seen.
    bool over() const { return over_.load(std::memory_order_acquire); }
    const Result<void>& result() const { return result_; }

private:
    PieceOwner& owner_;
    std::shared_ptr<Withdrawable> queued_;  // null: what has been started cannot be taken back
    Result<void> result_;
    std::atomic<bool> over_{false};
};

}  // namespace sidestep::backend
