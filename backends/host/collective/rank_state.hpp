// What the thread of an emulated seat works with, and how it waits for other ranks.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "backends/host/collective/arena_words.hpp"
#include "backends/host/collective/combine.hpp"
#include "protocol/collective_task.hpp"
#include "protocol/copy_exchange.hpp"
#include "protocol/slot_table.hpp"

namespace sidestep::backends::host {

inline constexpr std::uint64_t granule_bytes = 16;  // shares of thread blocks begin at multiples of it

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
    RankState(unsigned rank, unsigned of_ranks, std::uint64_t deadline_ns)
        : me(rank), ranks(of_ranks), layout{of_ranks}, slots(of_ranks), stop(deadline_ns) {}

    const unsigned me;
    const unsigned ranks;
    const protocol::ArenaLayout layout;
    char* arena = nullptr;                           // constant once the first task has come
    protocol::SlotTable slots;                       // any thread
    StopSign stop;                                   // any thread
    const protocol::CollectiveTask* task = nullptr;  // that runs
    Counters counters;
    std::vector<char> scratch;

    // The others, beginning behind this one so that not all turn to one at the same time.
    unsigned other(unsigned i) const { return (me + 1 + i) % ranks; }
    unsigned others() const { return ranks - 1; }
    char* arena_of(unsigned rank) const { return rank == me ? arena : slots.find(rank, 0); }

    // Ends the running task, and every one after it. The record lacks what is known of this task. Always false.
    bool give_up(protocol::FaultRecord why) {
        why.number = task->number;
        why.signature = task->signature;
        stop.give_up(why);
        return false;
    }
    bool give_up_of_mismatch(unsigned peer, std::uint64_t peer_signature) {
        return give_up({.kind = protocol::FaultKind::mismatch,
                        .peer = peer,
                        .peer_signature = static_cast<std::uint32_t>(peer_signature)});
    }
    // Copies in pieces, so that an abort is soon seen; false: it was. The two may be the same memory.
    bool copy(char* to, const char* from, std::uint64_t bytes) {
        constexpr std::uint64_t copied_at_once = 1 << 20;
        if (to == from) return true;
        for (std::uint64_t at = 0; at < bytes; at += copied_at_once) {
            if (stop.aborted()) return give_up({protocol::FaultKind::aborted, me});
            std::memcpy(to + at, from + at, std::min(copied_at_once, bytes - at));
        }
        return true;
    }
};

// One wait for another rank. Several ranks share few processors: whoever waits lets the others go first.
class Wait {
public:
    // After a look that found nothing: gives the processor away, for longer the more of them there were. Anything but `none`:
    // no use waiting on.
    protocol::FaultKind pause(const StopSign& stop) {
        const protocol::FaultKind why = check(stop);
        if (why != protocol::FaultKind::none) return why;
        looks_ < looks_before_sleep ? std::this_thread::yield() : std::this_thread::sleep_for(nap);
        return why;
    }
    // The same without giving the processor away, for one of many waits.
    protocol::FaultKind check(const StopSign& stop) {
        if (stop.aborted()) return protocol::FaultKind::aborted;
        const auto now = std::chrono::steady_clock::now();
        if (looks_ == 0) since_ = now;
        looks_ = std::min(looks_ + 1, looks_before_sleep);
        const std::uint64_t deadline = stop.deadline_ns();
        const auto waited = static_cast<std::uint64_t>(std::chrono::nanoseconds(now - since_).count());
        return deadline != 0 && waited > deadline ? protocol::FaultKind::timed_out
                                                  : protocol::FaultKind::none;
    }
    void restart() { looks_ = 0; }

private:
    static constexpr unsigned looks_before_sleep = 64;
    static constexpr std::chrono::microseconds nap{50};

    unsigned looks_ = 0;
    std::chrono::steady_clock::time_point since_;
};

// Waits until `ready(r)` says so for every other rank r; false: the task gave up. A `ready` that gives up
// itself ends the wait too.
template <typename Ready>
bool wait_for_others(RankState& state, Ready ready) {
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
        return state.give_up({why, static_cast<unsigned>(std::countr_zero(missing))});
    }
}

