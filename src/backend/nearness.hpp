// How near network cards are to memory, by the topology. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sidestep/topology.hpp>
#include "backend/network.hpp"

namespace sidestep::backend {

struct Nearness {
    // net: the topology does not tell.
    PathClass path = PathClass::net;
    std::string words;  // "one switch from gpu:3"; empty where it does not tell
    bool operator==(const Nearness&) const = default;
    int distance() const { return static_cast<int>(path); }
    // What it is called, and how near: "mlx5_3 (PIX): one switch from gpu:3".
    std::string of(const std::string& card) const;
};

// What the kernel calls the card at a path in sysfs ("/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0"); empty where the
// topology has none there.
std::string card_at(const Topology& topology, std::string_view pci_path);

// Of the card that the kernel calls so ("mlx5_3") and memory of a GPU or of the host.
Nearness nearness(const Topology& topology, const std::string& card, const Place& place);

// The position of the nearest, of equals the first; there is at least one card.
std::size_t nearest_card(const Topology& topology, const std::vector<std::string>& cards, const Place& place);

// How far the card is from each of the first GPUs of its machine, as Nearness has it. Each end tells the other.
using GpuDistances = std::array<std::uint8_t, most_told_gpus>;
constexpr std::uint8_t longest_distance = static_cast<std::uint8_t>(PathClass::net);
// `topology` null: not known.
GpuDistances gpu_distances(const Topology* topology, const std::string& card);
// Of a way that begins so far from the bytes and ends so far from where they go: the longer half decides, then the other.
constexpr int distance_both_ways(int here, int there) {
    return (here > there ? here : there) * 2 * (longest_distance + 1) + here + there;
}
// What a frame tells of the place that its bytes go to: Frame::to_gpu.
std::uint8_t told_gpu(const Place& place);

// A card that an engine does not use.
struct LeftOut {
    std::string card;
    std::string why;
};
// "mlx5_3 (PIX): one switch from gpu:3"; which is nearer, and why it is not used, where one of those that were left out is:
// "mlx5_5 (PHB): one host bridge from gpu:3; mlx5_3 (PIX) is nearer, and is not used: port 1 of the RDMA card mlx5_3 is down".
std::string card_words(const Topology& topology, const std::string& card,
                       const std::vector<LeftOut>& left_out, const Place& place);

}  // namespace sidestep::backend
