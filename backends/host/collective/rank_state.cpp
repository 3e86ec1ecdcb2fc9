#include "backends/host/collective/rank_state.hpp"

#include <thread>

namespace sidestep::backends::host {
namespace {

using protocol::FaultKind;
using protocol::FaultRecord;

constexpr unsigned looks_before_sleep = 64;
constexpr std::chrono::microseconds nap{50};
constexpr std::uint64_t copied_at_once = 1 << 20;

}  // namespace

bool RankState::give_up(FaultRecord why) {
    why.number = task->number;
    why.signature = task->signature;
    stop.give_up(why);
    return false;
}

bool RankState::copy(char* to, const char* from, std::uint64_t bytes) {
    if (to == from) return true;
    for (std::uint64_t at = 0; at < bytes; at += copied_at_once) {
        if (stop.aborted()) return give_up({FaultKind::aborted, me});
        std::memcpy(to + at, from + at, std::min(copied_at_once, bytes - at));
    }
    return true;
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
    if (why != FaultKind::none) return why;
    looks_ < looks_before_sleep ? std::this_thread::yield() : std::this_thread::sleep_for(nap);
    return why;
}

RankTask::RankTask(RankState& state)
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

}  // namespace sidestep::backends::host
