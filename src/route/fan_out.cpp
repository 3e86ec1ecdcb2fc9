#include "route/fan_out.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "route/candidate.hpp"

namespace sidestep::route {
namespace {

using backend::Offer;

// A hop at work, and its bytes for each byte of the files.
struct Load {
    const HopOption* hop = nullptr;
    double bytes = 0;
};

// What is known before the ways are compared.
struct Ground {
    const Topology& topology;
    const std::vector<Offer>& offers;
    const FanOutRequest& request;
    std::size_t count = 0;
    End file;
    End slots;
    std::optional<HopOption> storage;                          // file <-> slots
    std::vector<HopOption> links;                              // slots <-> place
    std::vector<HopOption> direct;                             // file -> place; empty where that cannot be
    std::vector<std::vector<std::optional<HopOption>>> peers;  // over NVLink
    std::vector<Refused> refused;

    double own(std::size_t place) const { return place < request.own.size() ? request.own[place] : 0; }
    bool writes() const { return request.to_file; }
};

struct Way {
    std::string name;
    bool direct = false;
    std::vector<std::vector<std::size_t>> groups;
    std::vector<double> share;  // by place: of the shared bytes, what it takes from host memory or storage
    double seconds = 0;         // for each GB of the files
    std::string bound;          // what takes that long

