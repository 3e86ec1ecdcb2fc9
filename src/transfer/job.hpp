// One copy from submission to receipt: a state machine that whoever is at hand drives.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "transfer/verify.hpp"
#include <sidestep/options.hpp>
#include <sidestep/receipt.hpp>

namespace sidestep::transfer {

// What a job works on; outlives it.
struct Machine {
    const Topology& topology;
    const backend::Registry& registry;
    Plans& plans;
    StagingPool& pool;
    std::chrono::milliseconds drain_limit;
};

// The states, and what leads from one to the next:
//
//   from        to          when
//   gated       moving      the caller's stream has reached the copy
//   moving      verifying   every byte has arrived, and verification was asked for
//   moving      committing  every byte has arrived
//   verifying   committing  both ends are equal
//   committing  ended       the target is final
//   any         draining    a piece failed, cancel, deadline or stall
//   draining    ended       nothing is in flight any more, or the drain limit has passed
//
// step() and the calls built on it may come from any thread; a lock serialises them.
class Job {
public:
    Job(const Machine& machine, const CopyOptions& options, void* stream);
    ~Job();

    // Resolves both ends, plans, attaches and starts the first pieces. Called once, before all else.
    void begin(const Buffer& from, const Buffer& to);

    // Goes on as far as it can without waiting; answers whether anything moved. With `may_block` it also
    // makes a written target final, which can wait for a device.
    bool step(bool may_block);
    // The same if nobody else is driving right now.
    bool try_step(bool may_block);

    void cancel() { cancel_.store(true, std::memory_order_relaxed); }

    // The result is there. Stays true.
    bool finished() const { return finished_.load(std::memory_order_acquire); }
    // Nothing is in flight any more: the job may be destroyed.
    bool drained() const { return drained_.load(std::memory_order_acquire); }
    // It ends only if somebody calls step(): there is more to start, or the target to make final.
    bool needs_driving() const { return needs_driving_ && !finished(); }

    // Only once finished() is true.
    const Result<Receipt>& result() const { return *result_; }

    Bytes bytes_done() const { return done_.load(std::memory_order_relaxed); }
    Bytes bytes_total() const { return total_.load(std::memory_order_relaxed); }

    // How long the copy should take from its start by the route's prices; zero where it has no route, where
    // it moves in chunks, or where the machine is a model. Constant after begin().
    std::chrono::steady_clock::duration expected() const { return expected_; }

    // Set while a caller drives the job, so that the engine's thread leaves it alone.
    std::atomic<int> attended{0};

private:
    using Clock = std::chrono::steady_clock;
    enum class State { gated, moving, verifying, committing, draining, ended };
    struct Attached {
        backend::Backend* backend;
        backend::Access access;
        std::unique_ptr<backend::Registration> registration;
    };

    Result<void> prepare(const Buffer& from, const Buffer& to);
    Result<void> add_lane(std::size_t lane);
    Result<void> add_verifier();
    Result<void> add_gate();
    bool needs_gate() const;
    Result<backend::Registration*> attach(backend::Backend* backend, backend::Access access);
    bool advance(bool may_block);
    bool move();
    bool verify();
    bool commit();
    bool drain();
    void watch(Clock::time_point now);
    void all_arrived();
    void fail(Error error);
    void end();
    bool idle() const;
    double seconds_since_start() const;

    const Machine machine_;
    const CopyOptions options_;
    void* const stream_;
    const Clock::time_point started_ = Clock::now();

    std::mutex mutex_;  // guards everything below that is not atomic
    State state_ = State::moving;
    Ends ends_;
    std::shared_ptr<const ReadyPlan> plan_;
    std::vector<Attached> attached_;
    std::vector<std::unique_ptr<Lane>> lanes_;
    Cursor cursor_;
    std::unique_ptr<Verifier> verifier_;
    std::unique_ptr<backend::Gate> gate_;
    std::optional<Error> failure_;
    Receipt receipt_;
    Clock::time_point last_move_ = started_;
    Clock::time_point drain_since_;
    bool needs_driving_ = true;
    Clock::duration expected_{0};

    std::optional<Result<Receipt>> result_;
    std::atomic<bool> cancel_{false};
    std::atomic<bool> finished_{false};
    std::atomic<bool> drained_{false};
    std::atomic<Bytes> done_{0};
    std::atomic<Bytes> total_{0};
};

}  // namespace sidestep::transfer
