#include "route/fan_out.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "route/flows.hpp"
#include "route/words.hpp"

namespace sidestep::route {
namespace {

using backend::Offer;
using Group = std::vector<std::size_t>;

// What is known before the ways are compared.
struct Ground {
    const Topology& topology;
    const std::vector<Offer>& offers;
    FanOutRequest request;
    End file;
    End slots;
    HopOption storage;              // file <-> slots
    std::vector<HopOption> links;   // slots <-> place; empty where a place or the file cannot be reached
    std::vector<HopOption> direct;  // file -> place; empty where that cannot be
    std::map<std::pair<std::size_t, std::size_t>, HopOption> peers;  // from, to: over NVLink
    std::vector<Refused> refused;

    std::size_t count() const { return request.places.size(); }
    bool writes() const { return request.to_file; }
    // Part of the bytes that a place gets or gives.
    double own(std::size_t place) const { return place < request.own.size() ? request.own[place] : 0; }
    double part(std::size_t place) const { return request.shared + own(place); }
};

struct Way {
    std::string name;
    bool direct = false;
    std::vector<Group> groups;
    Flows::Limit limit;  // for a GB of the files

    double rate() const { return limit.seconds > 0 ? 1 / limit.seconds : 0; }
};

// Host memory beside the first GPU, of the best kind from which every place is reached.
void find_slots(Ground& ground) {
    const std::vector<End>& places = ground.request.places;
    const auto gpu =
        std::find_if(places.begin(), places.end(), [](const End& end) { return end.place.is_gpu(); });
    const End& beside = gpu == places.end() ? places.front() : *gpu;
    HopOption missing;
    for (const End& slots : host_stops(ground.topology, ground.offers, ground.file, beside)) {
        const auto find = [&](const End& before, const End& after) {
            const End& from = ground.writes() ? after : before;
            const End& to = ground.writes() ? before : after;
            HopOption best = best_hop(ground.topology, ground.offers, from, to, ground.request.prefer);
            if (!best.possible() && missing.possible()) missing = best;
            return best;
        };
        ground.slots = slots;
        ground.storage = find(ground.file, slots);
        for (const End& place : places) ground.links.push_back(find(slots, place));
        const auto possible = [](const HopOption& hop) { return hop.possible(); };
        if (ground.storage.possible() && std::all_of(ground.links.begin(), ground.links.end(), possible))
            return;
        ground.links.clear();
    }
    if (missing.possible()) missing.refusal = "no backend has memory for the bytes to wait in";
    refuse(ground.refused, missing.hop.engine.empty() ? "through host memory" : hop_words(missing.hop),
           missing.refusal, missing.remedy);
}

// Storage that reaches device memory by itself.
void find_direct(Ground& ground) {
    std::vector<HopOption> direct;
    for (const End& place : ground.request.places) {
        if (!place.place.is_gpu()) continue;
        const End& from = ground.writes() ? place : ground.file;
        const End& to = ground.writes() ? ground.file : place;
        for (const HopOption& option : hop_options(ground.topology, ground.offers, from, to)) {
            if (option.possible() && !ground.writes()) continue;
            const std::string gpu = place.place.to_string();
            refuse(ground.refused,
                   (ground.writes() ? gpu + " -> file by " : "file -> " + gpu + " by ") +
                       engine_words(option.hop),
                   option.possible()
                       ? "a chunk of a file comes from several tensors, and is put together in host memory"
                       : option.refusal,
                   option.remedy);
        }
        HopOption best = best_hop(ground.topology, ground.offers, from, to);
        if (best.possible() && !ground.writes()) direct.push_back(std::move(best));
    }
    if (direct.empty()) return;
    const char* reason = direct.size() < ground.count() ? "it does not reach all of these places"
                         : ground.request.through_host  ? "the bytes are looked at in host memory (checksums)"
                         : ground.request.require == Require::host ? "a path through host memory is required"
                                                                   : nullptr;
    if (reason != nullptr)
        refuse(ground.refused, "file -> GPU by " + engine_words(direct.front().hop), reason);
    else
        ground.direct = std::move(direct);
}

// Who may hand bytes on to whom over NVLink.
void find_peers(Ground& ground) {
    if (ground.request.shared <= 0) return;
    const std::vector<End>& places = ground.request.places;
    for (std::size_t a = 0; a < places.size(); ++a)
        for (std::size_t b = 0; b < places.size(); ++b) {
            const Place& from = places[a].place;
            const Place& to = places[b].place;
            if (!from.is_gpu() || !to.is_gpu() || from == to) continue;
            HopOption best =
                best_hop(ground.topology, ground.offers, places[a], places[b], ground.request.prefer);
            if (!best.possible())
                refuse(ground.refused, arrows({from, to}), best.refusal, best.remedy);
            else if (!best.path.all_nvlink || best.path.links.empty())
                refuse(ground.refused, arrows({from, to}),
                       "a share handed on over PCIe would take the links that copies out of host memory need",
                       "", best.hop.gb_per_s);
            else
                ground.peers[{a, b}] = std::move(best);
        }
}

// Places of a group all reach one another. Greedy: exact for what machines look like (all, pairs, quads).
// Unless bytes are handed on, each is alone.
std::vector<Group> groups_of(const Ground& ground, bool hands_on) {
    std::vector<Group> groups;
    for (std::size_t place = 0; place < ground.count(); ++place) {
        const auto found = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
            return hands_on && std::all_of(group.begin(), group.end(), [&](std::size_t other) {
                       return ground.peers.contains({place, other}) && ground.peers.contains({other, place});
                   });
        });
        (found == groups.end() ? groups.emplace_back() : *found).push_back(place);
    }
    return groups;
}

