// The lifecycle of everything that moves bytes: a copy (job.cpp), many copies (batch.cpp), files spread over memories or
// gathered from them (spread_job.cpp).
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <sidestep/options.hpp>
#include "base/blocking_calls.hpp"
#include "topology/numbers.hpp"
#include "transfer/activity.hpp"
#include "transfer/lookout.hpp"
#include "transfer/plans.hpp"
#include "transfer/registrations.hpp"
#include "transfer/shared_memory.hpp"
#include "transfer/staging.hpp"
#include "transfer/stream_order.hpp"

namespace sidestep::transfer {

enum class Direction { to_gpu, from_gpu };

// Copies between host memory and each GPU that are at work: lanes that only pass through a GPU make way for them. Safe to use
// from several threads; outlives every Use.
class HostLinkTraffic {
public:
    explicit HostLinkTraffic(const Topology& topology) {
        for (const int gpu : topology::numbers_of(topology, DeviceKind::gpu)) counters_[gpu];
    }

    struct Leave {
        void operator()(std::atomic<int>* counter) const { counter->fetch_sub(1, std::memory_order_relaxed); }
    };
    // Counts one copy for as long as it is there.
    using Use = std::unique_ptr<std::atomic<int>, Leave>;

    Use use(int gpu, Direction direction) {
        counter(gpu, direction).fetch_add(1, std::memory_order_relaxed);
        return Use(&counter(gpu, direction));
    }
    // How many copies of that GPU's own are at work.
    std::atomic<int>& counter(int gpu, Direction direction) {
        return counters_.at(gpu)[direction == Direction::to_gpu ? 0 : 1];
    }

private:
    std::map<int, std::array<std::atomic<int>, 2>> counters_;  // all are there from the start
};

// What the movements of one engine share. Outlives them, but for those that hang at the engine's end.
struct Machine {
    const Topology& topology;
    const backend::Registry& registry;
    const std::chrono::milliseconds drain_limit;  // as Engine's
    const std::shared_ptr<Lookout> lookout;
    StagingPool pool{registry};
    Plans plans{topology, registry, pool};
    // Emptied when the engine goes, since it holds what belongs to the backends.
    const std::shared_ptr<Registrations> registrations = std::make_shared<Registrations>();
    HostLinkTraffic traffic{topology};
    StreamOrder streams{registry};
    // Where published memory is found; null: it is refused. Set before the first copy.
    SharedMemory* shared = nullptr;
    base::BlockingCalls calls{[rung = lookout] { rung->ring(); }};
};

// One that nothing else wakes looks all the same.
inline constexpr std::chrono::milliseconds longest_sleep{1000};

// Most files are opened and closed in less: the submitting or driving thread waits so long.
inline constexpr std::chrono::milliseconds wait_for_file{10};

// The states, and what leads from one to the next:
//
//   from        to          when
//   opening     moving      what it needs is there: open files, memory made ready, a plan
//   gated       moving      the caller's stream has reached it
//   moving      verifying   every byte has arrived, and verification was asked for
//   moving      committing  every byte has arrived
//   verifying   committing  both ends are equal
//   committing  ended       the targets are final
//   any         draining    a piece failed or was abandoned, cancel, deadline or stall
//   draining    ended       nothing is in flight any more, or the drain limit has passed; behind a deadline, or where a
//                           piece was abandoned, at once
//
// A call to a file system may take any time. With a deadline, or a flush, BlockingCalls open files, make them final and close
// them, and the driver looks whether that is over.
//
// A movement may be reported as ended while pieces are still in flight. It is driven on until they are over, if need be for
// ever, and its memory is freed only then.
//
// The gate of a stream opens when the bytes are there and, if that was requested, verified. After a failure it opens when the
// caller has seen the failure or cannot see it any more, at the latest after the drain limit.
//
// Threads of backends end its pieces. If the machine has processors to spare (Lookout), they also carry it on: they pass on
// what has just been read, and fill free slots. They never end the movement, so that nothing is freed on such a thread, which
// may belong to a backend that the movement keeps alive.
class Movement : public Activity, protected backend::PieceOwner {
public:
    bool step(bool may_block) final;
    bool try_step(bool may_block) final;
    void cancel() final;
    void hand_over(bool seen) final;

protected:
    enum class State { opening, gated, moving, verifying, committing, draining, ended };

    // For errors: "the copy", and what becomes of its bytes ("copied").
    struct Names {
        const char* what;
        const char* done;
    };

    // `stream` is a caller's CUstream, or null.
    Movement(Machine& machine, const CopyOptions& options, void* stream, Names names);

    // What differs from one kind to the next. All with the mutex held.

    // For errors: its target, or the call. Asked only then, since a small copy would feel it.
    virtual std::string where() const = 0;
    // Goes on in the states moving and verifying. While draining it only looks at what is in flight, since stop() was called.
    virtual bool go_on(bool may_block) = 0;
    // Goes on with pieces in the state moving, on a thread of a backend.
    virtual bool go_on_beside() { return false; }
    // After that: what comes next is left to who drives.
    virtual bool needs_driver() const { return true; }
    // Starts nothing new from now on. May come again.
    virtual void stop() = 0;
    // Nothing is in flight.
    virtual bool idle() const = 0;
    // A separate call, beside calling(), still has to return before this can be freed.
    virtual bool waits_for_calls() const { return false; }
    // Whether the stall limit counts in the state moving.
    virtual bool may_stall() const { return true; }
    // Every byte is there: gives files their names. May block, and may be made beside everything else. given_up() is
    // true once nobody waits for it any more.
    virtual Result<void> make_final() = 0;
    virtual Receipt receipt() = 0;
    // Releases everything. Nothing is in flight.
    virtual void release() = 0;

