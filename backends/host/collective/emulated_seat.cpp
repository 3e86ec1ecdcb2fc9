#include "backends/host/collective/emulated_seat.hpp"

#include <bit>

#include <fmt/format.h>

#include "base/thread.hpp"
#include "base/try.hpp"

namespace sidestep::backends::host {
namespace {

using protocol::CollectiveTask;
using protocol::Combine;
using protocol::Shape;

// Some 25 MB of tasks.
constexpr std::size_t max_waiting = 1 << 14;

Error invalid(std::string message) {
    return {ErrorCode::invalid_argument, std::move(message), "emulated seat", {}};
}

// What a task of packets, or of lamport, sends and takes has to fit in its lanes.
Result<void> check_packets(const CollectiveTask& task, unsigned rank, unsigned ranks) {
    const protocol::ArenaLayout layout{ranks};
    const bool lamport = task.shape == Shape::lamport;
    const std::uint64_t max = lamport ? layout.lamport_payload() : layout.packet_payload();
    const bool moves = task.combine == Combine::none;
    if (lamport && (moves || !protocol::has_lamport(task.element)))
        return invalid("lamport combines floats of 8 to 32 bits");
    for (unsigned r = 0; r < ranks; ++r)
        if (std::max(task.to[r].bytes, task.from[r].bytes) > max && (r != rank || !moves))
            return invalid(fmt::format("{} bytes are more than the lanes hold, which is {}",
                                       std::max(task.to[r].bytes, task.from[r].bytes), max));
    // In place nothing has to be copied, which may be said so.
    const bool copies = !moves || (task.to[rank].bytes != 0 && task.from[rank].bytes != 0);
    if (copies && task.to[rank].bytes != task.from[rank].bytes)
        return invalid(
            fmt::format("{} bytes of the rank's own go to {}", task.to[rank].bytes, task.from[rank].bytes));
    return {};
}

Result<void> check_coalesced(const CollectiveTask& task, unsigned ranks) {
    if (task.calls == 0 || task.calls > protocol::max_coalesced)
        return invalid(fmt::format("{} calls are coalesced", task.calls));
    if (task.recv_blocks != (task.combine == Combine::none))
        return invalid("what is combined has one block, and what is moved one of each rank");
    std::uint64_t unit = 0;
    for (unsigned i = 0; i < task.calls; ++i) {
        if (task.call(i).unit != unit) return invalid("the packets of calls lie one behind the other");
        unit = task.call(i).end();
        if (unit > protocol::ArenaLayout{ranks}.packet_payload() / 8)
            return invalid(fmt::format("{} packets are more than the lanes hold", unit));
    }
    return {};
}

Result<void> check_slices(const CollectiveTask& task, unsigned ranks) {
    for (unsigned r = 0; r < ranks; ++r) {
        const protocol::Slice& slice = task.slices[r];
        if (slice.count == 0) continue;
        if (slice.sources == 0 || (task.combine == Combine::none && !std::has_single_bit(slice.sources)))
            return invalid(fmt::format("slice {} has {} sources", r, std::popcount(slice.sources)));
        if ((slice.sources | slice.targets) >> ranks != 0)
            return invalid(fmt::format("slice {} names ranks that are not there", r));
    }
    return {};
}

// Of two-phase packets and of lines.
Result<void> check_two_phases(const CollectiveTask& task, unsigned ranks) {
    SIDESTEP_CHECK(check_slices(task, ranks));
    const protocol::ArenaLayout layout{ranks};
    const bool lines = task.shape == Shape::lines;
    const std::uint64_t max = lines ? layout.lines_payload() : layout.packet_payload();
    const unsigned all = (1u << ranks) - 1;
    for (unsigned r = 0; r < ranks; ++r) {
        const protocol::Slice& slice = task.slices[r];
        const std::uint64_t bytes = slice.count * protocol::size_of(task.element);
        if (bytes > max)
            return invalid(fmt::format("{} bytes are more than the lanes hold, which is {}", bytes, max));
        if (task.combine != Combine::none && bytes > 0 && slice.sources != all)
            return invalid(fmt::format("slice {} is not combined of what all ranks have", r));
    }
    if (!lines && task.combine == Combine::none) return invalid("packets in two phases combine");
    return {};
}

Result<void> check_ring(const CollectiveTask& task, unsigned ranks) {
    SIDESTEP_CHECK(check_slices(task, ranks));
    const std::uint16_t all = static_cast<std::uint16_t>((1u << ranks) - 1);
    std::uint16_t common = all;
    bool own = true;
    for (unsigned r = 0; r < ranks; ++r) {
        if (task.slices[r].count == 0) continue;
        common = static_cast<std::uint16_t>(common & task.slices[r].sources);
        own = own && task.slices[r].sources == 1u << r;
    }
    if (task.combine != Combine::none && common != all) return invalid("a ring combines what all ranks have");
    if (task.combine == Combine::none && common == 0 && !own)
        return invalid("a ring moves slices of one source, or each of its own rank");
    return {};
}

Result<void> check_copies(const CollectiveTask& task, unsigned rank) {
    if (task.combine != Combine::none) return invalid("copies combine nothing");
    if (task.to[rank].bytes != task.from[rank].bytes)
        return invalid(
            fmt::format("{} bytes of the rank's own go to {}", task.to[rank].bytes, task.from[rank].bytes));
    return {};
}

// Memory that other processes can map without its bytes being moved, as tasks expect it at first.
Result<Allocation> fresh_arena(const SeatSurroundings& surroundings, const Place& place,
                               const protocol::ArenaLayout& layout) {
    const Bytes bytes = layout.bytes();
    const MemoryKind kind = place.is_gpu() ? MemoryKind::device : MemoryKind::pinned;
    SIDESTEP_TRY(auto arena, surroundings.memory->allocate(place, bytes, kind));
    // Now, since it moves the bytes, and later others write flags into them.
    SIDESTEP_CHECK(surroundings.machine->share(arena.address(), bytes));
    std::memset(static_cast<char*>(arena.address()) + layout.lamport(0, 0), protocol::lamport_empty & 0xff,
                layout.lamport_bytes());
    return arena;
}

}  // namespace

EmulatedSeat::EmulatedSeat(const backend::SeatRequest& request, SeatSurroundings surroundings,
                           Allocation arena)
    : place_(request.place),
      surroundings_(std::move(surroundings)),
      arena_(std::move(arena)),
      state_(request.rank, request.ranks, static_cast<char*>(arena_.address()), request.deadline_ns) {
    state_.slots.set(request.rank, 0, {state_.arena, arena_.size()});
}

EmulatedSeat::~EmulatedSeat() {
    abort();
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
}

Result<backend::Extent> EmulatedSeat::extent(const void* address) {
    SIDESTEP_TRY(auto extent, surroundings_.memory->extent(address));
    if (extent.whole.place() == place_ || extent.never_lent != nullptr) return extent;
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{} is memory of {}, not of {}", address, extent.whole.place().to_string(),
                             place_.to_string()),
                 place_.to_string(), "give memory of the rank's own GPU"};
}

