#include "route/fan_out.hpp"

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
    std::vector<HopOption> direct;  // file -> place, not possible everywhere; empty where no way may be so
    std::map<std::pair<std::size_t, std::size_t>, HopOption> peers;  // from, to: over NVLink
    std::vector<Refused> refused;

    std::size_t count() const { return request.places.size(); }
    bool writes() const { return request.to_file; }
    // Part of the bytes that a place gets or gives.
    double own(std::size_t place) const { return place < request.own.size() ? request.own[place] : 0; }
    double part(std::size_t place) const { return request.shared + own(place); }
};

bool has(const Group& group, std::size_t place) {
    return std::ranges::find(group, place) != group.end();
}

// What is looked at of each way: which places are fed directly, and the groups. The rest is filled in for the best.
struct Way : FanOut {
    std::string name;
    Flows::Limit limit;  // for a GB of the files

    std::size_t direct_places() const { return static_cast<std::size_t>(std::ranges::count(direct, true)); }
    // Who of a group gets bytes to hand on.
    Group first_of(const Group& group) const {
        Group first;
        for (const std::size_t place : group)
            if (direct[place]) first.push_back(place);
        return first.empty() ? group : first;
    }
    double rate() const { return limit.seconds > 0 ? 1 / limit.seconds : 0; }
};

// Host memory beside the first GPU, of the best kind from which every place is reached.
void find_slots(Ground& ground) {
    const std::vector<End>& places = ground.request.places;
    const auto gpu = std::ranges::find_if(places, [](const End& end) { return end.place.is_gpu(); });
    const End& beside = gpu == places.end() ? places.front() : *gpu;
    // A file of another machine is put together in host memory here, as one of this machine is: a copy of it to host memory
    // would need no stop.
    const End file{Place::file(ground.file.place.path()), ground.file.memory};
    HopOption missing;
    for (const End& slots : host_stops(ground.topology, ground.offers, file, beside)) {
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
        const auto possible = &HopOption::possible;
        if (ground.storage.possible() && std::ranges::all_of(ground.links, possible)) return;
        ground.links.clear();
    }
    if (missing.possible()) missing.refusal = "no backend has memory for the bytes to wait in";
    refuse(ground.refused, missing.hop.engine.empty() ? "through host memory" : hop_words(missing.hop),
           missing.refusal, missing.remedy);
}

// Storage that reaches device memory by itself.
void find_direct(Ground& ground) {
    // A node's file comes once, whatever the number of GPUs.
    if (!ground.file.place.node().empty()) return;
    std::vector<HopOption> direct;
    for (const End& place : ground.request.places) {
        const End& from = ground.writes() ? place : ground.file;
        const End& to = ground.writes() ? ground.file : place;
        direct.push_back(best_hop(ground.topology, ground.offers, from, to));
        if (!place.place.is_gpu()) {
            direct.back().refusal = "it is no GPU";
            continue;
        }
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
    }
    const auto any = std::ranges::find_if(direct, &HopOption::possible);
    if (any == direct.end() || ground.writes()) return;
    const char* reason = ground.request.through_host ? "the bytes are looked at in host memory (checksums)"
                         : ground.request.require == Require::host ? "a path through host memory is required"
                                                                   : nullptr;
    if (reason != nullptr)
        refuse(ground.refused, "file -> GPU by " + engine_words(any->hop), reason);
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
        const auto found = std::ranges::find_if(groups, [&](const Group& group) {
            return hands_on && std::ranges::all_of(group, [&](std::size_t other) {
                       return ground.peers.contains({place, other}) && ground.peers.contains({other, place});
                   });
        });
        (found == groups.end() ? groups.emplace_back() : *found).push_back(place);
    }
    return groups;
}

// Copies within host memory, in GB/s; 0 where no backend gives a rate.
double memory_rate(const std::vector<Offer>& offers) {
    double rate = 0;
    for (const Offer& offer : offers)
        for (const backend::Capability& capability : offer.capabilities)
            if (offer.support.usable && capability.reach == backend::Reach::host_memory)
                rate = std::max(rate, capability.max_gb_per_s);
    return rate;
}

const HopOption& entry_of(const Ground& ground, const Way& way, std::size_t place) {
    return (way.direct[place] ? ground.direct : ground.links)[place];
}