// Copies within host memory, in GB/s; 0 where nobody says.
double memory_rate(const std::vector<Offer>& offers) {
    double rate = 0;
    for (const Offer& offer : offers)
        for (const backend::Capability& capability : offer.capabilities)
            if (offer.support.usable && capability.reach == backend::Reach::host_memory)
                rate = std::max(rate, capability.max_gb_per_s);
    return rate;
}

// What takes longest for a GB of the files, which is the one flow.
Flows::Limit limit_of(const Ground& ground, const Way& way) {
    const auto& entries = way.direct ? ground.direct : ground.links;
    Flows flows(ground.topology);
    double entered = 0;  // bytes, for each of the files, out of the slots or straight from storage
    double copied = 0;   // the same by ends in host memory
    for (const Group& group : way.groups) {
        double rates = 0;
        for (std::size_t place : group) rates += entries[place].hop.gb_per_s;
        for (std::size_t place : group) {
            const Hop& entry = entries[place].hop;
            // Each takes of what all get as much as its own link allows, and hands that on.
            const double share = rates > 0 ? ground.request.shared * entry.gb_per_s / rates : 0;
            for (std::size_t to : group)
                if (to != place) flows.cross(0, ground.peers.at({place, to}), share);
            const double bytes = share + ground.own(place);
            flows.cross(0, entries[place], bytes);
            entered += bytes;
            copied += bytes * (entry.from.is_host() + entry.to.is_host());
        }
    }
    if (way.direct) {
        flows.take(0, "storage", ground.direct.front().hop.gb_per_s, entered);
    } else {
        flows.take(0, ground.writes() ? "writing the files" : "reading the files",
                   ground.storage.hop.gb_per_s, 1);
        flows.take(0, "host memory", 2 * memory_rate(ground.offers), 1 + copied);
    }
    return flows.limit();
}

// Every way there is, the one to prefer at equal price first.
std::vector<Way> ways_of(Ground& ground) {
    std::vector<Way> ways;
    for (const bool direct : {true, false})
        for (const bool hands_on : {true, false}) {
            if ((direct ? ground.direct : ground.links).empty()) continue;
            Way way{{}, direct, groups_of(ground, hands_on), {}};
            if (hands_on && way.groups.size() == ground.count()) continue;
            way.name = direct ? "direct storage to " : "one slot to ";
            if (hands_on)
                way.name += fmt::format("one GPU of each {}, shares over NVLink",
                                        way.groups.size() == 1 ? "chunk" : "group and chunk");
            else
                way.name += ground.count() == 1 ? "the place" : "all places";
            way.limit = limit_of(ground, way);
            if (!direct && ground.request.require == Require::direct)
                refuse(ground.refused, way.name, "a direct path is required", "", way.rate());
            else
                ways.push_back(std::move(way));
        }
    return ways;
}

