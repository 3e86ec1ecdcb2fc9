#include "backends/host/collective/emulated_seat.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include <fmt/format.h>

#include "backends/host/collective/rank_state.hpp"
#include "base/try.hpp"
#include "base/workers.hpp"
#include "protocol/copy_exchange.hpp"

namespace sidestep::backends::host {
namespace {

using protocol::CollectiveTask;
using protocol::CopyExchange;
using protocol::FaultKind;
using protocol::Shape;

// Some 25 MB of tasks.
constexpr std::size_t max_waiting = 1 << 14;

Error invalid(std::string message) {
    return {ErrorCode::invalid_argument, std::move(message), "emulated seat"};
}

// An arena as tasks expect it at first. It is shared before anybody knows of it: that moves its bytes, and others
// write flags into them later.
struct FreshArena {
    Allocation memory;
    backend::Exported exported;
};
Result<FreshArena> fresh_arena(const SeatSurroundings& surroundings, const Place& place,
                               const protocol::ArenaLayout& layout) {
    const MemoryKind kind = place.is_gpu() ? MemoryKind::device : MemoryKind::pinned;
    SIDESTEP_TRY(auto memory, surroundings.memory->allocate(place, layout.bytes(), kind));
    SIDESTEP_TRY(auto exported, surroundings.sharer->share(memory.buffer()));
    if (!exported)
        return Error{ErrorCode::internal, "memory of an arena cannot be shared", place.to_string()};
    std::memset(static_cast<char*>(memory.address()) + layout.lamport(0, 0), protocol::lamport_empty & 0xff,
                layout.lamport_bytes());
    return FreshArena{std::move(memory), std::move(*exported)};
}

// A copy has ended when the call returns. Lines lie in the arenas.
class OwnCopies final : public protocol::CopyEngine {
public:
    explicit OwnCopies(RankState& state) : state_(state) {}

    bool near(unsigned) override { return false; }
    Result<bool> ready(unsigned) override { return true; }
    Result<void> copy(unsigned, char* to, const char* from, std::uint64_t bytes) override {
        if (state_.copy(to, from, bytes)) return {};
        return Error{ErrorCode::cancelled, "aborted", "emulated seat"};
    }
    Result<std::uint64_t> mark(unsigned) override { return 1; }
    bool ended(unsigned, std::uint64_t) override { return true; }
    char* find(unsigned rank, unsigned slot, std::uint64_t offset, std::uint64_t bytes) override {
        return state_.slots.find(rank, slot, offset, bytes);
    }
    protocol::CopyRow& row(unsigned rank) override {
        return *reinterpret_cast<protocol::CopyRow*>(state_.arena_of(rank) + state_.layout.copy_row());
    }

private:
    RankState& state_;
};

// Shape::copies: what copy engines do on a real GPU, this thread does here.
bool run_copies(RankState& state) {
    OwnCopies engine(state);
    CopyExchange exchange(*state.task, state.me, state.ranks, state.counters.copies, engine);
    Wait wait;
    for (;;) {
        const auto now = exchange.step();
        if (now && *now == CopyExchange::State::ended) return true;
        if (now && *now == CopyExchange::State::moved) {
            wait.restart();
            continue;
        }
        const bool differs = now && *now == CopyExchange::State::differs;
        const FaultKind why = !now ? FaultKind::aborted : differs ? FaultKind::none : wait.pause(state.stop);
        if (why == FaultKind::none && !differs) continue;
        exchange.withdraw();
        if (state.stop.gave_up()) return false;
        if (!differs) return state.give_up({why, now ? exchange.missing() : state.me});
        state.stop.give_up(exchange.fault());
        return false;
    }
}

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
    EmulatedSeat(const backend::SeatRequest& request, SeatSurroundings surroundings, Allocation arena)
        : place_(request.place),
          surroundings_(std::move(surroundings)),
          state_(request.rank, request.ranks, request.deadline_ns),
          tasks_({.threads = 1, .queued = max_waiting}, place_.to_string()) {
        take_arena(std::move(arena));
    }
    ~EmulatedSeat() override { abort(); }

