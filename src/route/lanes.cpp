#include "route/lanes.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "route/flows.hpp"

namespace sidestep::route {
namespace {

// What a copy of several lanes costs beyond one of a single piece: rings to lease, chunks to look after.
// An estimate from copies between pinned memory and a GPU over four lanes (4 x H200, driver 580.159.04).
constexpr double several_lanes_seconds = 80e-6;
// A set of lanes is taken where it needs at most this part of the best lane's time.
constexpr double clear_win = 0.9;
// A further lane stays where it takes at least this part off the time.
constexpr double worth_a_lane = 0.02;

LaneSet price_set(const Topology& topology, std::vector<Candidate> lanes, Bytes bytes) {
    Flows flows(topology);
    for (std::size_t i = 0; i < lanes.size(); ++i)
        for (const HopOption& hop : lanes[i].options) flows.cross(i, hop);
    const std::vector<double> rates = flows.fair_rates();
    const double all = static_cast<double>(bytes);
    const double chunk = static_cast<double>(std::min(bytes, lane_chunk(bytes, lanes.size())));
    // A lane delivers at its rate from when its first chunk has come through all hops but the last.
    std::vector<std::pair<double, std::size_t>> starts;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        double seconds = several_lanes_seconds + lanes[i].lane.latency_us * 1e-6;
        for (std::size_t hop = 0; hop + 1 < lanes[i].lane.hops.size(); ++hop)
            seconds += chunk / (lanes[i].lane.hops[hop].gb_per_s * 1e9);
        starts.emplace_back(seconds, i);
    }
    std::ranges::sort(starts);
    LaneSet set{std::move(lanes), 0, std::numeric_limits<double>::infinity()};
    // Between two starts the bytes delivered grow linearly with time. A lane that begins after the end is no help.
    double early = 0;  // rate x start, summed
    for (const auto& [start, lane] : starts) {
        set.gb_per_s += rates[lane];
        early += rates[lane] * 1e9 * start;
        set.seconds = std::min(set.seconds, (all + early) / (set.gb_per_s * 1e9));
    }
    for (const auto& [start, lane] : starts) {
        set.lanes[lane].lane.gb_per_s = rates[lane];
        set.lanes[lane].lane.share = std::max(0.0, set.seconds - start) * rates[lane] * 1e9 / all;
    }
    return set;
}

}  // namespace

Candidate price(const Topology& topology, std::vector<HopOption> hops, Bytes bytes) {
    Flows flows(topology);
    for (std::size_t i = 0; i < hops.size(); ++i) flows.cross(i, hops[i]);
    const std::vector<double> rates = flows.fair_rates();
    Candidate candidate;
    Lane& lane = candidate.lane;
    const double first_chunk = static_cast<double>(std::min(bytes, staged_chunk));
    for (std::size_t i = 0; i < hops.size(); ++i) {
        lane.hops.push_back(hops[i].hop);
        lane.hops.back().gb_per_s = rates[i];
        lane.latency_us += hops[i].hop.latency_us;
        lane.gb_per_s = lane.gb_per_s == 0 ? rates[i] : std::min(lane.gb_per_s, rates[i]);
        if (rates[i] > 0) candidate.seconds += first_chunk / (rates[i] * 1e9);
    }
    candidate.options = std::move(hops);
    candidate.seconds += lane.latency_us * 1e-6;
    if (lane.gb_per_s > 0)
        candidate.seconds += (static_cast<double>(bytes) - first_chunk) / (lane.gb_per_s * 1e9);
    return candidate;
}

bool may_share_the_work(const Candidate& candidate) {
    int host_links = 0;
    for (const HopOption& hop : candidate.options) {
        const Place& from = hop.hop.from;
        const Place& to = hop.hop.to;
        if (from.is_gpu() && to.is_gpu()) {
            if (!hop.path.all_nvlink || hop.path.links.empty()) return false;
        } else if ((from.is_host() && to.is_gpu()) || (from.is_gpu() && to.is_host())) {
            ++host_links;
        } else {
            return false;
        }
    }
    return host_links <= 1;
}

LaneSet combine(const Topology& topology, const Candidate& best, std::vector<Candidate> others, Bytes bytes,
                std::size_t max) {
    const LaneSet alone{{best}, best.lane.gb_per_s, best.seconds};
    std::erase_if(others, [](const Candidate& other) { return !may_share_the_work(other); });
    if (bytes == 0 || others.empty()) return alone;
    std::ranges::stable_sort(others, std::greater(), [](const Candidate& one) { return one.lane.gb_per_s; });
    // The best alone may be one that lanes cannot stand beside: the others may beat it together.
    if (may_share_the_work(best)) others.insert(others.begin(), best);
    LaneSet set = price_set(topology, {others.front()}, bytes);
    for (auto other = others.begin() + 1; other != others.end(); ++other) {
        if (set.lanes.size() >= max) break;
        std::vector<Candidate> wider = set.lanes;
        wider.push_back(*other);
        LaneSet tried = price_set(topology, std::move(wider), bytes);
        if (tried.seconds < set.seconds * (1 - worth_a_lane)) set = std::move(tried);
    }
    return set.lanes.size() > 1 && set.seconds < best.seconds * clear_win ? set : alone;
}

}  // namespace sidestep::route
