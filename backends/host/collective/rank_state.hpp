// What the thread of an emulated seat works with, and how it waits for other ranks.
#pragma once

#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "backends/host/collective/arena_words.hpp"
#include "backends/host/collective/combine.hpp"
#include "protocol/collective_task.hpp"
#include "protocol/copy_exchange.hpp"
#include "protocol/slot_table.hpp"

namespace sidestep::backends::host {

// Why and when tasks stop. Any thread.
class StopSign {
public:
    explicit StopSign(std::uint64_t deadline_ns) : deadline_ns_(deadline_ns) {}

    void abort() { aborted_.store(true, std::memory_order_relaxed); }
    bool aborted() const { return aborted_.load(std::memory_order_relaxed); }
    void set_deadline(std::uint64_t ns) { deadline_ns_.store(ns, std::memory_order_relaxed); }
    std::uint64_t deadline_ns() const { return deadline_ns_.load(std::memory_order_relaxed); }

    // By the seat's thread, once.
    void give_up(const protocol::FaultRecord& record) {
        record_ = record;
        gave_up_.store(true, std::memory_order_release);
    }
    bool gave_up() const { return gave_up_.load(std::memory_order_acquire); }
    // An abort counts before a task has come across it.
    std::optional<protocol::FaultRecord> fault() const {
        if (gave_up()) return record_;
        return aborted() ? std::optional(protocol::FaultRecord{protocol::FaultKind::aborted}) : std::nullopt;
    }

private:
    std::atomic<bool> aborted_{false};
    std::atomic<std::uint64_t> deadline_ns_;
    std::atomic<bool> gave_up_{false};
    protocol::FaultRecord record_;  // constant once gave_up_
};

// What a rank counts for itself: see ArenaLayout.
struct Counters {
    std::uint64_t epoch = 0;
    std::uint32_t lamport = 0;
    std::uint64_t round[protocol::max_blocks] = {};
    std::uint64_t sent[protocol::max_blocks][protocol::max_ranks] = {};
    std::uint64_t received[protocol::max_blocks][protocol::max_ranks] = {};
    protocol::CopyCounters copies;
};

// Of the seat's thread, except for what says otherwise.
struct RankState {
    RankState(unsigned rank, unsigned of_ranks, char* own_arena, std::uint64_t deadline_ns)
        : me(rank), ranks(of_ranks), layout{of_ranks}, arena(own_arena), slots(of_ranks), stop(deadline_ns) {}

    const unsigned me;
    const unsigned ranks;
    const protocol::ArenaLayout layout;
    char* arena;                // constant once the first task has come
    protocol::SlotTable slots;  // any thread
    StopSign stop;              // any thread
    Counters counters;
    std::vector<char> scratch;

    // The others, beginning behind this one so that not all turn to one at the same time.
    unsigned other(unsigned i) const { return (me + 1 + i) % ranks; }
    unsigned others() const { return ranks - 1; }
    char* arena_of(unsigned rank) const { return rank == me ? arena : slots.find(rank, 0); }

    // Of the running task: ends it, and every one after it. Always false.
    bool give_up(const protocol::CollectiveTask& task, protocol::FaultKind kind, unsigned peer);
    bool give_up_of_mismatch(const protocol::CollectiveTask& task, unsigned peer,
                             std::uint64_t peer_signature);
};

// One wait for another rank. Several ranks share few processors: whoever waits lets the others go first.
class Wait {
public:
    // After a look that found nothing: gives the processor away. Anything but `none`: no use waiting on.
    protocol::FaultKind pause(const StopSign& stop);
    // The same without giving the processor away, for one of many waits.
    protocol::FaultKind check(const StopSign& stop);
    void restart() { looks_ = 0; }

private:
    unsigned looks_ = 0;
    std::chrono::steady_clock::time_point since_;
};

// Gives the processor away, for longer the more looks found nothing.
void rest(unsigned looks);

// Waits until `ready(r)` says so for every other rank r; false: the task gave up. A `ready` that gives up
// itself ends the wait too.
template <typename Ready>
bool wait_for_others(RankState& state, const protocol::CollectiveTask& task, Ready ready) {
    unsigned missing = ((1u << state.ranks) - 1) & ~(1u << state.me);
    Wait wait;
    for (;;) {
        for (unsigned rank = 0; rank < state.ranks; ++rank) {
            if ((missing >> rank & 1) == 0 || !ready(rank)) continue;
            if (state.stop.gave_up()) return false;
            missing &= ~(1u << rank);
        }
        if (missing == 0) return true;
        const auto why = wait.pause(state.stop);
        if (why == protocol::FaultKind::none) continue;
        return state.give_up(task, why, static_cast<unsigned>(std::countr_zero(missing)));
    }
}

// Copies in pieces, so that an abort is soon seen; false: it was. The two may be the same memory.
bool copy_bytes(RankState& state, const protocol::CollectiveTask& task, char* to, const char* from,
                std::uint64_t bytes);

// Each runs one task of its shape; false: it gave up, and `state.stop` says why.
bool run_packets(RankState& state, const protocol::CollectiveTask& task);
bool run_slices(RankState& state, const protocol::CollectiveTask& task);
bool run_pairs(RankState& state, const protocol::CollectiveTask& task);
bool run_copies(RankState& state, const protocol::CollectiveTask& task);
bool run_ring(RankState& state, const protocol::CollectiveTask& task);

inline bool has_device_lists(const protocol::CollectiveTask& task) {
    return task.device_send_counts != nullptr;
}

// The scale of this rank, as the task has it or as GPU memory does.
std::uint64_t scale_of(const protocol::CollectiveTask& task);

// `bytes` bytes from `offset` on in memory that is null where there are none.
inline const char* part(const void* memory, std::uint64_t offset, std::uint64_t bytes) {
    return bytes == 0 ? nullptr : static_cast<const char*>(memory) + offset;
}
inline char* part(void* memory, std::uint64_t offset, std::uint64_t bytes) {
    return bytes == 0 ? nullptr : static_cast<char*>(memory) + offset;
}

}  // namespace sidestep::backends::host