// What takes longest for a GB of the files, which is the one flow.
Flows::Limit limit_of(const Ground& ground, const Way& way) {
    Flows flows(ground.topology);
    double entered = 0;   // bytes, for each of the files, straight from storage
    double waited = 0;    // the same that wait in slots
    double copied = 0;    // the same by ends in host memory
    bool shared = false;  // what all get waits in slots
    for (const Group& group : way.groups) {
        const Group first = way.first_of(group);
        double rates = 0;
        for (std::size_t place : first) rates += entry_of(ground, way, place).hop.gb_per_s;
        for (std::size_t place : group) {
            // Each takes of what all get as much as its own link allows, and hands that on.
            const double share =
                has(first, place) && rates > 0
                    ? ground.request.shared * entry_of(ground, way, place).hop.gb_per_s / rates
                    : 0;
            const double bytes = share + ground.own(place);
            if (bytes <= 0) continue;
            for (std::size_t to : group)
                if (to != place && share > 0) flows.cross(0, ground.peers.at({place, to}), share);
            const HopOption& entry = entry_of(ground, way, place);
            flows.cross(0, entry, bytes);
            if (way.direct[place]) {
                entered += bytes;
                continue;
            }
            waited += ground.own(place);
            shared |= share > 0;
            copied += bytes * (entry.hop.from.is_host() + entry.hop.to.is_host());
        }
    }
    if (way.direct_places() > 0) {
        if (shared) waited += ground.request.shared;
        const auto direct = std::ranges::find(way.direct, true) - way.direct.begin();
        flows.take(0, "storage", ground.direct[static_cast<std::size_t>(direct)].hop.gb_per_s,
                   entered + waited);
    } else {
        waited = 1;
    }
    if (way.uses_slots()) {
        flows.take(0, ground.writes() ? "writing the files" : "reading the files",
                   ground.storage.hop.gb_per_s, waited);
        flows.take(0, "host memory", 2 * memory_rate(ground.offers), waited + copied);
    }
    return flows.limit();
}

std::string name_of(const Ground& ground, const Way& way, bool hands_on) {
    const std::size_t direct = way.direct_places();
    std::string name = direct > 0 ? "direct storage to " : "one slot to ";
    if (hands_on)
        name += fmt::format("one GPU of each {}, shares over NVLink",
                            way.groups.size() == 1 ? "chunk" : "group and chunk");
    else if (direct == 0 || direct == ground.count())
        name += ground.count() == 1 ? "the place" : "all places";
    else
        name += fmt::format("{} of {} places", direct, ground.count());
    if (direct > 0 && way.uses_slots())
        name += fmt::format(", one slot to the other{}", ground.count() - direct == 1 ? "" : "s");
    return name;
}

// Every way there is, the one to prefer at equal price first.
std::vector<Way> ways_of(Ground& ground) {
    std::vector<Way> ways;
    for (const bool direct : {true, false})
        for (const bool hands_on : {true, false}) {
            if (direct && ground.direct.empty()) continue;
            Way way;
            way.groups = groups_of(ground, hands_on);
            for (std::size_t place = 0; place < ground.count(); ++place)
                way.direct.push_back(direct && ground.direct[place].possible());
            if (way.uses_slots() && ground.links.empty()) continue;
            if (hands_on && way.groups.size() == ground.count()) continue;
            way.name = name_of(ground, way, hands_on);
            way.limit = limit_of(ground, way);
            if (way.uses_slots() && ground.request.require == Require::direct)
                refuse(ground.refused, way.name, "a direct path is required", "", way.rate());
            else
                ways.push_back(std::move(way));
        }
    return ways;
}

// The lane of a group's k-th place.
sidestep::Lane lane_of(const Ground& ground, const Way& way, const Group& group, std::size_t k) {
    const std::size_t place = group[k];
    const Group first = way.first_of(group);
    const bool hands_on = has(first, place);
    const std::size_t waiting = ground.count() - way.direct_places();
    const std::string several =
        ground.request.shared <= 0 || ground.count() == 1 ? ""
        : !hands_on                                       ? "what all get comes from the others"
        : group.size() > 1  ? fmt::format("1/{} of what all get, the rest from the others", first.size())
        : way.direct[place] ? "read once for each place"
        : waiting == 1      ? ""
                            : fmt::format("one slot feeds {} places", waiting);
    const auto on_to = [&](std::size_t from, std::size_t to) { return ground.peers.at({from, to}).hop; };
    sidestep::Lane lane;
    const bool enters = hands_on || ground.own(place) > 0;
    // One that everything is handed on to: as it comes from the first.
    lane.hops = {entry_of(ground, way, enters ? place : first.front()).hop};
    lane.hops.front().reason = joined(lane.hops.front().reason, several);
    if (!enters) lane.hops.push_back(on_to(first.front(), place));
    if (enters && !way.direct[place]) {
        // Host memory of no node in particular stands at both hops.
        Hop& entry = lane.hops.front();
        (ground.writes() ? entry.to : entry.from) = ground.slots.place;
        Hop storage = ground.storage.hop;
        storage.reason = joined(storage.reason, ground.writes() ? "" : "each byte once");
        lane.hops.insert(ground.writes() ? lane.hops.end() : lane.hops.begin(), std::move(storage));
    }
    if (group.size() > 1 && hands_on) {
        Hop& on = lane.hops.emplace_back(on_to(place, group[(k + 1) % group.size()]));
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
        return Error{ErrorCode::invalid_argument, "there is no place to move bytes to or from", "route"};
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
    const auto best = std::ranges::min_element(
        ways, [](const Way& a, const Way& b) { return a.limit.seconds < b.limit.seconds * (1 - 1e-3); });
    FanOut found = *best;
    found.route = route_of(ground, *best);
    found.route.refused = refused_of(ground, ways, *best);
    found.slots = ground.slots;
    found.storage = ground.storage.choice;
    for (std::size_t place = 0; place < count; ++place)
        found.links.push_back(entry_of(ground, *best, place).choice);
    for (const Group& group : found.groups)
        for (const auto& [pair, hop] : ground.peers)
            if (has(group, pair.first) && has(group, pair.second)) found.peers[pair] = hop.choice;
    return found;
}

}  // namespace sidestep::route
