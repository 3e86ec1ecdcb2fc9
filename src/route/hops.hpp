// What could carry out a hop, and where bytes could stop on their way.
#pragma once

#include <string>
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

// Every capability of every offer that moves this kind of place to that kind, possible or not.
std::vector<HopOption> hop_options(const Topology& topology, const std::vector<backend::Offer>& offers,
                                   const End& from, const End& to);

// The quickest that is possible, of the preferred kind where there is one; of equal ones the first. Where none
// is possible, one that says why.
HopOption best_hop(const Topology& topology, const std::vector<backend::Offer>& offers, const End& from,
                   const End& to, Prefer prefer = Prefer::automatic);

// The stops in host memory worth a look, best first: pinned, pageable. Empty where both ends are host
// memory.
std::vector<End> host_stops(const Topology& topology, const std::vector<backend::Offer>& offers,
                            const End& from, const End& to);

// The GPUs that could pass the bytes on: with peer access to both ends where both are GPUs, to the one that
// is where the other end is pinned host memory.
std::vector<End> gpu_stops(const Topology& topology, const End& from, const End& to);

// Host memory of no node in particular is taken to lie beside the GPU at the other end of the copy, whichever
// GPU reads it.
End seen_from(const Topology& topology, const End& from, const End& to, const End& stop);

}  // namespace sidestep::route
