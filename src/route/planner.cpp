#include "route/planner.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "route/candidate.hpp"
#include "route/lanes.hpp"

namespace sidestep::route {
namespace {

using backend::Offer;

// As many lanes as a copy may have: the GPUs of one machine, of the largest modelled kind.
constexpr std::size_t max_lanes = 16;

struct Found {
    std::vector<Candidate> candidates;
    std::vector<Candidate> relays;  // one for each neighbour GPU; the quickest is among the candidates
    std::vector<Refused> refused;
};

// "cuda copy engine"; an emulated engine names its backend itself.
std::string engine_name(const Hop& hop) {
    return hop.engine.starts_with(hop.backend) ? hop.engine : hop.backend + " " + hop.engine;
}

std::string by(const Hop& hop) {
    return fmt::format("{} -> {} by {}", hop.from.to_string(), hop.to.to_string(), engine_name(hop));
}

void add_refusal(std::vector<Refused>& list, Refused refused) {
    const bool known = std::any_of(list.begin(), list.end(), [&](const Refused& other) {
        return other.path == refused.path && other.reason == refused.reason;
    });
    if (!known) list.push_back(std::move(refused));
}

// Straight from one end to the other: every engine that could do it is a candidate of its own.
void add_direct(const Topology& topology, const std::vector<Offer>& offers, const Request& request,
                Found& found) {
    const auto options = hop_options(topology, offers, request.from, request.to);
    for (const HopOption& option : options) {
        if (option.possible())
            found.candidates.push_back(price(topology, {option}, request.bytes));
        else
            add_refusal(found.refused, {by(option.hop), option.refusal, option.remedy, 0});
    }
    if (options.empty())
        add_refusal(found.refused, {name_of({request.from, request.to}),
                                    "no backend moves bytes between these two without staging", "", 0});
}

// Host memory of no node in particular is taken to lie beside the GPU at the other end of the copy, whichever
// GPU reads it.
End seen_from(const Topology& topology, const Request& request, const End& end) {
    if (!end.place.is_host() || end.place.index() >= 0) return end;
    for (const End* other : {&request.from, &request.to}) {
        const auto gpu = other->place.is_gpu() ? topology.find(other->place) : std::nullopt;
        const auto cpu = gpu ? topology.cpu_of(*gpu) : std::nullopt;
        if (cpu) return {Place::host(topology.device(*cpu).index), end.memory};
    }
    return end;
}

// Through staging memory at one stop, the best engine for each hop. False, with the reason noted in
// `refused`, where nobody carries out one of the hops.
bool add_staged(const Topology& topology, const std::vector<Offer>& offers, const Request& request,
                const End& stop, std::vector<Candidate>& candidates, std::vector<Refused>& refused) {
    const End stops[] = {request.from, stop, request.to};
    std::vector<HopOption> hops;
    for (int i = 0; i < 2; ++i) {
        const auto options = hop_options(topology, offers, seen_from(topology, request, stops[i]),
                                         seen_from(topology, request, stops[i + 1]));
        const HopOption* best = nullptr;
        for (const HopOption& option : options)
            if (option.possible() && (best == nullptr || option.hop.gb_per_s > best->hop.gb_per_s))
                best = &option;
        if (best == nullptr) {
            const bool known = !options.empty();
            add_refusal(refused, {name_of({request.from, stop, request.to}),
                                  known ? options.front().refusal : "no backend moves these bytes",
                                  known ? options.front().remedy : "", 0});
            return false;
        }
        hops.push_back(*best);
        hops.back().hop.from = stops[i].place;
        hops.back().hop.to = stops[i + 1].place;
    }
    const char* where = stop.place.is_gpu() ? "staged in a neighbour GPU" : "staged in host memory";
    for (HopOption& hop : hops)
        hop.hop.reason = hop.hop.reason.empty() ? where : hop.hop.reason + "; " + where;
    candidates.push_back(price(topology, hops, request.bytes));
    return true;
}

// The first kind of host memory that works; the others would only be slower.
void add_through_host(const Topology& topology, const std::vector<Offer>& offers, const Request& request,
                      Found& found) {
    std::vector<Refused> refused;
    for (const End& stop : host_stops(topology, offers, request))
        if (add_staged(topology, offers, request, stop, found.candidates, refused)) return;
    for (Refused& other : refused) add_refusal(found.refused, std::move(other));
}

// The quickest of the relays, standing for all.
Candidate quickest(const std::vector<Candidate>& relays) {
    Candidate best =
        *std::min_element(relays.begin(), relays.end(),
                          [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
    best.alternatives = static_cast<int>(relays.size()) - 1;
    return best;
}

// The quickest neighbour; those that are no quicker are counted, not listed.
void add_through_gpus(const Topology& topology, const std::vector<Offer>& offers, const Request& request,
                      Found& found) {
    for (const End& stop : gpu_stops(topology, request)) {
        const auto relay = static_cast<std::size_t>(stop.place.index());
        if (relay < request.relay_memory.size() && request.relay_memory[relay] < 2 * min_lane_chunk)
            add_refusal(found.refused,
                        {name_of({request.from, stop, request.to}),
                         fmt::format("{} lends copies of others no memory", stop.place.to_string()),
                         "raise Context::set_relay_memory or SIDESTEP_RELAY_MEMORY", 0});
        else
            add_staged(topology, offers, request, stop, found.relays, found.refused);
    }
    if (!found.relays.empty()) found.candidates.push_back(quickest(found.relays));
}

std::string candidate_name(const Candidate& candidate) {
    std::string text = candidate.lane.hops.front().from.to_string();
    for (const Hop& hop : candidate.lane.hops) text += " -> " + hop.to.to_string();
    if (candidate.lane.hops.size() == 1) text += " by " + engine_name(candidate.lane.hops[0]);
    const int others = candidate.alternatives;
    if (others > 0) text += fmt::format(" (or {} other GPU{})", others, others == 1 ? "" : "s");
    return text;
}

// What a candidate that works is, in words: the reason it lost is that it is slower.
std::string why_slower(const Candidate& loser, const Candidate& winner) {
    const std::size_t hops = loser.lane.hops.size();
    const bool host = loser.lane.hops[0].to.is_host();
    const std::string what = hops == 1
                                 ? loser.lane.hops[0].engine
                                 : fmt::format("{} copies through {}", hops,
                                               host ? "host memory" : loser.lane.hops[0].to.to_string());
    const double times = winner.seconds > 0 ? loser.seconds / winner.seconds : 1;
    if (times < 1.05) return what + ", no faster than the path taken";
    return fmt::format("{}, {} times as long", what,
                       times < 10 ? fmt::format("{:.2g}", times) : fmt::format("{:.0f}", times));
}

// Moves the candidates that a wish rules out to the refused ones. A wish that nothing meets is noted and
// otherwise without effect; a requirement is a matter for the caller.
void apply_preference(const Request& request, Found& found) {
    if (request.prefer == Prefer::automatic) return;
    const bool kernel = request.prefer == Prefer::kernel;
    const auto wanted = [&request](const Candidate& candidate) {
        return candidate.options.size() == 1 && candidate.options[0].meets == request.prefer;
    };
    const char* name = kernel ? "kernel" : "copy engine";
    if (std::none_of(found.candidates.begin(), found.candidates.end(), wanted)) {
        add_refusal(found.refused,
                    {name_of({request.from, request.to}) + " by " + name,
                     fmt::format("a {} was preferred, and none can carry these bytes", name), "", 0});
        return;
    }
    std::vector<Candidate> kept;
    for (Candidate& candidate : found.candidates) {
        if (wanted(candidate))
            kept.push_back(std::move(candidate));
        else
            add_refusal(found.refused, {candidate_name(candidate), fmt::format("a {} is preferred", name), "",
                                        candidate.lane.gb_per_s});
    }
    found.candidates = std::move(kept);
}

bool through_host(const Candidate& candidate) {
    const auto& hops = candidate.lane.hops;
    return hops.front().from.is_host() ||
           std::any_of(hops.begin(), hops.end(), [](const Hop& hop) { return hop.to.is_host(); });
}

void apply_requirement(const Request& request, Found& found) {
    std::vector<Candidate> kept;
    for (Candidate& candidate : found.candidates) {
        const std::size_t hops = candidate.lane.hops.size();
        if (request.require == Require::direct && hops > 1)
            add_refusal(found.refused, {candidate_name(candidate), "a direct path is required", "",
                                        candidate.lane.gb_per_s});
        else if (request.require == Require::host && !through_host(candidate))
            add_refusal(found.refused, {candidate_name(candidate), "a path through host memory is required",
                                        "", candidate.lane.gb_per_s});
        else if (request.max_staging < (hops - 1) * min_stop)
            add_refusal(found.refused,
                        {candidate_name(candidate),
                         fmt::format("{} of staging memory are allowed, and it takes {}",
                                     format_bytes(request.max_staging), format_bytes((hops - 1) * min_stop)),
                         "raise max_staging", candidate.lane.gb_per_s});
        else
            kept.push_back(std::move(candidate));
    }
    found.candidates = std::move(kept);
}

Error nothing_left(const Request& request, const Found& found) {
    std::string message =
        fmt::format("no {}path from {} to {}{}", request.require == Require::direct ? "direct " : "",
                    request.from.place.to_string(), request.to.place.to_string(),
                    request.require == Require::host ? " through host memory" : "");
    std::string hint;
    for (const Refused& refused : found.refused) {
        message += fmt::format("; {}: {}", refused.path, refused.reason);
        if (hint.empty()) hint = refused.remedy;
    }
    return Error{ErrorCode::path_unavailable, std::move(message), "route", std::move(hint)};
}

// The best candidate, which comes first, and what makes the copy quicker beside it.
LaneSet lanes_of(const Topology& topology, const Request& request, const Found& found) {
    const Candidate& best = found.candidates.front();
    const bool staging = request.require == Require::any && request.prefer != Prefer::kernel;
    std::size_t max = request.lanes > 0 ? static_cast<std::size_t>(request.lanes) : max_lanes;
    max = std::min<std::size_t>(max, 1 + request.max_staging / (2 * min_lane_chunk));
    if (!staging || max == 1) return {{best}, best.lane.gb_per_s, best.seconds};
    // Of the engines between the same two ends one is enough: they share all links.
    std::vector<Candidate> others;
    for (const Candidate& other : found.candidates)
        if (other.lane.hops.size() == 1 && best.lane.hops.size() != 1 && others.empty())
            others.push_back(other);
    for (const Candidate& relay : found.relays)
        if (best.lane.hops.size() == 1 || relay.lane.hops[0].to != best.lane.hops[0].to)
            others.push_back(relay);
    return combine(topology, best, std::move(others), request.bytes, max);
}

bool in_set(const LaneSet& set, const Candidate& candidate) {
    return std::any_of(set.lanes.begin(), set.lanes.end(), [&](const Candidate& lane) {
        if (lane.choices.size() != candidate.choices.size()) return false;
        for (std::size_t i = 0; i < lane.choices.size(); ++i)
            if (lane.lane.hops[i].to != candidate.lane.hops[i].to ||
                lane.lane.hops[i].engine != candidate.lane.hops[i].engine)
                return false;
        return true;
    });
}

// Every candidate that was not taken, with the reason.
std::vector<Refused> losers(const Request& request, const Found& found, const LaneSet& set) {
    const Candidate& best = set.lanes.front();
    std::vector<Refused> refused;
    for (const Candidate& loser : found.candidates) {
        const bool relay = loser.lane.hops.size() == 2 && loser.lane.hops[0].to.is_gpu();
        if (relay || in_set(set, loser)) continue;
        add_refusal(refused, {candidate_name(loser), why_slower(loser, best), "", loser.lane.gb_per_s});
    }
    std::vector<Candidate> unused;
    for (const Candidate& relay : found.relays)
        if (!in_set(set, relay)) unused.push_back(relay);
    if (!unused.empty() && request.require == Require::any && request.max_staging > 0) {
        const Candidate loser = quickest(unused);
        std::string reason = why_slower(loser, best);
        if (may_share_the_work(loser) && may_share_the_work(best))
            reason += request.lanes == 1
                          ? "; not tried as a further lane: one was asked for, or the copy is on a stream"
                          : "; as a further lane, no gain";
        add_refusal(refused, {candidate_name(loser), std::move(reason), "", loser.lane.gb_per_s});
    }
    for (const Refused& other : found.refused) add_refusal(refused, other);
    return refused;
}

}  // namespace

Result<Plan> plan(const Topology& topology, const std::vector<Offer>& offers, const Request& request) {
    Found found;
    add_direct(topology, offers, request, found);
    add_through_gpus(topology, offers, request, found);
    add_through_host(topology, offers, request, found);
    apply_preference(request, found);
    apply_requirement(request, found);
    if (found.candidates.empty()) return nothing_left(request, found);

    // Quickest first; of equally quick ones the one with fewer hops, then the one found first.
    std::stable_sort(found.candidates.begin(), found.candidates.end(),
                     [](const Candidate& a, const Candidate& b) {
                         if (a.seconds != b.seconds) return a.seconds < b.seconds;
                         return a.lane.hops.size() < b.lane.hops.size();
                     });
    const LaneSet set = lanes_of(topology, request, found);
    Plan plan;
    plan.route.from = request.from.place;
    plan.route.to = request.to.place;
    plan.route.bytes = request.bytes;
    plan.route.emulated = topology.emulated();
    plan.route.expected_gb_per_s = set.gb_per_s;
    plan.route.expected_seconds = set.seconds;
    plan.route.refused = losers(request, found, set);
    for (const Candidate& lane : set.lanes) {
        plan.choices.push_back(lane.choices);
        plan.route.lanes.push_back(lane.lane);
    }
    return plan;
}

}  // namespace sidestep::route
