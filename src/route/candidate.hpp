// The ways a copy could go, before they are compared.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "route/planner.hpp"

namespace sidestep::route {

// One hop that an offer can carry out, or the reason it cannot.
struct HopOption {
    Choice choice;
    Hop hop;
    Prefer meets = Prefer::automatic;  // Capability::meets
    Path path;                         // the links it crosses; empty inside one device
    DeviceId start = 0;                // where the walk begins
    std::string refusal;               // empty where the hop is possible
    std::string remedy;

    bool possible() const { return refusal.empty(); }
};

// A lane that works, priced.
struct Candidate {
    Lane lane;
    std::vector<Choice> choices;
    std::vector<HopOption> options;  // of the hops
    double seconds = 0;
    double gb_per_s_alone = 0;  // lane.gb_per_s when no other lane runs
    int alternatives = 0;       // neighbours that would serve as well
};

// Every capability of every offer that moves this kind of place to that kind, possible or not.
std::vector<HopOption> hop_options(const Topology& topology, const std::vector<backend::Offer>& offers,
                                   const End& from, const End& to);

// The stops in host memory worth a look, best first: pinned, pageable. Empty where both ends are host
// memory.
std::vector<End> host_stops(const Topology& topology, const std::vector<backend::Offer>& offers,
                            const Request& request);

// The GPUs that could pass the bytes on: with peer access to both ends where both are GPUs, to the one that
// is where the other end is pinned host memory.
std::vector<End> gpu_stops(const Topology& topology, const Request& request);

// A link walked in one direction: its position, and whether from a to b.
using DirectedLink = std::pair<std::uint32_t, bool>;

std::vector<DirectedLink> directed(const Topology& topology, const HopOption& hop);

// Rates, latency and seconds of a lane made of these hops: rate = min over hops, links that several hops
// of the lane cross in the same direction divided among them; seconds = latencies + first chunk through
// every hop + the rest at the lane's rate.
Candidate price(const Topology& topology, const std::vector<HopOption>& hops, Bytes bytes);

// "gpu:0 -> host -> gpu:5".
std::string name_of(const std::vector<End>& stops);

}  // namespace sidestep::route
