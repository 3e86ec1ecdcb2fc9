// One copy from submission to receipt, as a Movement.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "transfer/movement.hpp"
#include "transfer/verify.hpp"

namespace sidestep::transfer {

class Job final : public Movement {
public:
    Job(const Machine& machine, const CopyOptions& options, void* stream)
        : Movement(machine, options, stream, {"the copy", "copied"}) {}
    ~Job() override { close(); }

    // Resolves both ends, plans, attaches and starts the first pieces. Called once, before all else.
    void begin(const Buffer& from, const Buffer& to);

private:
    struct Attached {
        backend::Backend* backend;
        backend::Access access;
        std::shared_ptr<backend::Registration> registration;
    };

    std::string where() const override { return target_.to_string(); }
    bool go_on(bool may_block) override;
    bool go_on_beside() override { return move(); }
    bool needs_driver() const override { return state_ != State::moving || idle(); }
    void stop() override;
    bool settle(bool may_block) override;
    bool idle() const override;
    // Where the copy is on the stream itself, only its end tells.
    bool may_stall() const override { return stream_ == nullptr || place_.has_gate(); }
    Result<void> make_final() override;
    Receipt receipt() override;
    void release() override;

    Result<void> prepare(const Buffer& from, const Buffer& to);
    Result<void> attach_ends();
    route::Request request() const;
    Result<void> add_lanes();
    Result<void> add_lane(std::size_t lane);
    LaneSetup shape_of(std::size_t lane) const;
    void count_traffic();
    const std::atomic<int>* yields_to(std::size_t lane) const;
    Result<void> add_verifier();
    bool needs_gate() const;
    Result<backend::Registration*> attach(backend::Backend* backend, backend::Access access);
    bool move();
    bool verify();
    void all_arrived();
    void lose(std::size_t lane, Error error);
    // Between two nodes that do not reach each other any more: goes on by another plan.
    bool may_detour() const;
    Result<void> detour();

    Buffer target_;  // as the caller named it
    Ends ends_;
    std::shared_ptr<const ReadyPlan> plan_;
    std::vector<Attached> attached_;
    std::vector<std::unique_ptr<LaneRunner>> lanes_;  // as in the plan; null: left out for want of memory
    HostLinkTraffic::Use host_link_;
    Cursor cursor_;
    bool is_sparse_ = false;  // holes of the source are not written
    Bytes holes_ = 0;
    Bytes before_ = 0;           // had arrived when the detour began
    std::optional<Error> lost_;  // for which there may be one
    bool on_detour_ = false;
    std::unique_ptr<Verifier> verifier_;
};

}  // namespace sidestep::transfer