// The lane of a group's k-th place.
sidestep::Lane lane_of(const Ground& ground, const Way& way, const Group& group, std::size_t k) {
    const std::size_t place = group[k];
    const std::string several =
        ground.request.shared <= 0 || ground.count() == 1 ? ""
        : group.size() > 1 ? fmt::format("1/{} of what all get, the rest from the others", group.size())
                           : fmt::format("one slot feeds {} places", ground.count());
    sidestep::Lane lane;
    lane.hops = {(way.direct ? ground.direct : ground.links)[place].hop};
    Hop& entry = lane.hops.front();
    entry.reason = joined(entry.reason, several);
    if (!way.direct) {
        // Host memory of no node in particular stands at both hops.
        (ground.writes() ? entry.to : entry.from) = ground.slots.place;
        Hop storage = ground.storage.hop;
        storage.reason = joined(storage.reason, ground.writes() ? "" : "each byte once");
        lane.hops.insert(ground.writes() ? lane.hops.end() : lane.hops.begin(), std::move(storage));
    }
    if (group.size() > 1) {
        Hop& on = lane.hops.emplace_back(ground.peers.at({place, group[(k + 1) % group.size()]}).hop);
        on.reason = joined(on.reason, group.size() == 2 ? "hands its share on to the other GPU"
                                                        : fmt::format("hands its share on to {} other GPUs",
                                                                      group.size() - 1));
    }
    lane.gb_per_s = way.rate() * ground.part(place);
    for (const Hop& hop : lane.hops) lane.latency_us += hop.latency_us;
    return lane;
}

Route route_of(const Ground& ground, const Way& way) {
    const FanOutRequest& request = ground.request;
    Route route;
    route.from = ground.writes() ? request.places.front().place : request.file;
    route.to = ground.writes() ? request.file : request.places.front().place;
    route.bytes = request.bytes;
    route.emulated = ground.topology.emulated();
    route.expected_gb_per_s = way.rate();
    route.lanes.resize(ground.count());
    double all = 0;
    for (std::size_t place = 0; place < ground.count(); ++place) all += ground.part(place);
    double latency = 0;
    for (const Group& group : way.groups)
        for (std::size_t k = 0; k < group.size(); ++k) {
            sidestep::Lane& lane = route.lanes[group[k]] = lane_of(ground, way, group, k);
            lane.share = all > 0 ? ground.part(group[k]) / all : 0;
            latency = std::max(latency, lane.latency_us);
        }
    route.expected_seconds = static_cast<double>(request.bytes) * 1e-9 * way.limit.seconds + latency * 1e-6;
    return route;
}

// The ways not taken come before what could not be taken.
std::vector<Refused> refused_of(const Ground& ground, const std::vector<Way>& ways, const Way& best) {
    std::vector<Refused> refused;
    for (const Way& way : ways) {
        if (&way == &best) continue;
        const std::string slower = slower_words(way.limit.seconds, best.limit.seconds, "way");
        refused.push_back(
            {way.name, fmt::format("{}: {} is the limit", slower, way.limit.name), "", way.rate()});
    }
    refused.insert(refused.end(), ground.refused.begin(), ground.refused.end());
    return refused;
}

}  // namespace

Result<FanOut> fan_out(const Topology& topology, const std::vector<Offer>& offers,
                       const FanOutRequest& asked) {
    if (asked.places.empty())
        return Error{ErrorCode::invalid_argument, "there is no place to move bytes to or from", "route", {}};
    Ground ground{topology, offers, asked, {asked.file, MemoryKind::storage}, {}, {}, {}, {}, {}, {}};
    if (asked.to_file) ground.request.shared = 0;
    const std::size_t count = ground.count();
    find_slots(ground);
    find_direct(ground);
    find_peers(ground);
    const std::vector<Way> ways = ways_of(ground);
    if (ways.empty())
        return nothing_left(
            fmt::format("no {}way between the files and {} and {} place{}",
                        asked.require == Require::direct ? "direct " : "",
                        asked.places.front().place.to_string(), count - 1, count == 2 ? "" : "s more"),
            ground.refused);
    // Of equally quick ones the first.
    const auto best = std::min_element(ways.begin(), ways.end(), [](const Way& a, const Way& b) {
        return a.limit.seconds < b.limit.seconds * (1 - 1e-3);
    });
    FanOut found;
    found.route = route_of(ground, *best);
    found.route.refused = refused_of(ground, ways, *best);
    found.direct = best->direct;
    found.slots = ground.slots;
    found.groups = best->groups;
    found.storage = (best->direct ? ground.direct.front() : ground.storage).choice;
    if (!best->direct)
        for (const HopOption& link : ground.links) found.links.push_back(link.choice);
    found.peers.assign(count, std::vector<Choice>(count));
    for (const auto& [pair, hop] : ground.peers) found.peers[pair.first][pair.second] = hop.choice;
    return found;
}

}  // namespace sidestep::route
