#include "topology/peer_rate.hpp"

#include <algorithm>

#include "topology/link_rates.hpp"

namespace sidestep::topology {

namespace {

bool splits_packets(const Topology& topology, DeviceId from, const Path& path) {
    if (path.all_nvlink) return false;
    bool bridge = false;
    DeviceId at = from;
    for (const std::uint32_t position : path.links) {
        const Link& link = topology.links()[position];
        if (link.kind == LinkKind::socket) return true;
        at = link.a == at ? link.b : link.a;
        bridge = bridge || topology.device(at).kind == DeviceKind::host_bridge;
    }
    const auto cpu = topology.cpu_of(from);
    return bridge && cpu && topology.device(*cpu).model.find("Intel") != std::string::npos;
}

}  // namespace

std::uint32_t narrowest_link(const Topology& topology, const Path& path) {
    return *std::min_element(path.links.begin(), path.links.end(), [&](std::uint32_t a, std::uint32_t b) {
        return topology.links()[a].gb_per_s < topology.links()[b].gb_per_s;
    });
}

double reached_gb_per_s(const Topology& topology, DeviceId from, const Path& path, bool peers) {
    const double rate = path.gb_per_s * reached_part(topology.links()[narrowest_link(topology, path)]);
    return peers && splits_packets(topology, from, path) ? rate * 5 / 6 : rate;
}

}  // namespace sidestep::topology
