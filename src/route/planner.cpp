#include "route/planner.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "route/lanes.hpp"
#include "route/words.hpp"

namespace sidestep::route {
namespace {

using backend::Offer;

// As many lanes as a copy may have: the GPUs of one machine, of the largest modelled kind.
constexpr std::size_t max_lanes = 16;

// A question and what was found so far.
struct Search {
    const Topology& topology;
    const std::vector<Offer>& offers;
    const Request& request;
    std::vector<Candidate> candidates;
    std::vector<Candidate> relays;  // one for each neighbour GPU; the quickest is among the candidates
    std::vector<Refused> refused;

    std::string words() const { return arrows({request.from.place, request.to.place}); }
    std::string words(const End& stop) const {
        return arrows({request.from.place, stop.place, request.to.place});
    }
};

// Straight from one end to the other: every engine that could do it is a candidate of its own.
void add_direct(Search& search) {
    const auto options = hop_options(search.topology, search.offers, search.request.from, search.request.to);
    for (const HopOption& option : options) {
        if (option.possible())
            search.candidates.push_back(price(search.topology, {option}, search.request.bytes));
        else
            refuse(search.refused, hop_words(option.hop), option.refusal, option.remedy);
    }
    if (options.empty())
        refuse(search.refused, search.words(), "no backend moves bytes between these two without staging");
}

// Through staging memory at one stop, the best engine for each hop. False, with the reason noted in
// `refused`, where nobody carries out one of the hops.
bool add_staged(const Search& search, const End& stop, std::vector<Candidate>& candidates,
                std::vector<Refused>& refused) {
    const Request& request = search.request;
    const End* stops[] = {&request.from, &stop, &request.to};
    const auto seen = [&](int i) { return seen_from(search.topology, request.from, request.to, *stops[i]); };
    std::vector<HopOption> hops;
    for (int i = 0; i < 2; ++i) {
        const HopOption& best =
            hops.emplace_back(best_hop(search.topology, search.offers, seen(i), seen(i + 1)));
        if (!best.possible()) {
            refuse(refused, search.words(stop), best.refusal, best.remedy);
            return false;
        }
        Hop& hop = hops.back().hop;
        hop.from = stops[i]->place;
        hop.to = stops[i + 1]->place;
        hop.reason =
            joined(hop.reason, stop.place.is_gpu() ? "staged in a neighbour GPU" : "staged in host memory");
    }
    candidates.push_back(price(search.topology, std::move(hops), request.bytes));
    return true;
}

// The first kind of host memory that works; the others would only be slower. Where none does, the reason against the
// first is told: that another kind does not suit an engine is no matter of the caller.
void add_through_host(Search& search) {
    std::vector<Refused> refused;
    for (const End& stop : host_stops(search.topology, search.offers, search.request.from, search.request.to))
        if (add_staged(search, stop, search.candidates, refused)) return;
    if (refused.empty()) return;
    refuse(search.refused, refused.front().path, refused.front().reason, refused.front().remedy);
}

// The quickest of the relays, standing for all.
Candidate quickest(const std::vector<Candidate>& relays) {
    Candidate best = *std::ranges::min_element(relays, {}, &Candidate::seconds);
    best.alternatives = static_cast<int>(relays.size()) - 1;
    return best;
}

// The quickest neighbour; those that are no quicker are counted, not listed.
void add_through_gpus(Search& search) {
    const Request& request = search.request;
    for (const End& stop : gpu_stops(search.topology, request.from, request.to)) {
        const auto lent = request.relay_memory.find(stop.place.index());
        if (lent != request.relay_memory.end() && lent->second < 2 * min_lane_chunk)
            refuse(search.refused, search.words(stop),
                   stop.place.to_string() + " lends copies of others no memory",
                   "raise Context::set_relay_memory or SIDESTEP_RELAY_MEMORY");
        else
            add_staged(search, stop, search.relays, search.refused);
    }
    if (!search.relays.empty()) search.candidates.push_back(quickest(search.relays));
}

void refuse_candidate(std::vector<Refused>& list, const Candidate& candidate, std::string reason,
                      std::string remedy = {}) {
    const std::vector<Hop>& hops = candidate.lane.hops;
    std::string name = hops.size() == 1 ? hop_words(hops[0]) : arrows(hops);
    const int others = candidate.alternatives;
    if (others > 0) name += fmt::format(" (or {} other GPU{})", others, others == 1 ? "" : "s");
    refuse(list, std::move(name), std::move(reason), std::move(remedy), candidate.lane.gb_per_s);
}

// What a candidate that works is, in words: the reason it lost is that it is slower.
std::string why_slower(const Candidate& loser, const Candidate& winner) {
    const std::vector<Hop>& hops = loser.lane.hops;
    const std::string what = hops.size() == 1
                                 ? hops[0].engine
                                 : fmt::format("{} copies through {}", hops.size(),
                                               hops[0].to.is_host() ? "host memory" : hops[0].to.to_string());
    return what + ", " + slower_words(loser.seconds, winner.seconds, "path");
}

// A wish that nothing meets is noted and otherwise without effect; a requirement is a matter for the caller.
void apply_preference(Search& search) {
    const Prefer prefer = search.request.prefer;
    if (prefer == Prefer::automatic) return;
    const auto unwanted = [prefer](const Candidate& candidate) {
        return candidate.options.size() != 1 || candidate.options[0].meets != prefer;
    };
    const char* name = prefer == Prefer::kernel ? "kernel" : "copy engine";
    if (std::ranges::all_of(search.candidates, unwanted))
        return refuse(search.refused, search.words() + " by " + name,
                      fmt::format("a {} was preferred, and none can carry these bytes", name));
    std::erase_if(search.candidates, [&](const Candidate& candidate) {
        if (!unwanted(candidate)) return false;
        refuse_candidate(search.refused, candidate, fmt::format("a {} is preferred", name));
        return true;
    });
}

bool through_host(const Candidate& candidate) {
    return std::ranges::any_of(candidate.lane.hops,
                               [](const Hop& hop) { return hop.from.is_host() || hop.to.is_host(); });
}

void apply_requirement(Search& search) {
    const Request& request = search.request;
    std::erase_if(search.candidates, [&](const Candidate& candidate) {
        const Bytes staging = (candidate.lane.hops.size() - 1) * min_stop;
        if (request.require == Require::direct && staging > 0)
            refuse_candidate(search.refused, candidate, "a direct path is required");
        else if (request.require == Require::host && !through_host(candidate))
            refuse_candidate(search.refused, candidate, "a path through host memory is required");
        else if (request.max_staging < staging)
            refuse_candidate(search.refused, candidate,
                             fmt::format("{} of staging memory are allowed, and it takes {}",
                                         format_bytes(request.max_staging), format_bytes(staging)),
                             "raise max_staging; verification, where asked for, takes half of it");
        else
            return false;
        return true;
    });
}

// The best candidate, which comes first, and what makes the copy quicker beside it.
LaneSet lanes_of(const Search& search) {
    const Request& request = search.request;
    const Candidate& best = search.candidates.front();
    const bool staging = request.require == Require::any && request.prefer != Prefer::kernel;
    std::size_t max = request.lanes > 0 ? static_cast<std::size_t>(request.lanes) : max_lanes;
    max = std::min<std::size_t>(max, 1 + request.max_staging / (2 * min_lane_chunk));
    if (!staging || max == 1) return {{best}, best.lane.gb_per_s, best.seconds};
    // Of the engines between the same two ends one is enough: they share all links.
    std::vector<Candidate> others;
    for (const Candidate& other : search.candidates)
        if (other.lane.hops.size() == 1 && best.lane.hops.size() != 1 && others.empty())
            others.push_back(other);
    for (const Candidate& relay : search.relays)
        if (best.lane.hops.size() == 1 || relay.lane.hops[0].to != best.lane.hops[0].to)
            others.push_back(relay);
    return combine(search.topology, best, std::move(others), request.bytes, max);
}

bool in_set(const LaneSet& set, const Candidate& candidate) {
    const auto same = [](const HopOption& a, const HopOption& b) {
        return a.choice == b.choice && a.hop.to == b.hop.to;
    };
    return std::ranges::any_of(set.lanes, [&](const Candidate& lane) {
        return std::equal(lane.options.begin(), lane.options.end(), candidate.options.begin(),
                          candidate.options.end(), same);
    });
}

// Every candidate that was not taken, with the reason.
std::vector<Refused> losers(const Search& search, const LaneSet& set) {
    const Request& request = search.request;
    const Candidate& best = set.lanes.front();
    std::vector<Refused> refused;
    for (const Candidate& loser : search.candidates) {
        const bool relay = loser.lane.hops.size() == 2 && loser.lane.hops[0].to.is_gpu();
        if (relay || in_set(set, loser)) continue;
        refuse_candidate(refused, loser, why_slower(loser, best));
    }
    std::vector<Candidate> unused;
    for (const Candidate& relay : search.relays)
        if (!in_set(set, relay)) unused.push_back(relay);
    if (!unused.empty() && request.require == Require::any && request.max_staging > 0) {
        const Candidate loser = quickest(unused);
        std::string reason = why_slower(loser, best);
        if (may_share_the_work(loser) && may_share_the_work(best))
            reason += request.lanes == 1
                          ? "; not tried as a further lane: one was asked for, or the copy is on a stream"
                          : "; as a further lane, no gain";
        refuse_candidate(refused, loser, std::move(reason));
    }
    for (const Refused& other : search.refused)
        refuse(refused, other.path, other.reason, other.remedy, other.gb_per_s);
    return refused;
}

}  // namespace

Result<Plan> plan(const Topology& topology, const std::vector<Offer>& offers, const Request& request) {
    Search search{topology, offers, request, {}, {}, {}};
    add_direct(search);
    add_through_gpus(search);
    add_through_host(search);
    apply_preference(search);
    apply_requirement(search);
    if (search.candidates.empty())
        return nothing_left(
            fmt::format("no {}path from {} to {}{}", request.require == Require::direct ? "direct " : "",
                        request.from.place.to_string(), request.to.place.to_string(),
                        request.require == Require::host ? " through host memory" : ""),
            search.refused);

    // Quickest first; of equally quick ones the one with fewer hops, then the one found first.
    std::ranges::stable_sort(search.candidates, {}, [](const Candidate& one) {
        return std::pair(one.seconds, one.lane.hops.size());
    });
    const LaneSet set = lanes_of(search);
    Plan plan;
    plan.route.from = request.from.place;
    plan.route.to = request.to.place;
    plan.route.bytes = request.bytes;
    plan.route.emulated = topology.emulated();
    plan.route.expected_gb_per_s = set.gb_per_s;
    plan.route.expected_seconds = set.seconds;
    plan.route.refused = losers(search, set);
    for (const Candidate& lane : set.lanes) {
        auto& choices = plan.choices.emplace_back();
        for (const HopOption& option : lane.options) choices.push_back(option.choice);
        plan.route.lanes.push_back(lane.lane);
    }
    return plan;
}

}  // namespace sidestep::route
