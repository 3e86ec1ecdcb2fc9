// A rank of a group on an emulated GPU.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "backend/backend.hpp"
#include "backends/host/collective/rank_state.hpp"
#include "backends/host/memory.hpp"
#include "base/workers.hpp"

namespace sidestep::backends::host {

// What a seat needs of its backend, which outlives it.
struct SeatSurroundings {
    std::shared_ptr<EmulatedMemory> memory;
    const Topology* machine = nullptr;
    backend::Sharer* sharer = nullptr;
    bool multicast = false;  // as Seat's
};

// Memory of other ranks that was given up while a task was at work, which may be using it: it stays mapped until that
// task has ended. Honest ranks take nothing back that anybody uses. Any thread.
class Outlived {
public:
    // As many as a well-behaved rank can share and take back while one task waits.
    bool full() const {
        const std::lock_guard lock(mutex_);
        return kept_.size() >= protocol::max_slots;
    }
    void take(Allocation mapping) {
        const std::lock_guard lock(mutex_);
        if (at_work_) kept_.push_back(std::move(mapping));
    }
    void task_begins() {
        const std::lock_guard lock(mutex_);
        at_work_ = true;
    }
    void task_ends() {
        std::vector<Allocation> unused;
        const std::lock_guard lock(mutex_);
        at_work_ = false;
        unused.swap(kept_);
    }

private:
    mutable std::mutex mutex_;  // guards what follows
    bool at_work_ = false;
    std::vector<Allocation> kept_;
};

// Tasks run on one thread. There are no streams: `stream` of run() is not looked at,
// since the order of the calls is at least as strict.
class EmulatedSeat final : public backend::Seat {
public:
    // `arena`: memory of the seat's GPU as tasks expect it, which other processes can map without its bytes being moved.
    EmulatedSeat(const backend::SeatRequest& request, SeatSurroundings surroundings, Allocation arena);
    ~EmulatedSeat() override { abort(); }

    const Buffer& arena() const override { return arena_.buffer(); }
    Result<backend::Extent> extent(const void* address) override;
    Result<Allocation> open(const backend::Exported& exported) override;
    Result<void> admit(const Buffer& memory) override;
    bool over_nvlink(const Place& other) const override;
    bool multicast() const override { return surroundings_.multicast; }
    Result<std::shared_ptr<const backend::Exported>> move_arena_to_host() override;
    Result<void> reach(unsigned rank, unsigned slot, std::span<char> memory) override;
    // ErrorCode::out_of_memory where too many tasks wait already: waiting for room would mean waiting for
    // other ranks.
    Result<void> run(const protocol::CollectiveTask& task, void* stream) override;
    Result<bool> idle() override { return tasks_.wait_for({}); }
    // Tasks with the number of the one that began last may still come.
    std::optional<std::uint64_t> ended() const override {
        const std::uint64_t begun = begun_.load(std::memory_order_acquire);
        return begun == 0 ? 0 : begun - 1;
    }
    std::optional<protocol::FaultRecord> fault() const override { return state_.stop.fault(); }
    void abort() noexcept override { state_.stop.abort(); }
    void set_deadline(std::uint64_t ns) override { state_.stop.set_deadline(ns); }

    // For tests: as if so many tasks had gone before. Of an idle seat, and alike on all seats of a group.
    void start_counters_at(std::uint64_t count);

private:
    void take_arena(Allocation arena);
    Result<void> check_reach(const Place& place) const;
    void run_one(const protocol::CollectiveTask& task);

    const Place place_;
    const SeatSurroundings surroundings_;
    Allocation arena_;
    const std::shared_ptr<Outlived> outlived_ = std::make_shared<Outlived>();
    RankState state_;
    std::atomic<std::uint64_t> begun_{0};  // the number of the task that began last
    base::Workers tasks_;                  // last: ends first
};

// ErrorCode::invalid_argument for a seat that cannot be, ErrorCode::out_of_memory where the GPU has no room
// for its arena.
Result<std::unique_ptr<backend::Seat>> make_seat(const backend::SeatRequest& request,
                                                 SeatSurroundings surroundings);

}  // namespace sidestep::backends::host
