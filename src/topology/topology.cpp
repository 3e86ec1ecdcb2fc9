#include <sidestep/topology.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/try.hpp"
#include "topology/validate.hpp"

namespace sidestep {

namespace {

// Whether a PCIe tree can have a device of the kind `below` under one of the kind `above`.
bool hangs_below(DeviceKind below, DeviceKind above) {
    if (below == DeviceKind::nvswitch || below == DeviceKind::net_switch) return false;
    if (below == DeviceKind::pcie_switch) return above <= DeviceKind::pcie_switch;
    return above <= DeviceKind::pcie_switch && above < below;
}

// "node7/gpu:1", "node7/cpu:0".
std::string device_place_name(const Place& place) {
    return fmt::format("{}/{}:{}", place.node(), place.is_gpu() ? "gpu" : "cpu", place.index());
}

// Devices mostly come in the order of their indices, so each kind is sorted apart, and only where it has to be.
std::vector<DeviceId> sorted_by_kind(const std::vector<Device>& devices) {
    std::map<DeviceKind, std::vector<DeviceId>> kinds;
    for (DeviceId id = 0; id < devices.size(); ++id) kinds[devices[id].kind].push_back(id);
    std::vector<DeviceId> sorted;
    sorted.reserve(devices.size());
    for (auto& [kind, ids] : kinds) {
        const auto before = [&](DeviceId a, DeviceId b) { return devices[a].index < devices[b].index; };
        if (!std::is_sorted(ids.begin(), ids.end(), before)) std::sort(ids.begin(), ids.end(), before);
        sorted.insert(sorted.end(), ids.begin(), ids.end());
    }
    return sorted;
}

}  // namespace

Result<Topology> Topology::create(Parts parts) {
    SIDESTEP_CHECK(topology::validate(parts));
    topology::make_printable(parts);
    return Topology(std::move(parts));
}

Topology::Topology(Parts parts) : parts_(std::move(parts)), links_begin_(parts_.devices.size() + 1, 0) {
    // One list for all devices: a cluster has a million of them.
    for (const Link& link : parts_.links) ++links_begin_[link.a], ++links_begin_[link.b];
    std::exclusive_scan(links_begin_.begin(), links_begin_.end(), links_begin_.begin(), std::uint32_t{0});
    links_of_.resize(2 * parts_.links.size());
    std::vector<std::uint32_t> next(links_begin_.begin(), links_begin_.end() - 1);
    for (std::uint32_t i = 0; i < parts_.links.size(); ++i) {
        links_of_[next[parts_.links[i].a]++] = i;
        links_of_[next[parts_.links[i].b]++] = i;
    }

    find_parents();
    find_islands();

    const auto is_gpu = [](const Device& device) { return device.kind == DeviceKind::gpu; };
    gpu_count_ = static_cast<int>(std::count_if(parts_.devices.begin(), parts_.devices.end(), is_gpu));

    by_kind_ = sorted_by_kind(parts_.devices);

    peers_by_pair_.resize(parts_.peers.size());
    std::iota(peers_by_pair_.begin(), peers_by_pair_.end(), std::uint32_t{0});
    std::sort(peers_by_pair_.begin(), peers_by_pair_.end(), [this](std::uint32_t a, std::uint32_t b) {
        return std::pair(parts_.peers[a].from, parts_.peers[a].to) <
               std::pair(parts_.peers[b].from, parts_.peers[b].to);
    });
}

std::span<const std::uint32_t> Topology::links_of(DeviceId id) const {
    return {links_of_.data() + links_begin_[id], links_of_.data() + links_begin_[id + 1]};
}

std::optional<DeviceId> Topology::find(DeviceKind kind, int index) const {
    const std::pair wanted(kind, index);
    const auto at = std::lower_bound(
        by_kind_.begin(), by_kind_.end(), wanted,
        [this](DeviceId id, const auto& key) { return std::pair(device(id).kind, device(id).index) < key; });
    if (at == by_kind_.end() || device(*at).kind != kind || device(*at).index != index) return std::nullopt;
    return *at;
}

// From the cpus down, so that of two ways up a device takes the one with fewer steps. Bridges and switches
// that no cpu is known for are tops of their own.
void Topology::find_parents() {
    parents_.resize(parts_.devices.size());
    std::iota(parents_.begin(), parents_.end(), DeviceId{0});
    std::vector<bool> placed(parts_.devices.size(), false);
    std::vector<DeviceId> order;
    std::size_t done = 0;
    for (const DeviceKind top : {DeviceKind::cpu, DeviceKind::host_bridge, DeviceKind::pcie_switch}) {
        for (DeviceId id = 0; id < parts_.devices.size(); ++id) {
            if (device(id).kind != top || placed[id]) continue;
            placed[id] = true;
            order.push_back(id);
            if (top != DeviceKind::pcie_switch) continue;
            for (; done < order.size(); ++done) place_below(order[done], placed, order);
        }
        for (; done < order.size(); ++done) place_below(order[done], placed, order);
    }
}

void Topology::place_below(DeviceId above, std::vector<bool>& placed, std::vector<DeviceId>& order) {
    for (const std::uint32_t position : links_of(above)) {
        const Link& link = parts_.links[position];
        const DeviceId below = link.a == above ? link.b : link.a;
        const bool tree = link.kind == LinkKind::c2c || link.kind == LinkKind::pcie;
        if (!tree || placed[below] || !hangs_below(device(below).kind, device(above).kind)) continue;
        placed[below] = true;
        parents_[below] = above;
        order.push_back(below);
    }
}

// What NVLinks and links of Infinity Fabric hang together, so that a pair without a way over them is seen at
// once. A union of sets: every device points to another of its set, the last one to itself.
void Topology::find_islands() {
    islands_.resize(parts_.devices.size());
    std::iota(islands_.begin(), islands_.end(), DeviceId{0});
    const auto last = [this](DeviceId id) {
        while (islands_[id] != id) id = islands_[id] = islands_[islands_[id]];
        return id;
    };
    for (const Link& link : parts_.links) {
        if (link.kind != LinkKind::nvlink && link.kind != LinkKind::xgmi) continue;
        const DeviceId a = last(link.a);
        const DeviceId b = last(link.b);
        islands_[std::max(a, b)] = std::min(a, b);
    }
    for (DeviceId id = 0; id < islands_.size(); ++id) islands_[id] = last(id);
}

std::optional<DeviceId> Topology::parent(DeviceId id) const {
    if (id >= parents_.size() || parents_[id] == id) return std::nullopt;
    return parents_[id];
}

std::optional<DeviceId> Topology::cpu_of(DeviceId id) const {
    if (id >= parts_.devices.size()) return std::nullopt;
    DeviceId top = id;
    while (parents_[top] != top) top = parents_[top];
    if (device(top).kind == DeviceKind::cpu) return top;
    std::optional<DeviceId> first;
    for (const DeviceId cpu : by_kind_) {
        if (device(cpu).kind != DeviceKind::cpu) break;
        if (device(cpu).node != device(id).node) continue;
        if (!first) first = cpu;
        if (device(cpu).numa_node == device(id).numa_node) return cpu;
    }
    return first;
}

std::optional<DeviceId> Topology::find(std::string_view name) const {
    for (DeviceId id = 0; id < parts_.devices.size(); ++id) {
        if (device(id).name == name) return id;
    }
    return std::nullopt;
}

std::optional<DeviceId> Topology::find(const Place& place) const {
    if (!place.node().empty()) {
        // The name a device of a cluster has is its place.
        const bool any_node = place.is_host() && place.index() < 0;
        return find(any_node ? place.node() + "/cpu:0" : device_place_name(place));
    }
    switch (place.kind()) {
        case PlaceKind::gpu:
            return find(DeviceKind::gpu, place.index());
        case PlaceKind::shared:
        case PlaceKind::p2pmem:
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

    const PairClass pair = pair_class(*a, *b);
    if (pair.links > 0) return {true, true, "", ""};
    // No GPU has native atomics over PCIe to another GPU.
    if (pair.kind <= parts_.pcie_peers) return {true, false, "", ""};
    if (pair.kind == PathClass::net)
        return {false, false, fmt::format("gpu:{} and gpu:{} are in different machines", from, to), ""};
    if (parts_.pcie_peers != PathClass::self) {
        const auto lenders = parts_.properties.find("lenders");
        return {
            false, false,
            fmt::format("gpu:{} and gpu:{} are joined by {}, and GPUs of this machine reach each other over "
                        "PCIe up to {} only",
                        from, to, to_string(pair), to_string(PairClass{parts_.pcie_peers, 0})),
            lenders == parts_.properties.end()
                ? ""
                : fmt::format(
                      "the file tells of no NVLinks; where the machine has some, read it --as one of: {}",
                      lenders->second)};
    }
    return {
        false, false,
        fmt::format("no NVLink joins gpu:{} and gpu:{}, and no driver said that they may reach each other "
                    "over PCIe",
                    from, to),
        ""};
}

}  // namespace sidestep
