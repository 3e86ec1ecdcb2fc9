// One copy from submission to receipt: a state machine that whoever is at hand drives.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <sidestep/options.hpp>
#include <sidestep/receipt.hpp>
#include "base/blocking_calls.hpp"
#include "transfer/host_link_traffic.hpp"
#include "transfer/progress_list.hpp"
#include "transfer/registrations.hpp"
#include "transfer/shared_memory.hpp"
#include "transfer/stream_order.hpp"
#include "transfer/verify.hpp"

namespace sidestep::transfer {

// What a job works on; outlives it.
struct Machine {
    const Topology& topology;
    const backend::Registry& registry;
    Plans& plans;
    StagingPool& pool;
    HostLinkTraffic& traffic;
    StreamOrder& streams;
    base::BlockingCalls& calls;
    Registrations& registrations;
    ProgressList& progress_list;
    SharedMemory* shared;  // null: published memory is refused
    std::chrono::milliseconds drain_limit;
};

// The states, and what leads from one to the next:
//
//   from        to          when
//   opening     moving      both ends are open
//   gated       moving      the caller's stream has reached the copy
//   moving      verifying   every byte has arrived, and verification was asked for
//   moving      committing  every byte has arrived
//   verifying   committing  both ends are equal
//   committing  ended       the target is final
//   any         draining    a piece failed, cancel, deadline or stall
//   draining    ended       nothing is in flight any more, or the drain limit has passed; behind a deadline, at once
//
// What asks a file system may take any time: where there is a deadline, or a flush, files are opened, made final and
// closed by BlockingCalls, and whoever drives looks whether that is over.
// The gate opens when the bytes are there and, if asked for, verified. That of a copy that failed opens when
// the caller has the failure in hand or cannot ask for it any more, or as long as the drain limit after it.
class Job final : public Activity {
public:
    Job(const Machine& machine, const CopyOptions& options, void* stream);
    ~Job() override;

    // Resolves both ends, plans, attaches and starts the first pieces. Called once, before all else.
    void begin(const Buffer& from, const Buffer& to);

    bool step(bool may_block) override;
    bool try_step(bool may_block) override;
    void assist() override;
    void hand_over(bool seen) override;

private:
    using Clock = std::chrono::steady_clock;
    enum class State { opening, gated, moving, verifying, committing, draining, ended };
    struct Attached {
        backend::Backend* backend;
        backend::Access access;
        std::shared_ptr<backend::Registration> registration;
    };

    Result<void> prepare(const Buffer& from, const Buffer& to);
    void call(std::function<Result<void>()> what, std::chrono::nanoseconds patience);
    bool calls_aside() const;
    std::optional<Result<void>> outcome();
    void opened(const Result<void>& prepared);
    route::Request request() const;
    Result<void> add_lanes();
    Result<void> add_lane(std::size_t lane);
    LaneSetup shape_of(std::size_t lane) const;
    void count_traffic();
    const std::atomic<int>* yields_to(std::size_t lane) const;
    Result<void> add_verifier();
    bool needs_gate() const;
    Result<backend::Registration*> attach(backend::Backend* backend, backend::Access access);
    bool advance(bool may_block);
    void come_to_gate();
    bool move();
    bool verify();
    bool commit();
    Result<void> make_final();
    bool drain();
    void stop_lanes();
    void close_ends();
    void watch(Clock::time_point now);
    void all_arrived();
    void lose(std::size_t lane, Error error);
    void fail(Error error);
    void end();
    bool holds_stream();
    bool idle() const;
    double seconds_since_start() const;

    const Machine machine_;
    const CopyOptions options_;
    void* const stream_;
    const Clock::time_point started_ = Clock::now();

    // While it is set, the call alone has what it works on: all that prepare() makes, or attached_.
    std::atomic<bool> calling_{false};
    std::optional<Result<void>> outcome_;  // of the call

    std::mutex mutex_;  // guards everything below that is not atomic
    State state_ = State::moving;
    Ends ends_;
    std::shared_ptr<const ReadyPlan> plan_;
    std::vector<Attached> attached_;
    std::vector<std::unique_ptr<LaneRunner>> lanes_;  // as in the plan; null: left out for want of memory
    HostLinkTraffic::Use host_link_;
    Cursor cursor_;
    std::unique_ptr<Verifier> verifier_;
    StreamPlace place_;  // on a caller's stream
    bool handed_over_ = false;
    std::optional<Error> failure_;
    Receipt receipt_;
    Clock::time_point last_move_ = started_;
    Clock::time_point drain_since_;
    std::optional<Clock::time_point> sealing_;  // since when the target is made final
    std::string target_;                        // for errors
    Clock::time_point ended_at_;
    ProgressList::Entry progress_entry_;
};

}  // namespace sidestep::transfer
