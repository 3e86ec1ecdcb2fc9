// Copies too small for a Movement: nothing of them is ever in flight.
#include <cstring>

#include "base/log.hpp"
#include "transfer/movement.hpp"

namespace sidestep::transfer {
namespace {

using Clock = Activity::Clock;

// Of more bytes none is done at once, and what follows need not be asked.
constexpr Bytes largest = Bytes{1} << 20;

bool may_be_copied(const Topology& topology, const Buffer& from, const Buffer& to) {
    const auto is_there = [&](const Place& place) {
        return place.is_host() && place.node().empty() && check_here(topology, place);
    };
    return from.size() > 0 && from.size() <= largest && to.size() == from.size() && is_there(from.place()) &&
           is_there(to.place()) && check_buffer(from, false) && check_buffer(to, true) &&
           !overlap(from, to, from.size());
}

}  // namespace

// What is refused, or was asked for more, is left to a Movement, which says it.
std::shared_ptr<Activity> copy_at_once(Machine& machine, const Buffer& from, const Buffer& to,
                                       const CopyOptions& options) {
    if (!may_be_copied(machine.topology, from, to)) return nullptr;
    if (options.verify || options.prefer != Prefer::automatic || base::logs(base::LogLevel::debug))
        return nullptr;
    const auto begun = Clock::now();
    const Ends ends{from, to, MemoryKind::pageable, MemoryKind::pageable, from.size()};
    const auto plan = machine.plans.get(ends, options, {});  // nobody has anything against memory of the host
    if (!plan || (*plan)->lanes.size() != 1 || (*plan)->lanes[0].size() != 1) return nullptr;
    if (ends.bytes > (*plan)->lanes[0][0].at_once) return nullptr;
    std::memcpy(to.address(), from.address(), ends.bytes);
    Receipt receipt;
    receipt.bytes = ends.bytes;
    receipt.route = std::shared_ptr<const Route>(*plan, &(*plan)->route);
    receipt.lane_bytes = {ends.bytes};
    receipt.lane_failures.resize(1);
    receipt.seconds = std::chrono::duration<double>(Clock::now() - begun).count();
    return std::make_shared<EndedActivity>(std::move(receipt));
}

}  // namespace sidestep::transfer
