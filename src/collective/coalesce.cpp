#include "collective/coalesce.hpp"

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

#include "collective/tasks.hpp"

namespace sidestep::collective {
namespace {

// Each rank has its own factors, so ranks that looked at them would decide differently.
bool can_share(const Operation& a, const Operation& b) {
    const auto kind = [](const Operation& o) { return std::tuple(o.collective, o.element, o.combine); };
    return carries(protocol::Shape::coalesced, a.collective) && a.combine != protocol::Combine::scaled_sum &&
           a.count > 0 && b.count > 0 && kind(a) == kind(b);
}

Operation together(std::span<const Operation> calls) {
    Operation all = calls.front();
    all.count = 0;
    for (const Operation& call : calls) {
        all.count += call.count;
        all.coalesced.push_back({call.send, call.recv, call.count});
    }
    return all;
}

// How many calls in front are of one kind, as far as one task takes them.
std::size_t neighbours(std::span<const Operation> calls, unsigned ranks) {
    std::uint64_t bytes = 0;
    std::size_t count = 0;
    while (count < std::min<std::size_t>(calls.size(), protocol::max_coalesced)) {
        const Operation& next = calls[count];
        if (!can_share(calls.front(), next)) break;
        bytes += rounded_to_packets(next.count * size_of(next.element));
        if (bytes > protocol::ArenaLayout{ranks}.packet_payload()) break;
        ++count;
    }
    return count;
}

}  // namespace

std::vector<Operation> coalesce(std::vector<Operation> calls, const GroupFacts& facts,
                                const std::function<double(const Operation&)>& alone_us) {
    std::vector<Operation> all;
    for (std::size_t at = 0; at < calls.size();) {
        const std::span<const Operation> rest = std::span(calls).subspan(at);
        const std::size_t count = neighbours(rest, static_cast<unsigned>(facts.ranks));
        if (count >= 2 && facts.ranks > 1) {
            Operation shared = together(rest.first(count));
            double alone = 0;
            for (const Operation& call : rest.first(count)) alone += alone_us(call);
            if (choose_coalesced(shared, facts).expected_us < alone) {
                all.push_back(std::move(shared));
                at += count;
                continue;
            }
        }
        all.push_back(std::move(calls[at++]));
    }
    return all;
}

}  // namespace sidestep::collective
