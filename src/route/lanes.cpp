#include "route/lanes.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
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

// Seconds until `bytes` are there when lane l begins to deliver after start[l] and then delivers rate[l]
// bytes a second; share[l] becomes its part of the bytes.
double finish(Bytes bytes, const std::vector<double>& start, const std::vector<double>& rate,
              std::vector<double>& share) {
    // Between two starts the bytes delivered grow linearly with time. Lanes that begin after the end do not help.
    std::vector<std::size_t> order(start.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return start[a] < start[b]; });
    const double all = static_cast<double>(bytes);
    double speed = 0;
    double credit = 0;  // speed x start, summed
    double end = std::numeric_limits<double>::infinity();
    for (std::size_t lane : order) {
        speed += rate[lane];
        credit += rate[lane] * start[lane];
        end = std::min(end, (all + credit) / speed);
    }
    for (std::size_t i = 0; i < share.size(); ++i) share[i] = std::max(0.0, end - start[i]) * rate[i] / all;
    return end;
}

LaneSet price_set(const Topology& topology, std::vector<Candidate> lanes, Bytes bytes) {
    Flows flows(topology);
    for (std::size_t i = 0; i < lanes.size(); ++i)
        for (const HopOption& hop : lanes[i].options) flows.cross(i, hop);
    const std::vector<double> rates = flows.fair_rates();
    const double chunk = static_cast<double>(std::min(bytes, lane_chunk(bytes, lanes.size())));
    std::vector<double> start, rate, share(lanes.size());
    LaneSet set;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        // A lane delivers at its rate from when its first chunk has come through all hops but the last.
        double seconds = several_lanes_seconds + lanes[i].lane.latency_us * 1e-6;
        for (std::size_t hop = 0; hop + 1 < lanes[i].lane.hops.size(); ++hop)
            seconds += chunk / (lanes[i].lane.hops[hop].gb_per_s * 1e9);
        start.push_back(seconds);
        rate.push_back(rates[i] * 1e9);
        set.gb_per_s += rates[i];
    }
    set.seconds = finish(bytes, start, rate, share);
    set.lanes = std::move(lanes);
    for (std::size_t i = 0; i < set.lanes.size(); ++i) {
        set.lanes[i].lane.gb_per_s = rates[i];
        set.lanes[i].lane.share = share[i];
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
    std::stable_sort(others.begin(), others.end(), [](const Candidate& a, const Candidate& b) {
        return a.lane.gb_per_s > b.lane.gb_per_s;
    });
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
