#include "route/lanes.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace sidestep::route {
namespace {

// What a copy of several lanes costs beyond one of a single piece: rings to lease, chunks to look after.
// An estimate from copies between pinned memory and a GPU over four lanes (4 x H200, driver 580.159.04).
constexpr double several_lanes_seconds = 80e-6;
// A set of lanes is taken where it needs at most this part of the best lane's time.
constexpr double clear_win = 0.9;
// A further lane stays where it takes at least this part off the time.
constexpr double worth_a_lane = 0.02;

struct SharedLink {
    double left = 0;                                    // GB/s nobody has taken yet
    std::vector<std::pair<std::size_t, double>> users;  // lane, GB/s of the link for each GB/s of the lane
};

std::map<DirectedLink, SharedLink> links_of(const Topology& topology, const std::vector<Candidate>& lanes) {
    std::map<DirectedLink, SharedLink> links;
    for (std::size_t lane = 0; lane < lanes.size(); ++lane)
        for (const HopOption& hop : lanes[lane].options) {
            if (hop.path.links.empty() || hop.path.gb_per_s <= 0 || hop.hop.gb_per_s <= 0) continue;
            const double load = hop.path.gb_per_s / hop.hop.gb_per_s;
            for (const DirectedLink& crossed : directed(topology, hop)) {
                SharedLink& link = links[crossed];
                link.left =
                    std::max({link.left, topology.links()[crossed.first].gb_per_s, hop.path.gb_per_s});
                link.users.emplace_back(lane, load);
            }
        }
    return links;
}

// How much every running lane may still rise before a link is full.
double room(const SharedLink& link, const std::vector<bool>& running) {
    double load = 0;
    for (const auto& [lane, part] : link.users)
        if (running[lane]) load += part;
    return load > 0 ? link.left / load : -1;
}

// Seconds until `bytes` are there when lane l begins to deliver after start[l] and then delivers rate[l]
// bytes a second; share[l] becomes its part of the bytes.
double finish(Bytes bytes, const std::vector<double>& start, const std::vector<double>& rate,
              std::vector<double>& share) {
    // Between two starts the bytes delivered grow linearly with time.
    std::vector<std::size_t> order(start.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return start[a] < start[b]; });
    const double all = static_cast<double>(bytes);
    double speed = 0;
    double credit = 0;  // speed x start, summed
    double end = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
        speed += rate[order[i]];
        credit += rate[order[i]] * start[order[i]];
        end = (all + credit) / speed;
        if (i + 1 < order.size() && end <= start[order[i + 1]]) break;
    }
    for (std::size_t i = 0; i < share.size(); ++i) share[i] = std::max(0.0, end - start[i]) * rate[i] / all;
    return end;
}

LaneSet price_set(const Topology& topology, std::vector<Candidate> lanes, Bytes bytes) {
    const std::vector<double> rates = fair_rates(topology, lanes);
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

std::vector<double> fair_rates(const Topology& topology, const std::vector<Candidate>& lanes) {
    auto links = links_of(topology, lanes);
    std::vector<double> rates(lanes.size(), 0);
    std::vector<bool> running(lanes.size(), true);
    while (std::find(running.begin(), running.end(), true) != running.end()) {
        double rise = -1;
        const auto bound = [&](double by) { rise = rise < 0 ? by : std::min(rise, by); };
        for (std::size_t i = 0; i < lanes.size(); ++i)
            if (running[i]) bound(std::max(0.0, lanes[i].lane.gb_per_s - rates[i]));
        for (const auto& [at, link] : links)
            if (const double by = room(link, running); by >= 0) bound(by);
        for (auto& [at, link] : links)
            for (const auto& [lane, load] : link.users)
                if (running[lane]) link.left -= rise * load;
        // Freeze what cannot rise any more; a hair of a link left counts as none.
        std::vector<bool> still = running;
        for (std::size_t i = 0; i < lanes.size(); ++i) {
            if (running[i]) rates[i] += rise;
            if (rates[i] >= lanes[i].lane.gb_per_s * (1 - 1e-9)) still[i] = false;
        }
        for (const auto& [at, link] : links)
            if (link.left <= 1e-9)
                for (const auto& [lane, load] : link.users) still[lane] = false;
        if (still == running) break;
        running = still;
    }
    return rates;
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
        for (Candidate& lane : wider) lane.lane.gb_per_s = lane.gb_per_s_alone;
        wider.push_back(*other);
        LaneSet tried = price_set(topology, std::move(wider), bytes);
        if (tried.seconds < set.seconds * (1 - worth_a_lane)) set = std::move(tried);
    }
    return set.lanes.size() > 1 && set.seconds < best.seconds * clear_win ? set : alone;
}

}  // namespace sidestep::route