    // To be called by begin(), with the mutex held: makes the call that makes ready all that it needs, and goes on.
    void open(base::BlockingCall::Work prepare, bool may_block);
    void begin_moving(const Result<void>& prepared, bool may_block);
    // The same again, beside what drives, where nothing is in flight.
    void open_again(base::BlockingCall::Work prepare);
    // Where two nodes do not reach each other any more, the rest goes by another plan, once: what fails again fails for good.
    bool may_detour(const Ends& ends) const {
        return !on_detour_ && !ends.from.place().node().empty() && !ends.to.place().node().empty();
    }
    // Once nothing is in flight, and as open_again() calls it: what the nodes say against the way, which is noted. Nothing:
    // they do reach each other, and the failure was another.
    std::vector<Objection> against_way(const Ends& ends, Bytes arrived);
    void fail(Error error, bool hurried = false);
    void end();
    // For the receipt. Each once; beyond a bound only that there are more.
    void note(std::string text);
    // Every byte was read again and is equal.
    void all_equal();
    // Destroys `held`, aside where closing files may block for long.
    void let_go(std::shared_ptr<void> held);
    // A further time at which it has to be stepped.
    void wake_no_later(Clock::time_point time) { next_wake_ = std::min(next_wake_, time); }

    // To hand a call over takes 0.05 ms, as long as opening a file: what may take any time makes it itself.
    base::BlockingCalls* aside() const;
    bool calling() const { return call_.running(); }
    bool given_up() const { return given_up_.load(std::memory_order_relaxed); }
    double seconds_since_start() const {
        return std::chrono::duration<double>(Clock::now() - started_).count();
    }
    // So many bytes, as one piece, should take what the route says.
    void expect(const Route& route, Bytes bytes) {
        if (!route.emulated && route.expected_gb_per_s > 0)
            expected_ = std::chrono::nanoseconds(
                static_cast<long>(static_cast<double>(bytes) / route.expected_gb_per_s));
    }
    // As all its files are attached.
    backend::AttachOptions file_options() const {
        backend::AttachOptions made;
        made.page_cache = options_.page_cache;
        made.sync_file = options_.sync_file;
        made.strict = options_.require == Require::direct;
        return made;
    }

    Machine& machine_;
    const std::shared_ptr<Lookout> lookout_ = machine_.lookout;  // rung also by what ends after the machine
    const CopyOptions options_;
    void* const stream_;
    const Clock::time_point started_ = Clock::now();
    // Constant after begin().
    bool asks_files_or_others_ = false;  // file systems, other processes: may take any time to answer
    bool writes_files_ = false;

    std::mutex mutex_;  // guards all below that is not atomic; while calling(), the call has what it works on
    State state_ = State::moving;
    const Names names_;
    StreamPlace place_;  // on a caller's stream
    std::optional<Error> failure_;
    Receipt receipt_;
    Clock::time_point last_move_ = started_;

private:
    void ended() final;
    void abandoned(Error error) final;
    void give_up_abandoned();
    bool advance_locked(bool may_block, std::unique_lock<std::mutex> lock);
    bool advance(bool may_block, Clock::time_point now = Clock::now());
    void set_wake();
    std::chrono::milliseconds asking() const;
    bool stalls() const;
    bool commit(bool may_block);
    void come_to_gate();
    void watch(Clock::time_point now);
    bool drain(bool may_block);
    std::chrono::milliseconds patience() const;
    bool holds_stream();

    base::BlockingCall call_;
    bool on_detour_ = false;
    std::atomic<bool> given_up_{false};
    bool hurried_ = false;  // what is in flight is not waited for any more than the grace
    bool handed_over_ = false;
    Clock::time_point drain_since_;
    std::optional<double> sealing_;  // when the targets began to be made final, in seconds; 0 without files
    Clock::time_point ended_at_;     // with a place on a stream
    Clock::time_point next_wake_;
    std::atomic<bool> news_{false};  // a piece has ended that nobody has looked at yet
    std::atomic<bool> is_abandoned_{false};
    std::mutex abandoning_;  // guards the next
    std::optional<Error> abandoned_;
};

struct BatchCopy;  // transfer/batch_plan.hpp

// The three kinds, begun: what can be started is, on this thread, and errors are found that show before a byte moves.
std::shared_ptr<Movement> begin_copy(Machine& machine, const Buffer& from, const Buffer& to,
                                     const CopyOptions& options, void* stream);
std::shared_ptr<Movement> begin_batch(Machine& machine, const std::vector<BatchCopy>& copies,
                                      const CopyOptions& options, void* stream);
std::shared_ptr<Movement> begin_spread(Machine& machine, Spread spread, const CopyOptions& options);

}  // namespace sidestep::transfer
