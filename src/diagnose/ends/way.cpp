// The way between both ends: engine, addresses, interfaces.
#include <algorithm>

#include <fmt/format.h>

#include "diagnose/ends/ends.hpp"

namespace sidestep::diagnose {
namespace {

constexpr long long jumbo = 9000;
// Of IP; the interface of loopback takes more.
constexpr long long longest_packet = 65535;
// An interface from that rate on is worth larger packets.
constexpr long long fast_mbit = 10'000;

bool has_cards(const EndFacts& facts) {
    const auto card = facts.lower_bound("rdma.");
    return card != facts.end() && card->first.starts_with("rdma.");
}

// Why this end has no RDMA, and what would help; where it has none.
void tell_refusal(Outcome& outcome, const EndFacts& facts, const std::string& where) {
    const auto engine = facts.find("engine.verbs");
    if (engine == facts.end()) {
        outcome.saw("engine verbs " + where, "not told");
        return;
    }
    outcome.saw("engine verbs " + where, engine->second);
    const auto remedy = facts.find("engine.verbs.remedy");
    if (engine->second == "yes" || remedy == facts.end()) return;
    outcome.remedy += fmt::format("{}{}: {}.", outcome.remedy.empty() ? "" : " ", where, remedy->second);
}

Outcome look_at_engine(const NodeLook& look) {
    if (look.engine == "verbs") {
        Outcome outcome = pass("copies go by RDMA (engine verbs)");
        see_both(outcome, look, "engine.verbs");
        return outcome;
    }
    const Both told = both(look, "engine.verbs");
    const bool cards = has_cards(look.here) || has_cards(look.there);
    Outcome outcome;
    if (!told.told())
        outcome = unknown(fmt::format("copies go over {}; {} does not tell why not by RDMA", look.engine,
                                      silent_ends(told, look)));
    else if (*told.here == "yes" && *told.there == "yes")
        outcome = warn(fmt::format(
            "copies go over {}, though both ends have RDMA: it has failed between them", look.engine));
    else if (cards)
        outcome = warn(fmt::format("copies go over {}: RDMA is not there at both ends", look.engine));
    else
        outcome = pass(fmt::format("copies go over {}: neither end has an RDMA card", look.engine));
    tell_refusal(outcome, look.here, "here");
    tell_refusal(outcome, look.there, "on " + look.node);
    return outcome;
}

Outcome look_at_addresses(const NodeLook& look) {
    std::vector<std::string> refused;
    for (const TriedAddress& one : look.addresses)
        if (!one.refusal.empty()) refused.push_back(one.address);
    Outcome outcome;
    if (refused.empty())
        outcome = pass(fmt::format("{} of {} {} reached", look.addresses.size(), look.addresses.size(),
                                   look.addresses.size() == 1 ? "address is" : "addresses are"));
    else
        outcome = warn(fmt::format("{} of {} addresses of {} are not reached: {}", refused.size(),
                                   look.addresses.size(), look.node, fmt::join(refused, ", ")));
    for (const TriedAddress& one : look.addresses)
        outcome.saw(one.address, one.refusal.empty() ? "reached" : one.refusal);
    return outcome;
}

Outcome small_packets(const NodeLook& look, long long least, long long path) {
    if (path < least) {
        Outcome outcome = warn(
            fmt::format("packets have at most {} bytes on the way, and the interfaces of both ends take {}",
                        path, least));
        outcome.remedy = "Raise the MTU of the switches and routers between the two machines.";
        return outcome;
    }
    const BothNumbers speed = numbers(look, "speed_mbit");
    const bool fast = speed.told() && std::min(*speed.here, *speed.there) >= fast_mbit;
    if (fast && least < jumbo)
        return warn(fmt::format("packets have at most {} bytes, on a link of {} Gb/s", least,
                                std::min(*speed.here, *speed.there) / 1000));
    return pass(fmt::format("packets have at most {} bytes at both ends and on the way", least));
}

Outcome look_at_mtu(const NodeLook& look) {
    const BothNumbers mtu = numbers(look, "mtu");
    if (!mtu.told()) return not_told(look, "mtu", "the MTU of its interface");
    const BothNumbers path = numbers(look, "path_mtu");
    const long long least = std::min({*mtu.here, *mtu.there, longest_packet});
    Outcome outcome;
    if (*mtu.here != *mtu.there)
        outcome = warn(fmt::format("the interface takes packets of {} bytes here, and of {} on {}", *mtu.here,
                                   *mtu.there, look.node));
    else
        outcome = small_packets(look, least, std::min(path.here.value_or(least), path.there.value_or(least)));
    for (const char* name : {"interface", "mtu", "path_mtu"}) see_both(outcome, look, name);
    return outcome;
}

Outcome look_at_rate(const NodeLook& look) {
    const Both interface = both(look, "interface");
    if (interface.here == "lo" && interface.there == "lo")
        return does_not_apply("the connection does not leave this machine");
    const BothNumbers speed = numbers(look, "speed_mbit");
    if (!speed.told()) {
        Outcome outcome = not_told(look, "speed_mbit", "the rate of its interface, as virtual ones do not");
        see_both(outcome, look, "interface");
        outcome.remedy = fmt::format("`sidestep bench net {}` measures what the network gives.", look.node);
        return outcome;
    }
    Outcome outcome =
        *speed.here == *speed.there
            ? pass(fmt::format("both interfaces came up at {} Gb/s", static_cast<double>(*speed.here) / 1000))
            : warn(fmt::format("the interface came up at {} Gb/s here, and at {} Gb/s on {}",
                               static_cast<double>(*speed.here) / 1000,
                               static_cast<double>(*speed.there) / 1000, look.node));
    for (const char* name : {"interface", "speed_mbit"}) see_both(outcome, look, name);
    return outcome;
}

}  // namespace

std::vector<EndCheck> way_end_checks() {
    return {{"end-engine", "A better engine is not used",
             "RDMA takes no copy of the bytes and less time of the processors.",
             "See the log of both programs for why the engine failed, and start them again.", look_at_engine},
            {"end-addresses", "An address of the node is not reached",
             "Sockets are spread over fewer network cards, and fewer ways are left where one is lost.",
             "Let `sidestep serve --listen` name the address, open its port in firewalls, or take it off the "
             "list of nodes.",
             look_at_addresses},
            {"end-mtu", "Packets are smaller than they could be",
             "Small packets take more time of the processors for each byte.",
             "Set one MTU on both interfaces and on what lies between: 9000 where the switches take it (`ip "
             "link set IF mtu 9000`).",
             look_at_mtu},
            {"end-link-rate", "The two interfaces came up at different rates",
             "Copies are as quick as the slower one.",
             "Look at the cable, the port of the switch, and whether the connection goes over the card that "
             "it should: give --nodes and --listen the address of that card.",
             look_at_rate}};
}

}  // namespace sidestep::diagnose
