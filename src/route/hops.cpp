#include "route/hops.hpp"

#include <algorithm>
#include <optional>
#include <tuple>

#include <fmt/format.h>

#include "base/object_store.hpp"
#include "topology/peer_rate.hpp"

namespace sidestep::route {
namespace {

using backend::Capability;
using backend::Offer;
using backend::Reach;

// The device of a place, that of peer-to-peer memory by its bus id.
std::optional<DeviceId> find_device(const Topology& topology, const Place& place) {
    if (!place.is_p2pmem()) return topology.find(place);
    for (DeviceId id = 0; id < topology.devices().size(); ++id)
        if (topology.device(id).bus_id == place.path()) return id;
    return std::nullopt;
}

// The cpu beside a GPU or peer-to-peer memory.
std::optional<DeviceId> cpu_beside(const Topology& topology, const Place& place) {
    if ((!place.is_gpu() && !place.is_p2pmem()) || !place.node().empty()) return std::nullopt;
    const auto device = find_device(topology, place);
    return device ? topology.cpu_of(*device) : std::nullopt;
}

bool of_no_node(const Place& place) {
    return place.is_host() && place.index() < 0 && place.node().empty();
}

// The device that holds an end's bytes; host memory of no node is taken to lie beside `other`.
std::optional<DeviceId> device_of(const Topology& topology, const Place& place, const Place& other) {
    const auto beside = of_no_node(place) ? cpu_beside(topology, other) : std::nullopt;
    return beside ? beside : find_device(topology, place);
}

void refuse_option(HopOption& option, std::string reason, std::string remedy = {}) {
    option.refusal = std::move(reason);
    option.remedy = std::move(remedy);
}

// Whether the memory at both ends is of a kind the engine takes.
void check_memory(HopOption& option, const Offer& offer, const Capability& capability, const End& from,
                  const End& to) {
    const bool reads = capability.from_memory.has(from.memory);
    if (reads && capability.to_memory.has(to.memory)) return;
    const End& bad = reads ? to : from;
    const bool pageable = bad.memory == MemoryKind::pageable;
    refuse_option(
        option,
        fmt::format("the {} of the {} backend cannot {} {} memory", capability.engine, offer.name,
                    reads ? "write" : "read", to_string(bad.memory)),
        pageable ? "use pinned host memory: Context::allocate, cudaHostAlloc or cudaHostRegister" : "");
}

// Of a node's places alone those are meant that an objection names.
void check_objections(HopOption& option, const Offer& offer, const Capability& capability, const End& from,
                      const End& to) {
    for (const backend::Objection& objection : offer.objections)
        if (option.possible() &&
            (objection.place ? objection.place == from.place || objection.place == to.place
                             : capability.reach != Reach::network))
            refuse_option(option, objection.reason, objection.remedy);
}

// Whether the two places are related as the capability needs, and over which links.
void check_reach(HopOption& option, const Topology& topology, const Capability& capability, const End& from,
                 const End& to) {
    if (capability.reach == Reach::storage || capability.reach == Reach::storage_gpu ||
        capability.reach == Reach::same_gpu || capability.reach == Reach::network ||
        capability.reach == Reach::nodes)
        return;
    const bool peers = capability.reach == Reach::peer_access;
    if (peers) {
        const PeerAccess access = topology.peer_access(from.place.index(), to.place.index());
        if (!access.allowed)
            return refuse_option(
                option, access.reason.empty() ? "no peer access between the two GPUs" : access.reason,
                access.remedy);
    }
    const auto a = device_of(topology, from.place, to.place);
    const auto b = device_of(topology, to.place, from.place);
    const bool mapped = capability.reach == Reach::device_map;
    // A driver may publish memory of a device that the topology does not list.
    if (mapped && (!a || !b)) return;
    if (!a || !b)
        return refuse_option(
            option, fmt::format("the topology has no {}", a ? to.place.to_string() : from.place.to_string()));
    option.start = *a;
    if (*a == *b) return;
    const bool nvlink = topology.pair_class(*a, *b).links > 0;
    if (topology.device(*a).node != topology.device(*b).node && !nvlink)
        return refuse_option(option, "the two are in different machines, and no backend here uses a network");
    auto path = topology.path(*a, *b, peers ? Fabric::nvlink : Fabric::any);
    if (!path && peers) path = topology.path(*a, *b);
    if (path)
        option.path = *path;
    else if (!mapped)
        refuse_option(option, "the topology knows no links between the two");
}

HopOption make_option(const Topology& topology, const Offer& offer, const Capability& capability,
                      const End& from, const End& to) {
    HopOption option;
    option.hop.from = from.place;
    option.hop.to = to.place;
    option.hop.from_memory = from.memory;
    option.hop.to_memory = to.memory;
    option.hop.backend = offer.name;
    option.hop.engine = capability.engine;
    option.hop.reason = capability.reason;
    option.meets = capability.meets;
    if (!offer.support.usable) refuse_option(option, offer.support.reason, offer.support.remedy);
    if (capability.reach == Reach::storage_gpu || capability.reach == Reach::nodes ||
        capability.reach == Reach::network)
        check_objections(option, offer, capability, from, to);
    if (option.possible()) check_reach(option, topology, capability, from, to);
    if (option.possible()) check_memory(option, offer, capability, from, to);
    if (!option.possible()) return option;
    option.hop.link = option.path.links.empty() ? "" : topology.describe(option.path);
    if (option.path.redirected()) option.hop.link += ", turned around at the host bridge by ACS";
    option.hop.latency_us = capability.latency_us + option.path.latency_us;
    double& rate = option.hop.gb_per_s;
    rate = option.path.gb_per_s * capability.efficiency;
    const bool peers = capability.reach == Reach::peer_access;
    if ((peers || capability.reach == Reach::host_link) && !option.path.links.empty()) {
        rate = topology::reached_gb_per_s(topology, option.start, option.path, peers);
        // The engines differ over NVLink; PCIe gives peers what it gives the host.
        if (option.path.all_nvlink || !peers) rate *= capability.efficiency;
    }
    const double max = capability.max_gb_per_s;
    if (max > 0 && (option.path.links.empty() || rate > max)) rate = max;
    return option;
}

// Objects of a store are reached by the backend of that name, which reaches nothing else.
bool is_for(const Offer& offer, const End& from, const End& to) {
    const bool object = base::is_object(from.place) || base::is_object(to.place);
    return object == (base::object_store.substr(0, base::object_store.size() - 1) == offer.name);
}

// The host memory where bytes wait: that of the NUMA node of the GPU or peer-to-peer memory at an end.
Place staging_place(const Topology& topology, const End& from, const End& to) {
    for (const End* end : {&from, &to}) {
        const auto cpu = cpu_beside(topology, end->place);
        if (cpu && topology.device(*find_device(topology, end->place)).numa_node >= 0)
            return Place::host(topology.device(*cpu).index);
    }
    return Place::host();
}

// By NVLink: a detour of host memory over a neighbour's PCIe link and back over PCIe gains nothing.
bool linked(const Topology& topology, int relay, const Place& gpu) {
    const auto a = topology.find(Place::gpu(relay));
    const auto b = topology.find(gpu);
    return a && b && topology.pair_class(*a, *b).links > 0;
}

}  // namespace

std::vector<HopOption> hop_options(const Topology& topology, const std::vector<Offer>& offers,
                                   const End& from, const End& to) {
    std::vector<HopOption> options;
    const bool same = from.place == to.place;
    // Between machines bytes leave, or arrive in, memory of this one, or go from a node to another, or to the same one; or
    // both are machines of one topology, whose links say what joins them.
    const bool far = from.place.node() != to.place.node();
    const bool nodes = !from.place.node().empty() && !to.place.node().empty();
    const bool one_topology = topology.find(from.place) && topology.find(to.place);
    const auto asked = [&](const Capability& capability) {
        // What is on a node may be storage, what is here may not: so the two ends are told apart.
        const auto& here = from.place.node().empty() ? capability.from_memory : capability.to_memory;
        if (capability.reach == Reach::network) return far && !nodes && !here.has(MemoryKind::storage);
        if (capability.reach == Reach::nodes) return nodes && !one_topology;
        return one_topology || (!far && !nodes);
    };
    for (std::size_t o = 0; o < offers.size(); ++o) {
        if (!is_for(offers[o], from, to)) continue;
        for (std::size_t c = 0; c < offers[o].capabilities.size(); ++c) {
            const Capability& capability = offers[o].capabilities[c];
            // Inside one GPU, between two and between machines are different questions: the wrong one is no refusal.
            if (capability.from != from.place.kind() || capability.to != to.place.kind() ||
                (capability.reach == Reach::same_gpu && !same) ||
                (capability.reach == Reach::peer_access && same) || !asked(capability))
                continue;
            options.push_back(make_option(topology, offers[o], capability, from, to));
            options.back().choice = {o, c};
        }
    }
    return options;
}

HopOption best_hop(const Topology& topology, const std::vector<Offer>& offers, const End& from, const End& to,
                   Prefer prefer) {
    const auto rank = [prefer](const HopOption& option) {
        const bool preferred = prefer != Prefer::automatic && option.meets == prefer;
        return std::tuple(option.possible(), option.possible() && preferred, option.hop.gb_per_s);
    };
    HopOption none;
    refuse_option(none, "no backend moves these bytes");
    const auto options = hop_options(topology, offers, from, to);
    const auto best = std::ranges::max_element(options, {}, rank);
    return best == options.end() ? none : *best;
}

std::vector<End> host_stops(const Topology& topology, const std::vector<backend::Offer>& offers,
                            const End& from, const End& to) {
    std::vector<End> stops;
    const bool far = from.place.node() != to.place.node();
    const bool here = from.place.node().empty() && from.place.is_host();
    const bool there = to.place.node().empty() && to.place.is_host();
    if ((here && there) || (far && (here || there))) return stops;
    const Place place = staging_place(topology, from, to);
    for (MemoryKind kind : {MemoryKind::pinned, MemoryKind::pageable})
        if (std::ranges::any_of(offers, [kind](const Offer& offer) {
                return offer.support.usable && offer.host_memory.has(kind);
            }))
            stops.push_back({place, kind});
    return stops;
}

std::vector<End> gpu_stops(const Topology& topology, const End& from_end, const End& to_end) {
    std::vector<End> stops;
    const Place& from = from_end.place;
    const Place& to = to_end.place;
    const auto mapped = [](const End& end) {
        return end.place.node().empty() &&
               (end.place.is_gpu() || (end.place.is_host() && end.memory == MemoryKind::pinned));
    };
    if (from == to || !mapped(from_end) || !mapped(to_end) || (from.is_host() && to.is_host())) return stops;
    // On machines of this size or less every relay is priced; relays of larger ones are all alike.
    constexpr int max_relays = 16;
    for (int relay = 0; relay < max_relays; ++relay) {
        const Place place = Place::gpu(relay);
        if (place == from || place == to || !topology.find(place)) continue;
        if (from.is_gpu() && !topology.peer_access(from.index(), relay).allowed) continue;
        if (to.is_gpu() && !topology.peer_access(relay, to.index()).allowed) continue;
        if ((from.is_host() || to.is_host()) && !linked(topology, relay, from.is_gpu() ? from : to)) continue;
        stops.push_back({place, MemoryKind::device});
    }
    return stops;
}

End seen_from(const Topology& topology, const End& from, const End& to, const End& stop) {
    if (!of_no_node(stop.place)) return stop;
    for (const End* end : {&from, &to})
        if (const auto cpu = end->place.is_gpu() ? cpu_beside(topology, end->place) : std::nullopt)
            return {Place::host(topology.device(*cpu).index), stop.memory};
    return stop;
}

}  // namespace sidestep::route