    double rate() const { return seconds > 0 ? 1 / seconds : 0; }
};

void refuse(std::vector<Refused>& list, Refused refused) {
    const bool known = std::any_of(list.begin(), list.end(), [&](const Refused& other) {
        return other.path == refused.path && other.reason == refused.reason;
    });
    if (!known) list.push_back(std::move(refused));
}

std::string engine_name(const Hop& hop) {
    return hop.engine.starts_with(hop.backend) ? hop.engine : hop.backend + " " + hop.engine;
}

bool preferred(const HopOption& option, Prefer prefer) {
    return prefer != Prefer::automatic && option.meets == prefer;
}

// The quickest engine between two ends, of the preferred kind where there is one. Without any: the first
// refusal.
std::optional<HopOption> best_hop(const Ground& ground, const End& from, const End& to, HopOption* refusal) {
    std::optional<HopOption> best;
    for (HopOption& option : hop_options(ground.topology, ground.offers, from, to)) {
        if (!option.possible()) {
            if (refusal != nullptr && refusal->refusal.empty()) *refusal = std::move(option);
            continue;
        }
        const Prefer prefer = ground.request.prefer;
        const bool wanted = best && preferred(option, prefer) && !preferred(*best, prefer);
        const bool unwanted = best && !preferred(option, prefer) && preferred(*best, prefer);
        if (!best || wanted || (!unwanted && option.hop.gb_per_s > best->hop.gb_per_s))
            best = std::move(option);
    }
    return best;
}

// Host memory beside the first GPU, of the best kind from which every place is reached.
void find_slots(Ground& ground) {
    Request first;
    first.from = ground.file;
    first.to = ground.request.places.front();
    for (const End& end : ground.request.places)
        if (end.place.is_gpu()) {
            first.to = end;
            break;
        }
    HopOption refusal;
    for (const End& slots : host_stops(ground.topology, ground.offers, first)) {
        const auto hop = [&](const End& a, const End& b) {
            return ground.writes() ? best_hop(ground, b, a, &refusal) : best_hop(ground, a, b, &refusal);
        };
        ground.storage = hop(ground.file, slots);
        ground.links.clear();
        for (const End& place : ground.request.places)
            if (auto link = hop(slots, place)) ground.links.push_back(std::move(*link));
        ground.slots = slots;
        if (ground.storage && ground.links.size() == ground.count) return;
    }
    ground.storage.reset();
    const std::string path = refusal.hop.backend.empty()
                                 ? "through host memory"
                                 : fmt::format("{} -> {} by {}", refusal.hop.from.to_string(),
                                               refusal.hop.to.to_string(), engine_name(refusal.hop));
    refuse(ground.refused, {path, refusal.refusal.empty() ? "no backend moves these bytes" : refusal.refusal,
                            refusal.remedy, 0});
}

// Storage that reaches device memory by itself.
void find_direct(Ground& ground) {
    std::vector<HopOption> direct;
    for (const End& place : ground.request.places) {
        if (!place.place.is_gpu()) continue;
        std::optional<HopOption> best;
        const End& from = ground.writes() ? place : ground.file;
        const End& to = ground.writes() ? ground.file : place;
        for (HopOption& option : hop_options(ground.topology, ground.offers, from, to)) {
            const std::string gpu = place.place.to_string();
            const std::string name = fmt::format("{} -> {} by {}", ground.writes() ? gpu : "file",
                                                 ground.writes() ? "file" : gpu, engine_name(option.hop));
            if (!option.possible())
                refuse(ground.refused, {name, option.refusal, option.remedy, 0});
            else if (ground.writes())
                refuse(
                    ground.refused,
                    {name, "a chunk of a file comes from several tensors, and is put together in host memory",
                     "", 0});
            else if (!best || option.hop.gb_per_s > best->hop.gb_per_s)
                best = std::move(option);
        }
        if (best) direct.push_back(std::move(*best));
    }
    if (direct.empty()) return;
    const std::string name = "file -> GPU by " + engine_name(direct.front().hop);
    if (direct.size() < ground.count)
        return refuse(ground.refused, {name, "it does not reach all of these places", "", 0});
    if (ground.request.through_host)
        return refuse(ground.refused, {name, "the bytes are looked at in host memory (checksums)", "", 0});
    if (ground.request.require == Require::host)
        return refuse(ground.refused, {name, "a path through host memory is required", "", 0});
    ground.direct = std::move(direct);
}

// Who may hand bytes on to whom over NVLink.
void find_peers(Ground& ground) {
    ground.peers.assign(ground.count, std::vector<std::optional<HopOption>>(ground.count));
    if (ground.writes() || ground.request.shared <= 0) return;
    for (std::size_t a = 0; a < ground.count; ++a)
        for (std::size_t b = 0; b < ground.count; ++b) {
            const End& from = ground.request.places[a];
            const End& to = ground.request.places[b];
            if (a == b || !from.place.is_gpu() || !to.place.is_gpu() || from.place == to.place) continue;
            HopOption refusal;
            auto hop = best_hop(ground, from, to, &refusal);
            const std::string name = fmt::format("{} -> {}", from.place.to_string(), to.place.to_string());
            if (!hop)
                refuse(ground.refused,
                       {name, refusal.refusal.empty() ? "no backend copies between the two" : refusal.refusal,
                        refusal.remedy, 0});
            else if (!hop->path.all_nvlink || hop->path.links.empty())
                refuse(
                    ground.refused,
                    {name,
                     "a share handed on over PCIe would take the links that copies out of host memory need",
                     "", hop->hop.gb_per_s});
            else
                ground.peers[a][b] = std::move(hop);
        }
}

// Places of a group all reach one another. Greedy: exact for what machines look like (all, pairs, quads).
std::vector<std::vector<std::size_t>> groups_of(const Ground& ground) {
    std::vector<std::vector<std::size_t>> groups;
    for (std::size_t place = 0; place < ground.count; ++place) {
        const auto fits = [&](const std::vector<std::size_t>& group) {
            return std::all_of(group.begin(), group.end(), [&](std::size_t other) {
                return ground.peers[place][other] && ground.peers[other][place];
            });
        };
        const auto found = std::find_if(groups.begin(), groups.end(), fits);
        if (found == groups.end())
            groups.push_back({place});
        else
            found->push_back(place);
    }
    return groups;
}

std::vector<std::vector<std::size_t>> each_alone(std::size_t count) {
    std::vector<std::vector<std::size_t>> groups;
    for (std::size_t place = 0; place < count; ++place) groups.push_back({place});
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

// What each hop carries.
std::vector<Load> loads_of(const Ground& ground, Way& way) {
    const auto& entries = way.direct ? ground.direct : ground.links;
    std::vector<Load> loads;
    way.share.assign(ground.count, 0);
    for (const auto& group : way.groups) {
        double rates = 0;
        for (std::size_t place : group) rates += entries[place].hop.gb_per_s;
        for (std::size_t place : group)
            if (rates > 0) way.share[place] = ground.request.shared * entries[place].hop.gb_per_s / rates;
        for (std::size_t from : group)
            for (std::size_t to : group)
                if (from != to) loads.push_back({&*ground.peers[from][to], way.share[from]});
    }
    for (std::size_t place = 0; place < ground.count; ++place)
        loads.push_back({&entries[place], way.share[place] + ground.own(place)});
    return loads;
}

void bound(Way& way, double seconds, std::string what) {
    if (seconds <= way.seconds * (1 + 1e-9)) return;
    way.seconds = seconds;
    way.bound = std::move(what);
}

// Seconds for a GB of the files, and what needs them.
void price(const Ground& ground, Way& way) {
    const std::vector<Load> loads = loads_of(ground, way);
    std::map<DirectedLink, std::pair<double, double>> links;  // load, rate
    double from_slots = 0;
    double from_storage = 0;
    for (const Load& load : loads) {
        const Hop& hop = load.hop->hop;
        if (hop.from.is_file() || hop.to.is_file()) from_storage += load.bytes;
        for (const Place* end : {&hop.from, &hop.to})
            if (end->is_host()) from_slots += load.bytes;
        if (hop.gb_per_s <= 0 || load.bytes <= 0) continue;
        bound(way, load.bytes / hop.gb_per_s,
              fmt::format("the {} -> {} copies", hop.from.to_string(), hop.to.to_string()));
        if (load.hop->path.links.empty()) continue;
        const double used = load.bytes * load.hop->path.gb_per_s / hop.gb_per_s;
        for (const DirectedLink& crossed : directed(ground.topology, *load.hop)) {
            auto& [sum, rate] = links[crossed];
            sum += used;
            rate = std::max({rate, ground.topology.links()[crossed.first].gb_per_s, load.hop->path.gb_per_s});
        }
    }
    for (const auto& [link, use] : links) {
        const Link& crossed = ground.topology.links()[link.first];
        const auto name = [&](DeviceId id) { return ground.topology.device(id).name; };
        if (use.second > 0)
            bound(way, use.first / use.second,
                  fmt::format("the link between {} and {}", name(crossed.a), name(crossed.b)));
    }
    if (way.direct) {
        const double rate = ground.direct.front().hop.gb_per_s;
        if (rate > 0) bound(way, from_storage / rate, "storage");
        return;
    }
    if (ground.storage->hop.gb_per_s > 0)
        bound(way, 1 / ground.storage->hop.gb_per_s,
              ground.writes() ? "writing the files" : "reading the files");
    if (const double memory = memory_rate(ground.offers); memory > 0)
        bound(way, (1 + from_slots) / (2 * memory), "host memory");
}

// Every way there is, the one to prefer at equal price first.
std::vector<Way> ways_of(Ground& ground) {
    const auto groups = groups_of(ground);
    const bool hands_on = groups.size() < ground.count;
    std::vector<Way> ways;
    const auto add = [&](bool direct, bool grouped) {
        Way way;
        way.direct = direct;
        way.groups = grouped ? groups : each_alone(ground.count);
        const std::string entry = direct ? "direct storage" : "one slot";
        way.name = grouped ? fmt::format("{} to one GPU of each {}, shares over NVLink", entry,
                                         groups.size() == 1 ? "chunk" : "group and chunk")
                           : fmt::format("{} to {}", entry, ground.count == 1 ? "the place" : "all places");
        price(ground, way);
        ways.push_back(std::move(way));
    };
    for (const bool direct : {true, false}) {
        if (direct ? ground.direct.empty() : !ground.storage) continue;
        if (hands_on) add(direct, true);
        add(direct, false);
    }
    if (ground.request.require == Require::direct)
        std::erase_if(ways, [&](const Way& way) {
            if (way.direct) return false;
            refuse(ground.refused, {way.name, "a direct path is required", "", way.rate()});
            return true;
        });
    return ways;
}

Error nothing_left(const Ground& ground) {
    std::string message = fmt::format(
        "no {}way {} {} and {} place{}", ground.request.require == Require::direct ? "direct " : "",
        "between the files and", ground.request.places.front().place.to_string(), ground.count - 1,
        ground.count == 2 ? "" : "s more");
    std::string hint;
    for (const Refused& refused : ground.refused) {
        message += fmt::format("; {}: {}", refused.path, refused.reason);
        if (hint.empty()) hint = refused.remedy;
    }
    return {ErrorCode::path_unavailable, std::move(message), "route", std::move(hint)};
}

std::string with_reason(const std::string& reason, const std::string& more) {
    return reason.empty() ? more : more.empty() ? reason : reason + "; " + more;
}

const std::vector<std::size_t>& group_with(const Way& way, std::size_t place) {
    return *std::find_if(way.groups.begin(), way.groups.end(), [&](const auto& group) {
        return std::find(group.begin(), group.end(), place) != group.end();
    });
}

// The hops of one place's lane.
std::vector<Hop> hops_of(const Ground& ground, const Way& way, std::size_t place) {
    const auto& group = group_with(way, place);
    const std::string several =
        ground.request.shared <= 0 || ground.count == 1 ? ""
        : group.size() > 1 ? fmt::format("1/{} of what all get, the rest from the others", group.size())
                           : fmt::format("one slot feeds {} places", ground.count);
    std::vector<Hop> hops;
    if (way.direct) {
        hops.push_back(ground.direct[place].hop);
        hops.back().reason = with_reason(hops.back().reason, several);
    } else {
        Hop storage = ground.storage->hop;
        storage.reason = with_reason(storage.reason, ground.writes() ? "" : "each byte once");
        Hop link = ground.links[place].hop;
        link.reason = with_reason(link.reason, several);
        // Host memory of no node in particular stands at both hops.
        (ground.writes() ? link.to : link.from) = ground.slots.place;
        hops = ground.writes() ? std::vector{link, storage} : std::vector{storage, link};
    }
    if (group.size() > 1) {
        const auto self = std::find(group.begin(), group.end(), place);
        const std::size_t next = std::next(self) == group.end() ? group.front() : *std::next(self);
        Hop on = ground.peers[place][next]->hop;
        on.reason = with_reason(
            on.reason, fmt::format("hands its share on to {}",
                                   group.size() == 2 ? "the other GPU"
                                                     : fmt::format("{} other GPUs", group.size() - 1)));
        hops.push_back(std::move(on));
    }
    return hops;
}

Route route_of(const Ground& ground, const Way& way) {
    const FanOutRequest& request = ground.request;
    Route route;
    route.from = ground.writes() ? request.places.front().place : request.file;
    route.to = ground.writes() ? request.file : request.places.front().place;
    route.bytes = request.bytes;
    route.emulated = ground.topology.emulated();
    route.expected_gb_per_s = way.rate();
    route.expected_seconds = static_cast<double>(request.bytes) * 1e-9 * way.seconds;
    double all = 0;
    for (std::size_t place = 0; place < ground.count; ++place) all += request.shared + ground.own(place);
    for (std::size_t place = 0; place < ground.count; ++place) {
        sidestep::Lane lane;
        lane.hops = hops_of(ground, way, place);
        const double part = request.shared + ground.own(place);
        lane.share = all > 0 ? part / all : 0;
        lane.gb_per_s = route.expected_gb_per_s * part;
        for (const Hop& hop : lane.hops) lane.latency_us += hop.latency_us;
        route.lanes.push_back(std::move(lane));
    }
    double latency = 0;
    for (const auto& lane : route.lanes) latency = std::max(latency, lane.latency_us);
    route.expected_seconds += latency * 1e-6;
    return route;
}

void refuse_losers(Ground& ground, const std::vector<Way>& ways, const Way& best) {
    std::vector<Refused> losers;
    for (const Way& way : ways) {
        if (&way == &best) continue;
        const double times = best.seconds > 0 ? way.seconds / best.seconds : 1;
        const std::string reason =
            times < 1.05 ? "no faster than the way taken" : fmt::format("{:.2g} times as long", times);
        losers.push_back({way.name, fmt::format("{}: {} is the limit", reason, way.bound), "", way.rate()});
    }
    ground.refused.insert(ground.refused.begin(), losers.begin(), losers.end());
}

}  // namespace

Result<FanOut> fan_out(const Topology& topology, const std::vector<Offer>& offers,
                       const FanOutRequest& asked) {
    if (asked.places.empty())
        return Error{ErrorCode::invalid_argument, "there is no place to move bytes to or from", "route", {}};
    FanOutRequest request = asked;
    if (request.to_file) request.shared = 0;
    Ground ground{
        topology, offers, request, request.places.size(), {request.file, MemoryKind::storage}, {}, {}, {},
        {},       {},     {}};
    find_slots(ground);
    find_direct(ground);
    find_peers(ground);
    const std::vector<Way> ways = ways_of(ground);
    if (ways.empty()) return nothing_left(ground);
    // Of equally quick ones the first.
    const auto best = std::min_element(ways.begin(), ways.end(), [](const Way& a, const Way& b) {
        return a.seconds < b.seconds * (1 - 1e-3);
    });
    FanOut found;
    found.route = route_of(ground, *best);
    refuse_losers(ground, ways, *best);
    found.route.refused = std::move(ground.refused);
    found.direct = best->direct;
    found.slots = ground.slots;
    found.groups = best->groups;
    found.storage = best->direct ? ground.direct.front().choice : ground.storage->choice;
    if (!best->direct)
        for (const HopOption& link : ground.links) found.links.push_back(link.choice);
    found.peers.assign(ground.count, std::vector<Choice>(ground.count));
    for (std::size_t from = 0; from < ground.count; ++from)
        for (std::size_t to = 0; to < ground.count; ++to)
            if (ground.peers[from][to]) found.peers[from][to] = ground.peers[from][to]->choice;
    return found;
}

}  // namespace sidestep::route
