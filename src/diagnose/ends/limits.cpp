// Limits of sockets at both ends, and the clocks.
#include <chrono>

#include <fmt/format.h>

#include "diagnose/ends/ends.hpp"

namespace sidestep::diagnose {
namespace {

// What Linux gives sockets by itself; one with less holds up links with a long way.
constexpr long long enough_buffer = 4LL << 20;
// Logs of two machines can be read together up to there.
constexpr std::chrono::milliseconds usual_difference{100};

Outcome look_at_buffers(const NodeLook& look) {
    std::vector<std::string> small;
    bool silent = false;
    for (const char* name : {"tcp_rmem_max", "tcp_wmem_max"}) {
        const BothNumbers bound = numbers(look, name);
        silent |= !bound.told();
        if (bound.here && *bound.here < enough_buffer) small.push_back(fmt::format("{} here", name));
        if (bound.there && *bound.there < enough_buffer)
            small.push_back(fmt::format("{} on {}", name, look.node));
    }
    Outcome outcome;
    if (!small.empty()) {
        outcome = warn(fmt::format("buffers of sockets are bounded to less than {}: {}",
                                   format_bytes(enough_buffer), fmt::join(small, ", ")));
        outcome.command =
            "sysctl -w net.ipv4.tcp_rmem='4096 131072 6291456' net.ipv4.tcp_wmem='4096 16384 4194304'";
    } else if (silent) {
        outcome = unknown("an end does not tell how large buffers of sockets may be");
    } else {
        outcome = pass(
            fmt::format("buffers of sockets may have {} and more at both ends", format_bytes(enough_buffer)));
    }
    for (const char* name : {"tcp_rmem_max", "tcp_wmem_max", "rmem_max", "wmem_max"})
        see_both(outcome, look, name);
    return outcome;
}

std::string in_ms(std::chrono::nanoseconds time) {
    return fmt::format("{:.3f} ms", static_cast<double>(time.count()) / 1e6);
}

Outcome look_at_clock(const NodeLook& look) {
    if (!look.clock) return unknown(fmt::format("{} did not tell its time", look.node));
    const auto [ahead, bound] = *look.clock;
    const auto size = std::chrono::abs(ahead);
    const std::string off = fmt::format("{} is {} {}, give or take {}", look.node, in_ms(size),
                                        ahead.count() < 0 ? "behind" : "ahead", in_ms(bound));
    // It differs for certain only where the doubt does not explain it.
    Outcome outcome = size - bound > usual_difference ? warn("the clocks differ: " + off)
                      : bound > usual_difference
                          ? unknown("the answer took too long to compare clocks: " + off)
                          : pass("the clocks agree: " + off);
    outcome.saw("half the round trip of a question", in_ms(bound));
    see_both(outcome, look, "round_trip_us");
    return outcome;
}

}  // namespace

std::vector<EndCheck> limit_end_checks() {
    return {{"end-socket-buffers", "Buffers of sockets are small",
             "Over a long way a socket waits for signs that bytes came.", "Raise the bounds on that machine.",
             look_at_buffers},
            {"end-clock", "The clocks of the two machines differ",
             "Logs of the two cannot be read together. Copies do not mind.",
             "Run chrony or another NTP client on both machines.", look_at_clock}};
}

}  // namespace sidestep::diagnose
