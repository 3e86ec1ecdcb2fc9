#include "backends/host/collective/rank_state.hpp"

#include <thread>

namespace sidestep::backends::host {
namespace {

using protocol::CollectiveTask;
using protocol::FaultKind;
using protocol::FaultRecord;

constexpr unsigned looks_before_sleep = 64;
constexpr std::chrono::microseconds nap{50};
constexpr std::uint64_t copied_at_once = 1 << 20;

}  // namespace

FaultRecord record_of(const CollectiveTask& task, FaultKind kind, unsigned peer) {
    FaultRecord record;
    record.kind = kind;
    record.peer = peer;
    record.number = task.number;
    record.signature = task.signature;
    return record;
}

bool RankState::give_up(const CollectiveTask& task, FaultKind kind, unsigned peer) {
    stop.give_up(record_of(task, kind, peer));
    return false;
}

bool RankState::give_up_of_mismatch(const CollectiveTask& task, unsigned peer, std::uint64_t peer_signature) {
    FaultRecord record = record_of(task, FaultKind::mismatch, peer);
    record.peer_signature = static_cast<std::uint32_t>(peer_signature);
    stop.give_up(record);
    return false;
}

void rest(unsigned looks) {
    if (looks < looks_before_sleep) {
        std::this_thread::yield();
    } else {
        std::this_thread::sleep_for(nap);
    }
}

FaultKind Wait::check(const StopSign& stop) {
    if (stop.aborted()) return FaultKind::aborted;
    const auto now = std::chrono::steady_clock::now();
    if (looks_ == 0) since_ = now;
    looks_ = std::min(looks_ + 1, looks_before_sleep);
    const std::uint64_t deadline = stop.deadline_ns();
    const auto waited = static_cast<std::uint64_t>(std::chrono::nanoseconds(now - since_).count());
    return deadline != 0 && waited > deadline ? FaultKind::timed_out : FaultKind::none;
}

FaultKind Wait::pause(const StopSign& stop) {
    const FaultKind why = check(stop);
    if (why == FaultKind::none) rest(looks_);
    return why;
}

bool copy_bytes(RankState& state, const CollectiveTask& task, char* to, const char* from,
                std::uint64_t bytes) {
    if (to == from || bytes == 0) return true;
    for (std::uint64_t at = 0; at < bytes; at += copied_at_once) {
        if (state.stop.aborted()) return state.give_up(task, FaultKind::aborted, state.me);
        std::memcpy(to + at, from + at, std::min(copied_at_once, bytes - at));
    }
    return true;
}

bool copy_local(RankState& state, const CollectiveTask& task) {
    return copy_bytes(state, task, part(task.recv, task.local_to, task.local_bytes),
                      part(task.send, task.local_from, task.local_bytes), task.local_bytes);
}

Part share_of_slice(const CollectiveTask& task, unsigned slice, unsigned block, unsigned blocks) {
    const auto [begin, end] = protocol::share_of(task.slices[slice].count, block, blocks,
                                                 granule_bytes / protocol::size_of(task.element));
    return {begin, end - begin};
}

Reduction reduction_of(const CollectiveTask& task, const RankState& state) {
    Reduction reduction{task.element, task.combine, state.ranks, {}};
    if (task.combine != protocol::Combine::scaled_sum) return reduction;
    std::uint64_t& scale = reduction.scales[state.me];
    if (task.device_scale == nullptr)
        scale = task.scale;
    else
        std::memcpy(&scale, task.device_scale, protocol::size_of(task.element));
    return reduction;
}

}  // namespace sidestep::backends::host
