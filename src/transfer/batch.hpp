// Many copies as one: groups of them in single calls, the rest as copies of their own, side by side.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transfer/batch_plan.hpp"
#include "transfer/job.hpp"

namespace sidestep::transfer {

// The states, and what leads from one to the next:
//
//   from        to          when
//   moving      ended       every copy has ended well
//   any         draining    a call or a copy failed, cancel, deadline or stall
//   draining    ended       nothing is in flight any more, or the drain limit has passed
//
class BatchJob final : public Activity {
public:
    BatchJob(const Machine& machine, const CopyOptions& options, void* stream);
    ~BatchJob() override;

    // Sorts the copies and starts the first of them. Called once, before all else.
    void begin(const std::vector<BatchCopy>& copies);

    bool step(bool may_block) override;
    bool try_step(bool may_block) override;
    void hand_over(bool seen) override;
    bool starts_copies() const override { return starts_copies_; }

private:
    using Clock = std::chrono::steady_clock;
    enum class State { moving, draining, ended };

    // A group at work.
    struct Bulk {
        BatchGroup group;
        std::vector<std::unique_ptr<backend::Registration>> sources;  // by range; null: no piece needs it
        std::vector<std::unique_ptr<backend::Registration>> targets;
        std::size_t next = 0;   // the first piece that was not started
        std::size_t calls = 0;  // in flight
    };
    struct Call {
        Bulk* bulk = nullptr;
        std::size_t first = 0;
        std::size_t last = 0;
        Bytes bytes = 0;
        backend::Ticket ticket;
    };
    // A copy of its own.
    struct Single {
        std::size_t position = 0;
        Buffer from;
        Buffer to;
        std::shared_ptr<Job> job;  // null before it is begun
        bool counted = false;      // its result was looked at
    };
    // What went one way.
    struct Carried {
        std::string way;
        std::shared_ptr<const Route> route;
        std::vector<Bytes> lane_bytes;
        Bytes bytes = 0;
        std::size_t copies = 0;
    };

    Result<void> prepare(const std::vector<BatchCopy>& copies);
    Result<void> attach(Bulk& bulk);
    Error why_not_on_stream(const BatchCopy& copy, std::size_t position) const;
    bool advance(bool may_block);
    bool poll_calls();
    bool start_calls();
    bool start_call(Bulk& bulk);
    void land(const Call& call);
    bool run_singles(bool may_block);
    bool look_at(Single& single, std::optional<Error>& failed);
    void count(std::string way, const Receipt& receipt, std::size_t copies);
    void note(std::string text);
    void watch(Clock::time_point now);
    bool drain();
    void fail(Error error);
    void end();
    Receipt receipt();
    void publish_progress();
    bool all_started() const;
    bool idle() const { return calls_.empty() && running_.empty(); }

    const Machine machine_;
    const CopyOptions options_;
    void* const stream_;
    const Clock::time_point started_ = Clock::now();
    bool starts_copies_ = false;  // constant after begin()

    std::mutex mutex_;  // guards everything below that is not atomic
    State state_ = State::moving;
    std::vector<std::unique_ptr<Bulk>> bulks_;
    std::vector<Call> calls_;
    std::deque<Single> waiting_;
    std::vector<Single> running_;
    std::vector<backend::Piece> scratch_;
    std::vector<Carried> carried_;
    std::vector<std::string> notes_;
    Bytes arrived_ = 0;
    bool all_verified_ = true;
    double copy_seconds_ = 0;  // of the copies of their own, summed; like the next
    double verify_seconds_ = 0;
    StreamPlace place_;  // on a caller's stream
    std::optional<Error> failure_;
    Clock::time_point last_move_ = started_;
    Clock::time_point drain_since_;
};

}  // namespace sidestep::transfer
