// RDMA at both ends: cards, ports, kinds of addresses, libraries.
#include <fmt/format.h>

#include "diagnose/ends/ends.hpp"

namespace sidestep::diagnose {
namespace {

// The ports that an end reports: "mlx5_0.1" and "ACTIVE, Ethernet, 100 Gb/sec".
std::vector<std::pair<std::string, std::string>> told_with(const EndFacts& facts, const std::string& begin) {
    std::vector<std::pair<std::string, std::string>> found;
    for (auto fact = facts.lower_bound(begin); fact != facts.end() && fact->first.starts_with(begin); ++fact)
        found.emplace_back(fact->first.substr(begin.size()), fact->second);
    return found;
}

std::size_t count_active(const EndFacts& facts) {
    std::size_t active = 0;
    for (const auto& [port, text] : told_with(facts, "rdma.")) active += text.starts_with("ACTIVE") ? 1 : 0;
    return active;
}

bool has_ports(const EndFacts& facts) {
    return !told_with(facts, "rdma.").empty();
}

void see_all(Outcome& outcome, const NodeLook& look, const std::string& begin) {
    for (const auto& [port, text] : told_with(look.here, begin)) outcome.saw(begin + port + " here", text);
    for (const auto& [port, text] : told_with(look.there, begin))
        outcome.saw(fmt::format("{}{} on {}", begin, port, look.node), text);
}

Outcome no_cards() {
    return does_not_apply("neither end has an RDMA card");
}

Outcome look_at_ports(const NodeLook& look) {
    const bool here = has_ports(look.here);
    const bool there = has_ports(look.there);
    if (!here && !there) return no_cards();
    const std::size_t up_here = count_active(look.here);
    const std::size_t up_there = count_active(look.there);
    Outcome outcome;
    if (here != there)
        outcome =
            warn(fmt::format("{} RDMA cards, and {} none", here ? "this machine has" : look.node + " has",
                             here ? look.node + " has" : "this machine has"));
    else if (up_here == 0 || up_there == 0)
        outcome = warn(fmt::format("no port of an RDMA card is up {}", up_here == 0 && up_there == 0
                                                                           ? "at either end"
                                                                       : up_here == 0 ? "here"
                                                                                      : "on " + look.node));
    else if (up_here != up_there)
        outcome = warn(
            fmt::format("{} ports of RDMA cards are up here, and {} on {}", up_here, up_there, look.node));
    else
        outcome = pass(fmt::format("{} port{} of RDMA cards {} up at each end", up_here,
                                   up_here == 1 ? "" : "s", up_here == 1 ? "is" : "are"));
    see_all(outcome, look, "rdma.");
    return outcome;
}

// InfiniBand, or the newest RoCE that a port has addresses for.
std::string best_kind(const EndFacts& facts) {
    std::string best;
    for (const auto& [port, text] : told_with(facts, "gids.")) {
        if (text.find("RoCE v2") != std::string::npos) return "RoCE v2";
        best = text.find("RoCE v1") != std::string::npos ? "RoCE v1 or InfiniBand" : text;
    }
    return best;
}

Outcome look_at_gids(const NodeLook& look) {
    if (!has_ports(look.here) || !has_ports(look.there))
        return does_not_apply("RDMA cards are not at both ends");
    const std::string here = best_kind(look.here);
    const std::string there = best_kind(look.there);
    Outcome outcome;
    if (here.empty() || there.empty())
        outcome = unknown(fmt::format("{} tells no address (GID) of an RDMA port",
                                      here.empty() ? "this machine" : look.node));
    else if (here != there)
        outcome = warn(
            fmt::format("RDMA ports have addresses of {} here, and of {} on {}", here, there, look.node));
    else
        outcome = pass(fmt::format("RDMA ports of both ends have addresses of {}", here));
    see_all(outcome, look, "gids.");
    return outcome;
}

Outcome look_at_libraries(const NodeLook& look) {
    if (!has_ports(look.here) && !has_ports(look.there)) return no_cards();
    const Both told = both(look, "rdma_providers");
    const bool lacks_here = has_ports(look.here) && !told.here;
    const bool lacks_there = has_ports(look.there) && !told.there;
    Outcome outcome;
    if (lacks_here || lacks_there)
        outcome = warn(fmt::format("no libraries of RDMA cards (/etc/libibverbs.d) are seen {}",
                                   lacks_here && lacks_there ? "at either end"
                                   : lacks_here              ? "here"
                                                             : "on " + look.node));
    else
        outcome = pass("libraries of RDMA cards are there where there are cards");
    see_both(outcome, look, "rdma_providers");
    return outcome;
}

// Cards reach only memory that is locked.
Outcome look_at_memlock(const NodeLook& look) {
    if (!has_ports(look.here) && !has_ports(look.there)) return no_cards();
    const Both told = both(look, "memlock");
    if (!told.told()) return not_told(look, "memlock", "how much memory a process may lock");
    std::vector<std::string> limited;
    if (has_ports(look.here) && *told.here != "unlimited") limited.emplace_back("here");
    if (has_ports(look.there) && *told.there != "unlimited") limited.push_back("on " + look.node);
    Outcome outcome = limited.empty()
                          ? pass("processes may lock as much memory as they like")
                          : warn(fmt::format("locked memory is limited {}", fmt::join(limited, " and ")));
    see_both(outcome, look, "memlock");
    return outcome;
}

}  // namespace

std::vector<EndCheck> rdma_end_checks() {
    return {{"end-rdma-ports", "RDMA ports of the two machines do not match",
             "Copies go over sockets, or over fewer cards than there are.",
             "Bring the ports up (`sidestep doctor` on each machine says what is wrong with one), or name "
             "only addresses of cards that both have.",
             look_at_ports},
            {"end-roce", "RDMA ports of the two machines have different kinds of addresses",
             "RoCE v1 stays within one Ethernet segment; two kinds do not reach each other.",
             "Give the network devices of the RDMA ports IP addresses at both ends, which makes addresses of "
             "RoCE v2.",
             look_at_gids},
            {"end-rdma-libraries", "The library of an RDMA card is not installed", "Copies go over sockets.",
             "Install the libraries (Debian and Ubuntu: ibverbs-providers; Fedora and RHEL: libibverbs).",
             look_at_libraries},
            {"end-memlock", "Locked memory is limited", "RDMA cannot use large memory, and copies it.",
             "Raise it: `ulimit -l unlimited`, LimitMEMLOCK=infinity in a unit of systemd, --ulimit "
             "memlock=-1 of a container.",
             look_at_memlock}};
}

}  // namespace sidestep::diagnose