// Opens a task with all others, on each of its first `blocks` thread blocks: tells them `own`, and calls heard(rank, line)
// for what each of them tells; false: the task gave up.
template <typename Heard>
bool exchange(RankState& state, unsigned blocks, const Line& own, Heard heard) {
    for (unsigned block = 0; block < blocks; ++block) {
        const std::uint64_t round = ++state.counters.round[block];
        for (unsigned i = 0; i < state.others(); ++i)
            store_line(state.arena_of(state.other(i)) +
                           state.layout.entry(static_cast<unsigned>(round & 1), block, state.me),
                       own, protocol::packet_flag(round));
    }
    for (unsigned block = 0; block < blocks; ++block) {
        const std::uint64_t round = state.counters.round[block];
        const bool well = wait_for_others(state, [&](unsigned rank) {
            Line line;
            if (!load_line(state.arena + state.layout.entry(static_cast<unsigned>(round & 1), block, rank),
                           protocol::packet_flag(round), line))
                return false;
            if (line.signature != own.signature) state.give_up_of_mismatch(rank, line.signature);
            heard(rank, line);
            return true;
        });
        if (!well) return false;
    }
    return true;
}

// What a flow, which is all that one thread block of a task does in one direction, comes to in one turn.
enum class Step { waits, moved, ended, gave_up };

// The seat's one thread lets each flow take a step in turn, so that none waits for another, until all have ended; false:
// the task gave up.
template <typename Flow, typename Take>
bool move_in_turns(RankState& state, std::vector<Flow>& flows, Take take) {
    for (Wait idle; !flows.empty();) {
        bool moved = false;
        for (std::size_t i = 0; i < flows.size();) {
            Flow& flow = flows[i];
            const Step step = take(flow);
            if (step == Step::gave_up) return false;
            if (step == Step::waits) {
                const auto why = flow.wait.check(state.stop);
                if (why != protocol::FaultKind::none) return state.give_up({why, flow.peer});
            } else {
                moved = true;
                flow.wait.restart();
                if (state.stop.aborted()) return state.give_up({protocol::FaultKind::aborted, flow.peer});
            }
            if (step == Step::ended) {
                flow = flows.back();
                flows.pop_back();
            } else {
                ++i;
            }
        }
        moved ? idle.restart() : static_cast<void>(idle.pause(state.stop));
    }
    return true;
}

// Some elements of a slice, or some bytes.
struct Part {
    std::uint64_t begin = 0;
    std::uint64_t count = 0;

    std::uint64_t pieces(std::uint64_t longest) const { return (count + longest - 1) / longest; }
    // None from the last one on.
    Part piece(std::uint64_t number, std::uint64_t longest) const {
        const std::uint64_t before = std::min(count, number * longest);
        return {begin + before, std::min(longest, count - before)};
    }
};

// Each runs the task, which has its shape; false: it gave up, and `state.stop` says why.
bool run_packets(RankState& state);
bool run_slices(RankState& state);
bool run_pairs(RankState& state);
bool run_ring(RankState& state);

// `bytes` bytes from `offset` on in memory that is null where there are none.
inline const char* part(const void* memory, std::uint64_t offset, std::uint64_t bytes) {
    return bytes == 0 ? nullptr : static_cast<const char*>(memory) + offset;
}
inline char* part(void* memory, std::uint64_t offset, std::uint64_t bytes) {
    return bytes == 0 ? nullptr : static_cast<char*>(memory) + offset;
}

// What the classes that run a task of one shape work with.
class RankTask {
protected:
    explicit RankTask(RankState& state)
        : state_(state),
          task_(*state.task),
          size_(protocol::size_of(task_.element)),
          reduction_{task_.element, task_.combine, state.ranks, {}} {
        if (task_.combine != protocol::Combine::scaled_sum) return;
        std::uint64_t& scale = reduction_.scales[state.me];
        if (task_.device_scale == nullptr)
            scale = task_.scale;
        else
            std::memcpy(&scale, task_.device_scale, size_);
    }

    // The bytes that stay with the rank, from where they are sent to where they are received.
    bool copy_local() {
        return state_.copy(part(task_.recv, task_.local_to, task_.local_bytes),
                           part(task_.send, task_.local_from, task_.local_bytes), task_.local_bytes);
    }
    // What one of so many thread blocks carries.
    Part share(unsigned slice, unsigned block, unsigned blocks) const {
        const auto [begin, end] =
            protocol::share_of(task_.slices[slice].count, block, blocks, granule_bytes / size_);
        return {begin, end - begin};
    }

    RankState& state_;
    const protocol::CollectiveTask& task_;
    const std::uint64_t size_;  // of an element
    Reduction reduction_;       // with the scale of this rank, as the task has it or as GPU memory does
};

}  // namespace sidestep::backends::host
