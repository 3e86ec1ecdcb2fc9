#include "route/planner.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "route/candidate.hpp"

namespace sidestep::route {
namespace {

using backend::Offer;

struct Found {
    std::vector<Candidate> candidates;
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

// Through staging memory at one stop, the best engine for each hop. False, with the reason noted in
// `refused`, where nobody carries out one of the hops.
bool add_staged(const Topology& topology, const std::vector<Offer>& offers, const Request& request,
                const End& stop, std::vector<Candidate>& candidates, std::vector<Refused>& refused) {
    const End stops[] = {request.from, stop, request.to};
    std::vector<HopOption> hops;
    for (int i = 0; i < 2; ++i) {
        const auto options = hop_options(topology, offers, stops[i], stops[i + 1]);
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

// The quickest neighbour; those that are no quicker are counted, not listed.
void add_through_gpus(const Topology& topology, const std::vector<Offer>& offers, const Request& request,
                      Found& found) {
    std::vector<Candidate> relays;
    for (const End& stop : gpu_stops(topology, request))
        add_staged(topology, offers, request, stop, relays, found.refused);
    if (relays.empty()) return;
    const auto best =
        std::min_element(relays.begin(), relays.end(),
                         [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
    best->alternatives = static_cast<int>(relays.size()) - 1;
    found.candidates.push_back(std::move(*best));
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

bool is_kernel(const Candidate& candidate) {
    return candidate.lane.hops.size() == 1 &&
           candidate.lane.hops[0].engine.find("kernel") != std::string::npos;
}

bool is_copy_engine(const Candidate& candidate) {
    return candidate.lane.hops.size() == 1 &&
           candidate.lane.hops[0].engine.find("copy engine") != std::string::npos;
}

// Moves the candidates that a wish rules out to the refused ones. A wish that nothing meets is noted and
// otherwise without effect; a requirement is a matter for the caller.
void apply_preference(const Request& request, Found& found) {
    if (request.prefer == Prefer::automatic) return;
    const bool kernel = request.prefer == Prefer::kernel;
    const auto wanted = kernel ? is_kernel : is_copy_engine;
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
        else if (hops > 1 && request.max_staging == 0)
            add_refusal(found.refused, {candidate_name(candidate), "no staging memory is allowed",
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
    Candidate& winner = found.candidates.front();
    std::vector<Refused> refused;
    for (std::size_t i = 1; i < found.candidates.size(); ++i) {
        const Candidate& loser = found.candidates[i];
        add_refusal(refused, {candidate_name(loser), why_slower(loser, winner), "", loser.lane.gb_per_s});
    }
    for (Refused& other : found.refused) add_refusal(refused, std::move(other));

    Plan plan;
    plan.route.from = request.from.place;
    plan.route.to = request.to.place;
    plan.route.bytes = request.bytes;
    plan.route.emulated = topology.emulated();
    plan.route.expected_gb_per_s = winner.lane.gb_per_s;
    plan.route.expected_seconds = winner.seconds;
    plan.route.refused = std::move(refused);
    plan.choices.push_back(winner.choices);
    plan.route.lanes.push_back(std::move(winner.lane));
    return plan;
}

}  // namespace sidestep::route
