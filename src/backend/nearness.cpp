#include "backend/nearness.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace sidestep::backend {
namespace {

std::string words_of(PathClass path, const Place& place) {
    switch (path) {
        case PathClass::pix:
            return fmt::format("one switch from {}", place.to_string());
        case PathClass::pxb:
            return fmt::format("several switches from {}", place.to_string());
        case PathClass::phb:
            return place.is_host() ? fmt::format("at {}", place.to_string())
                                   : fmt::format("one host bridge from {}", place.to_string());
        case PathClass::node:
            return place.is_host() ? fmt::format("at {}", place.to_string())
                                   : fmt::format("in the NUMA node of {}", place.to_string());
        case PathClass::sys:
            return fmt::format("across NUMA nodes from {}", place.to_string());
        default:
            return {};
    }
}

}  // namespace

std::string Nearness::of(const std::string& card) const {
    return words.empty() ? card : fmt::format("{} ({}): {}", card, to_string(PairClass{path}), words);
}

std::string card_at(const Topology& topology, std::string_view pci_path) {
    const std::string_view bus_id = pci_path.substr(pci_path.rfind('/') + 1);
    for (const Device& device : topology.devices())
        if (device.kind == DeviceKind::nic && !bus_id.empty() && device.bus_id == bus_id &&
            device.name.starts_with("nic:"))
            return device.name.substr(4);
    return {};
}

Nearness nearness(const Topology& topology, const std::string& card, const Place& place) {
    const auto nic = topology.find("nic:" + card);
    const auto memory = topology.find(place);
    if (!nic || !memory) return {};
    const PathClass path = topology.pair_class(*nic, *memory).kind;
    std::string words = words_of(path, place);
    if (words.empty()) return {};
    return {path, std::move(words)};
}

std::size_t nearest_card(const Topology& topology, const std::vector<std::string>& cards,
                         const Place& place) {
    const auto distance = [&](const std::string& card) { return nearness(topology, card, place).distance(); };
    const auto nearest = std::min_element(
        cards.begin(), cards.end(),
        [&](const std::string& a, const std::string& b) { return distance(a) < distance(b); });
    return static_cast<std::size_t>(nearest - cards.begin());
}

GpuDistances gpu_distances(const Topology* topology, const std::string& card) {
    GpuDistances all;
    for (std::size_t i = 0; i < all.size(); ++i) {
        const Place gpu = Place::gpu(static_cast<int>(i));
        const int distance =
            topology != nullptr ? nearness(*topology, card, gpu).distance() : longest_distance;
        all[i] = static_cast<std::uint8_t>(distance);
    }
    return all;
}

std::uint8_t told_gpu(const Place& place) {
    const bool told = place.is_gpu() && place.index() < static_cast<int>(most_told_gpus);
    return told ? static_cast<std::uint8_t>(place.index() + 1) : std::uint8_t{0};
}

std::string card_words(const Topology& topology, const std::string& card,
                       const std::vector<LeftOut>& left_out, const Place& place) {
    const Nearness near = nearness(topology, card, place);
    std::string words = near.of(card);
    int least = near.distance();
    std::string nearer;
    for (const LeftOut& one : left_out) {
        const Nearness other = nearness(topology, one.card, place);
        if (other.distance() >= least) continue;
        least = other.distance();
        nearer = fmt::format("; {} ({}) is nearer, and is not used: {}", one.card,
                             to_string(PairClass{other.path}), one.why);
    }
    return words + nearer;
}

}  // namespace sidestep::backend
