// Many copies as one: groups of them in single calls, the rest as copies of their own, side by side.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transfer/batch_plan.hpp"
#include "transfer/job.hpp"

namespace sidestep::transfer {

// Of a Movement's states it has moving, draining and ended: its copies open, verify and commit by themselves.
class BatchJob final : public Movement {
public:
    BatchJob(const Machine& machine, const CopyOptions& options, void* stream)
        : Movement(machine, options, stream, {"the batch", "copied"}) {}
    ~BatchJob() override { close(); }

    // Sorts the copies and starts the first of them. Called once, before all else.
    void begin(const std::vector<BatchCopy>& copies);

    bool starts_copies() const override { return starts_copies_; }

private:
    // Staging memory of a relayed group, a slot for each call.
    struct Relay {
        StagingLease lease;
        Bytes slot = 0;                                  // bytes of one
        std::unique_ptr<backend::Registration> written;  // by the first hop
        std::unique_ptr<backend::Registration> read;     // by the second
        std::vector<std::size_t> free;
    };
    // A group at work.
    struct Bulk {
        BatchGroup group;
        std::vector<std::unique_ptr<backend::Registration>> sources;  // by range; null: no piece needs it
        std::vector<std::unique_ptr<backend::Registration>> targets;
        std::optional<Relay> relay;
        std::size_t next = 0;   // the first piece that was not started
        std::size_t calls = 0;  // in flight
    };
    struct Call {
        Call(backend::PieceOwner& owner, Bulk& of) : bulk(&of), first(of.next), last(of.next) {
            flight.emplace(owner);
        }
        Bulk* bulk;
        std::size_t first;
        std::size_t last;
        Bytes bytes = 0;
        std::size_t slot = 0;    // of a relayed one
        bool handed_on = false;  // it is at the second hop
        std::optional<backend::Flight> flight;
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
    Result<void> add_relay(Bulk& bulk) const;
    Error why_not_on_stream(const BatchCopy& copy, std::size_t position) const;
    std::string where() const override { return "copy_batch"; }
    bool go_on(bool may_block) override;
    void stop() override;
    bool settle(bool may_block) override;
    bool idle() const override { return calls_.empty() && running_.empty(); }
    // Copies of their own watch for stalls themselves, and a stream comes to the batch when it does.
    bool may_stall() const override { return running_.empty() && stream_ == nullptr; }
    Result<void> make_final() override { return {}; }
    Receipt receipt() override;
    void release() override { bulks_.clear(); }

    bool look_at_calls();
    bool start_calls();
    bool start_call(Bulk& bulk);
    bool may_start(const Bulk& bulk) const;
    // The pieces of a call, for the hop that it is at.
    void fill_scratch(const Call& call);
    // What a call's hop has answered, or ended with. True where the call is over.
    bool went_on(Call& call, const Result<void>& result);
    // Gives the call to the hop that it is at.
    Result<backend::Progress> submit(Call& call);
    void land(const Call& call);
    bool run_singles(bool may_block);
    bool look_at(Single& single, std::optional<Error>& failed);
    void count(std::string way, const Receipt& receipt, std::size_t copies);
    void note(std::string text);
    void publish_progress();
    bool all_started() const;

    bool starts_copies_ = false;  // constant after begin()
    // With the mutex held.
    std::vector<std::unique_ptr<Bulk>> bulks_;
    std::list<Call> calls_;
    std::deque<Single> waiting_;
    std::vector<Single> running_;
    std::vector<backend::Piece> scratch_;
    std::vector<Carried> carried_;
    std::vector<std::string> notes_;
    Bytes arrived_ = 0;
    bool all_verified_ = true;
    double copy_seconds_ = 0;  // of the copies of their own, summed; like the next
    double verify_seconds_ = 0;
};

}  // namespace sidestep::transfer