    const Buffer& arena() const override { return arena_.buffer(); }
    Result<backend::Extent> extent(const void* address) override {
        SIDESTEP_TRY(auto extent, surroundings_.memory->extent(address));
        if (extent.whole.place() == place_ || extent.never_lent != nullptr) return extent;
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{} is memory of {}, not of {}", address, extent.whole.place().to_string(),
                                 place_.to_string()),
                     place_.to_string(), "give memory of the rank's own GPU"};
    }
    Result<Allocation> open(const backend::Exported& exported) override {
        SIDESTEP_CHECK(check_reach(exported.place));
        if (outlived_->full())
            return Error{ErrorCode::out_of_memory, "too much memory was taken back while one task waits",
                         place_.to_string(), "wait for it before more is attached"};
        SIDESTEP_TRY(auto opened, surroundings_.sharer->open(exported));
        if (opened) {
            auto mapping = std::make_shared<Allocation>(std::move(*opened));
            return Allocation(mapping->buffer(), mapping->kind(),
                              [mapping, outlived = outlived_] { outlived->take(std::move(*mapping)); });
        }
        return Error{ErrorCode::unsupported,
                     fmt::format("memory of the kind `{}` is not an emulated GPU's", exported.scheme),
                     place_.to_string(), "let all ranks use the same machine (SIDESTEP_MACHINE)"};
    }
    Result<void> admit(const Buffer& memory) override {
        SIDESTEP_CHECK(surroundings_.memory->describe(memory));
        return check_reach(memory.place());
    }
    // Links over which GPUs have native atomics are those of NVLink and its like: over PCIe no GPU has them.
    bool over_nvlink(const Place& other) const override {
        if (!other.is_gpu() || other == place_) return true;
        const PeerAccess access = surroundings_.machine->peer_access(place_.index(), other.index());
        return access.allowed && access.atomics;
    }
    bool multicast() const override { return surroundings_.multicast; }
    Result<std::shared_ptr<const backend::Exported>> move_arena_to_host() override {
        SIDESTEP_TRY(auto fresh, fresh_arena(surroundings_, Place::host(), state_.layout));
        take_arena(std::move(fresh.memory));
        return std::make_shared<const backend::Exported>(std::move(fresh.exported));
    }
    Result<void> reach(unsigned rank, unsigned slot, std::span<char> memory) override {
        if (rank >= state_.ranks || slot >= protocol::max_slots)
            return invalid(fmt::format("there is no slot {} of rank {}", slot, rank));
        state_.slots.set(rank, slot, memory);
        return {};
    }
    // ErrorCode::out_of_memory where too many tasks wait already: waiting for room would mean waiting for
    // other ranks.
    Result<void> run(const CollectiveTask& task, void*) override {
        for (unsigned rank = 0; rank < state_.ranks; ++rank) {
            if (state_.arena_of(rank) == nullptr)
                return invalid(fmt::format("the arena of rank {} is not mapped", rank));
        }
        return tasks_.add([this, task] {
            outlived_->task_begins();
            run_one(task);
            outlived_->task_ends();
        });
    }
    Result<bool> idle() override { return tasks_.wait_for({}); }
    // Tasks with the number of the one that began last may still come.
    std::optional<std::uint64_t> ended() const override {
        const std::uint64_t begun = begun_.load(std::memory_order_acquire);
        return begun == 0 ? 0 : begun - 1;
    }
    std::optional<protocol::FaultRecord> fault() const override { return state_.stop.fault(); }
    void abort() noexcept override { state_.stop.abort(); }
    void set_deadline(std::uint64_t ns) override { state_.stop.set_deadline(ns); }

    void start_counters_at(std::uint64_t count) {
        Counters& counters = state_.counters;
        counters.epoch = count;
        std::ranges::fill(counters.round, count);
        for (auto* way : {&counters.sent, &counters.received})
            for (auto& ranks : *way) std::ranges::fill(ranks, count);
    }

private:
    void take_arena(Allocation arena) {
        arena_ = std::move(arena);
        state_.arena = static_cast<char*>(arena_.address());
        state_.slots.set(state_.me, 0, {state_.arena, arena_.size()});
    }
    Result<void> check_reach(const Place& place) const {
        if (!place.is_gpu() || place == place_) return {};
        const PeerAccess access = surroundings_.machine->peer_access(place_.index(), place.index());
        if (access.allowed) return {};
        return Error{
            ErrorCode::unsupported,
            fmt::format("{} cannot reach {}: {}", place_.to_string(), place.to_string(), access.reason),
            place_.to_string(), access.remedy};
    }
    void run_one(const CollectiveTask& task) {
        if (state_.stop.gave_up()) return;
        state_.task = &task;
        // Arenas were mapped when the task was enqueued, and may have gone since.
        std::optional<unsigned> lost;
        for (unsigned rank = 0; rank < state_.ranks && !lost; ++rank)
            if (state_.arena_of(rank) == nullptr) lost = rank;
        if (state_.stop.aborted()) lost = state_.me;
        if (lost) {
            state_.give_up({FaultKind::aborted, *lost});
            return;
        }
        begun_.store(task.number, std::memory_order_release);
        if (task.shape == Shape::pairs)
            run_pairs(state_);
        else if (task.shape == Shape::copies)
            run_copies(state_);
        else if (task.shape == Shape::ring)
            run_ring(state_);
        else if (task.shape == Shape::slices || task.shape == Shape::pushed_slices)
            run_slices(state_);
        else
            run_packets(state_);
    }

    const Place place_;
    const SeatSurroundings surroundings_;
    Allocation arena_;
    const std::shared_ptr<Outlived> outlived_ = std::make_shared<Outlived>();
    RankState state_;
    std::atomic<std::uint64_t> begun_{0};  // the number of the task that began last
    base::Workers tasks_;                  // last: ends first
};

}  // namespace

void start_counters_at(backend::Seat& seat, std::uint64_t count) {
    static_cast<EmulatedSeat&>(seat).start_counters_at(count);
}

Result<std::unique_ptr<backend::Seat>> make_seat(const backend::SeatRequest& request,
                                                 SeatSurroundings surroundings) {
    if (request.ranks == 0 || request.ranks > protocol::max_ranks || request.rank >= request.ranks)
        return invalid(fmt::format("there is no rank {} of {}; a group has at most {}", request.rank,
                                   request.ranks, protocol::max_ranks));
    const protocol::ArenaLayout layout{request.ranks};
    SIDESTEP_TRY(auto fresh, fresh_arena(surroundings, request.place, layout));
    return std::unique_ptr<backend::Seat>(
        std::make_unique<EmulatedSeat>(request, std::move(surroundings), std::move(fresh.memory)));
}

}  // namespace sidestep::backends::host
