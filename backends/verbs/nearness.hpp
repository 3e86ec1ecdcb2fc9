// How near network cards are to memory, by the topology. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sidestep/topology.hpp>

namespace sidestep::backends::verbs {

struct Nearness {
    // net: the topology does not tell.
    PathClass path = PathClass::net;
    std::string words;  // "one switch from gpu:3"; empty where it does not tell
    bool operator==(const Nearness&) const = default;
    int distance() const { return static_cast<int>(path); }
};

// Of the card that the kernel calls so ("mlx5_3") and memory of a GPU or of the host.
Nearness nearness(const Topology& topology, const std::string& card, const Place& place);

// The position of the nearest, of equals the first; there is at least one card.
std::size_t nearest_card(const Topology& topology, const std::vector<std::string>& cards, const Place& place);

// A card that an engine does not use.
struct LeftOut {
    std::string card;
    std::string why;
};
// "mlx5_3 (PIX): one switch from gpu:3"; which is nearer, and why it is not used, where one of those that were left out is:
// "mlx5_5 (PHB): one host bridge from gpu:3; mlx5_3 (PIX) is nearer, and is not used: port 1 of the RDMA card mlx5_3 is down".
std::string card_words(const Topology& topology, const std::string& card,
                       const std::vector<LeftOut>& left_out, const Place& place);

}  // namespace sidestep::backends::verbs
