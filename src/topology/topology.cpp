#include <sidestep/topology.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/try.hpp"
#include "topology/validate.hpp"

namespace sidestep {

Result<Topology> Topology::create(Parts parts) {
    SIDESTEP_CHECK(topology::validate(parts));
    return Topology(std::move(parts));
}

Topology::Topology(Parts parts) : parts_(std::move(parts)), links_of_(parts_.devices.size()) {
    for (std::uint32_t i = 0; i < parts_.links.size(); ++i) {
        links_of_[parts_.links[i].a].push_back(i);
        links_of_[parts_.links[i].b].push_back(i);
    }

    const auto is_gpu = [](const Device& device) { return device.kind == DeviceKind::gpu; };
    gpu_count_ = static_cast<int>(std::count_if(parts_.devices.begin(), parts_.devices.end(), is_gpu));

    by_kind_.resize(parts_.devices.size());
    std::iota(by_kind_.begin(), by_kind_.end(), DeviceId{0});
    std::sort(by_kind_.begin(), by_kind_.end(), [this](DeviceId a, DeviceId b) {
        return std::pair(device(a).kind, device(a).index) < std::pair(device(b).kind, device(b).index);
    });

    peers_by_pair_.resize(parts_.peers.size());
    std::iota(peers_by_pair_.begin(), peers_by_pair_.end(), std::uint32_t{0});
    std::sort(peers_by_pair_.begin(), peers_by_pair_.end(), [this](std::uint32_t a, std::uint32_t b) {
        return std::pair(parts_.peers[a].from, parts_.peers[a].to) <
               std::pair(parts_.peers[b].from, parts_.peers[b].to);
    });
}

std::optional<DeviceId> Topology::find(DeviceKind kind, int index) const {
    const std::pair wanted(kind, index);
    const auto at = std::lower_bound(
        by_kind_.begin(), by_kind_.end(), wanted,
        [this](DeviceId id, const auto& key) { return std::pair(device(id).kind, device(id).index) < key; });
    if (at == by_kind_.end() || device(*at).kind != kind || device(*at).index != index) return std::nullopt;
    return *at;
}

std::optional<DeviceId> Topology::find(const Place& place) const {
    // A snapshot holds one machine; a place on another one is not in it.
    if (!place.node().empty()) return std::nullopt;
    switch (place.kind()) {
        case PlaceKind::gpu:
            return find(DeviceKind::gpu, place.index());
        case PlaceKind::file:
            return std::nullopt;
        case PlaceKind::host:
            break;
    }
    if (place.index() >= 0) return find(DeviceKind::cpu, place.index());
    // Sorted by kind first, and cpu is the first kind: the cpu with the lowest node, if there is one.
    static_assert(DeviceKind{} == DeviceKind::cpu);
    if (by_kind_.empty() || device(by_kind_.front()).kind != DeviceKind::cpu) return std::nullopt;
    return by_kind_.front();
}

PeerAccess Topology::peer_access(int from, int to) const {
    const auto a = find(DeviceKind::gpu, from);
    const auto b = find(DeviceKind::gpu, to);
    if (!a || !b) return {false, false, fmt::format("there is no gpu:{} in this machine", a ? to : from), ""};
    if (from == to) return {true, true, "", ""};

    const std::pair wanted(from, to);
    const auto at = std::lower_bound(peers_by_pair_.begin(), peers_by_pair_.end(), wanted,
                                     [this](std::uint32_t position, const auto& key) {
                                         const Parts::Peer& peer = parts_.peers[position];
                                         return std::pair(peer.from, peer.to) < key;
                                     });
    if (at != peers_by_pair_.end()) {
        const Parts::Peer& peer = parts_.peers[*at];
        if (peer.from == from && peer.to == to) return peer.access;
    }

    if (path(*a, *b, Fabric::nvlink)) return {true, true, "", ""};
    return {
        false, false,
        fmt::format("no NVLink joins gpu:{} and gpu:{}, and no driver said that they may reach each other "
                    "over PCIe",
                    from, to),
        ""};
}

}  // namespace sidestep