Result<void> EmulatedSeat::check_reach(const Place& place) const {
    if (!place.is_gpu() || place == place_) return {};
    const PeerAccess access = surroundings_.access_to(place.index());
    if (access.allowed) return {};
    return Error{ErrorCode::unsupported,
                 fmt::format("{} cannot reach {}: {}", place_.to_string(), place.to_string(), access.reason),
                 place_.to_string(), access.remedy};
}

Result<Allocation> EmulatedSeat::open(const backend::Exported& exported) {
    SIDESTEP_CHECK(check_reach(exported.place));
    if (outlived_->full())
        return Error{ErrorCode::out_of_memory, "too much memory was taken back while one task waits",
                     place_.to_string(), "wait for it before more is attached"};
    SIDESTEP_TRY(auto opened, surroundings_.open(exported));
    if (opened) {
        auto mapping = std::make_shared<Allocation>(std::move(*opened));
        return Allocation(mapping->buffer(), mapping->kind(),
                          [mapping, outlived = outlived_] { outlived->take(std::move(*mapping)); });
    }
    return Error{ErrorCode::unsupported,
                 fmt::format("memory of the kind `{}` is not an emulated GPU's", exported.scheme),
                 place_.to_string(), "let all ranks use the same machine (SIDESTEP_MACHINE)"};
}

Result<void> EmulatedSeat::admit(const Buffer& memory) {
    SIDESTEP_CHECK(surroundings_.memory->describe(memory));
    return check_reach(memory.place());
}

// Links over which GPUs have native atomics are those of NVLink and its like: over PCIe no GPU has them.
bool EmulatedSeat::over_nvlink(const Place& other) const {
    if (!other.is_gpu() || other == place_) return true;
    const PeerAccess access = surroundings_.access_to(other.index());
    return access.allowed && access.atomics;
}

Result<std::shared_ptr<const backend::Exported>> EmulatedSeat::move_arena_to_host() {
    SIDESTEP_TRY(auto arena, fresh_arena(surroundings_, Place::host(), state_.layout));
    SIDESTEP_TRY(auto exported, surroundings_.share(arena.buffer()));
    if (!exported)
        return Error{ErrorCode::internal, "host memory of an arena cannot be shared", place_.to_string(), {}};
    arena_ = std::move(arena);
    state_.arena = static_cast<char*>(arena_.address());
    state_.slots.set(state_.me, 0, {state_.arena, arena_.size()});
    return std::make_shared<const backend::Exported>(std::move(*exported));
}

Result<void> EmulatedSeat::reach(unsigned rank, unsigned slot, std::span<char> memory) {
    if (rank >= state_.ranks || slot >= protocol::max_slots)
        return invalid(fmt::format("there is no slot {} of rank {}", slot, rank));
    state_.slots.set(rank, slot, memory);
    return {};
}

