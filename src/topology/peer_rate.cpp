#include "topology/peer_rate.hpp"

namespace sidestep::topology {

double peer_part(const Topology& topology, DeviceId from, const Path& path) {
    if (path.all_nvlink) return 1;
    bool bridge = false;
    DeviceId at = from;
    for (const std::uint32_t position : path.links) {
        const Link& link = topology.links()[position];
        at = link.a == at ? link.b : link.a;
        bridge = bridge || topology.device(at).kind == DeviceKind::host_bridge;
    }
    const auto cpu = topology.cpu_of(from);
    const bool intel = cpu && topology.device(*cpu).model.find("Intel") != std::string::npos;
    return bridge && intel ? 5.0 / 6 : 1;
}

}  // namespace sidestep::topology
