#include <algorithm>
#include <map>
#include <utility>

#include "route/candidate.hpp"

namespace sidestep::route {

std::vector<DirectedLink> directed(const Topology& topology, const HopOption& hop) {
    std::vector<DirectedLink> links;
    DeviceId at = hop.start;
    for (std::uint32_t position : hop.path.links) {
        const Link& link = topology.links()[position];
        const bool forward = link.a == at;
        at = forward ? link.b : link.a;
        links.emplace_back(position, forward);
    }
    return links;
}

namespace {

// The hop's rate when links that several hops cross in the same direction are divided among them.
double shared_rate(const Topology& topology, const HopOption& hop,
                   const std::map<DirectedLink, int>& crossings) {
    double rate = hop.hop.gb_per_s;
    if (hop.path.links.empty() || hop.path.gb_per_s <= 0) return rate;
    const double efficiency = hop.hop.gb_per_s / hop.path.gb_per_s;
    for (const DirectedLink& link : directed(topology, hop)) {
        const int users = crossings.at(link);
        // A walk over several switches counts them all in its rate, and names the links of one.
        const double whole = std::max(topology.links()[link.first].gb_per_s, hop.path.gb_per_s);
        if (users > 1) rate = std::min(rate, whole / users * efficiency);
    }
    return rate;
}

}  // namespace

Candidate price(const Topology& topology, const std::vector<HopOption>& hops, Bytes bytes) {
    std::map<DirectedLink, int> crossings;
    for (const HopOption& hop : hops)
        for (const DirectedLink& link : directed(topology, hop)) ++crossings[link];

    Candidate candidate;
    const double first_chunk = static_cast<double>(std::min(bytes, staged_chunk));
    double rate = 0;
    for (const HopOption& option : hops) {
        Hop hop = option.hop;
        hop.gb_per_s = shared_rate(topology, option, crossings);
        rate = rate == 0 ? hop.gb_per_s : std::min(rate, hop.gb_per_s);
        candidate.lane.latency_us += hop.latency_us;
        if (hop.gb_per_s > 0) candidate.seconds += first_chunk / (hop.gb_per_s * 1e9);
        candidate.lane.hops.push_back(std::move(hop));
        candidate.choices.push_back(option.choice);
    }
    candidate.lane.gb_per_s = candidate.gb_per_s_alone = rate;
    candidate.options = hops;
    candidate.seconds += candidate.lane.latency_us * 1e-6;
    if (rate > 0) candidate.seconds += (static_cast<double>(bytes) - first_chunk) / (rate * 1e9);
    return candidate;
}

}  // namespace sidestep::route