Result<void> EmulatedSeat::check(const CollectiveTask& task) const {
    if (task.signature == 0) return invalid("a task has a signature");
    if (task.blocks == 0 || task.blocks > protocol::max_blocks)
        return invalid(fmt::format("a task has 1 to {} blocks, not {}", protocol::max_blocks, task.blocks));
    for (unsigned rank = 0; rank < state_.ranks; ++rank) {
        if (state_.arena_of(rank) == nullptr)
            return invalid(fmt::format("the arena of rank {} is not mapped", rank));
    }
    if (task.shape == Shape::slices || task.shape == Shape::pushed_slices)
        return check_slices(task, state_.ranks);
    if (task.shape == Shape::ring) return check_ring(task, state_.ranks);
    if (task.shape == Shape::copies) return check_copies(task, state_.me);
    if (task.shape == Shape::packets || task.shape == Shape::lamport)
        return check_packets(task, state_.me, state_.ranks);
    if (task.shape == Shape::coalesced) return check_coalesced(task, state_.ranks);
    if (task.shape != Shape::pairs) return check_two_phases(task, state_.ranks);
    const int lists = (task.device_send_offsets != nullptr) + (task.device_send_counts != nullptr) +
                      (task.device_recv_offsets != nullptr) + (task.device_recv_counts != nullptr);
    return lists == 0 || lists == 4 ? Result<void>() : invalid("all four lists lie in GPU memory, or none");
}

Result<void> EmulatedSeat::run(const CollectiveTask& task, void*) {
    SIDESTEP_CHECK(check(task));
    {
        const std::lock_guard lock(mutex_);
        if (waiting_.size() >= max_waiting) {
            return Error{ErrorCode::out_of_memory,
                         fmt::format("{} tasks wait for the other ranks", waiting_.size()),
                         place_.to_string(), "wait for some of them before more are enqueued"};
        }
        if (!thread_.joinable()) {
            SIDESTEP_TRY(thread_, base::start_thread([this] { work(); }, place_.to_string()));
        }
        waiting_.push_back(task);
        unfinished_.fetch_add(1, std::memory_order_relaxed);
    }
    wake_.notify_one();
    return {};
}

void EmulatedSeat::work() {
    for (;;) {
        CollectiveTask task;
        {
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
            if (waiting_.empty()) return;
            task = waiting_.front();
            waiting_.pop_front();
        }
        outlived_->task_begins();
        run_one(task);
        outlived_->task_ends();
        unfinished_.fetch_sub(1, std::memory_order_release);
    }
}

void EmulatedSeat::run_one(const CollectiveTask& task) {
    if (state_.stop.gave_up()) return;
    if (state_.stop.aborted()) {
        state_.give_up(task, protocol::FaultKind::aborted, state_.me);
        return;
    }
    // They were mapped when the task was enqueued.
    for (unsigned rank = 0; rank < state_.ranks; ++rank) {
        if (state_.arena_of(rank) != nullptr) continue;
        state_.give_up(task, protocol::FaultKind::aborted, rank);
        return;
    }
    begun_.store(task.number, std::memory_order_release);
    switch (task.shape) {
        case Shape::packets:
        case Shape::packets_two_phase:
        case Shape::lamport:
        case Shape::lines:
        case Shape::coalesced:
            run_packets(state_, task);
            return;
        case Shape::slices:
        case Shape::pushed_slices:
            run_slices(state_, task);
            return;
        case Shape::pairs:
            run_pairs(state_, task);
            return;
        case Shape::copies:
            run_copies(state_, task);
            return;
        case Shape::ring:
            run_ring(state_, task);
            return;
    }
}

void EmulatedSeat::start_counters_at(std::uint64_t count) {
    Counters& counters = state_.counters;
    counters.epoch = count;
    for (unsigned block = 0; block < protocol::max_blocks; ++block) {
        counters.round[block] = count;
        for (unsigned rank = 0; rank < protocol::max_ranks; ++rank) {
            counters.sent[block][rank] = counters.received[block][rank] = count;
        }
    }
}

Result<std::unique_ptr<backend::Seat>> make_seat(const backend::SeatRequest& request,
                                                 SeatSurroundings surroundings) {
    if (request.ranks == 0 || request.ranks > protocol::max_ranks || request.rank >= request.ranks)
        return invalid(fmt::format("there is no rank {} of {}; a group has at most {}", request.rank,
                                   request.ranks, protocol::max_ranks));
    const protocol::ArenaLayout layout{request.ranks};
    SIDESTEP_TRY(auto arena, fresh_arena(surroundings, request.place, layout));
    return std::unique_ptr<backend::Seat>(
        std::make_unique<EmulatedSeat>(request, std::move(surroundings), std::move(arena)));
}

}  // namespace sidestep::backends::host
