#include "topology/path_class.hpp"

#include <fmt/format.h>

namespace sidestep::topology {

namespace {

// The class of a walk over PCIe and links between sockets, by what it passes through.
PathClass class_of_walk(const Topology& topology, DeviceId from, const Path& path) {
    int switches = 0;
    int bridges = 0;
    int cpus = 0;
    const auto count = [&](DeviceKind kind) {
        if (kind == DeviceKind::pcie_switch) ++switches;
        if (kind == DeviceKind::host_bridge) ++bridges;
        if (kind == DeviceKind::cpu) ++cpus;
    };
    count(topology.device(from).kind);
    DeviceId at = from;
    for (const std::uint32_t position : path.links) {
        const Link& link = topology.links()[position];
        at = link.a == at ? link.b : link.a;
        count(topology.device(at).kind);
    }
    if (cpus > 1) return PathClass::sys;
    if (bridges > 1) return PathClass::node;
    if (bridges == 1 || cpus == 1) return PathClass::phb;
    return switches > 1 ? PathClass::pxb : PathClass::pix;
}

}  // namespace

PairClass classify(const Topology& topology, DeviceId a, DeviceId b) {
    if (a == b) return {PathClass::self, 0};
    if (const auto nvlink = topology.path(a, b, Fabric::nvlink)) return {PathClass::nvlink, nvlink->nvlinks};
    const auto walk = topology.path(a, b, Fabric::pcie);
    if (!walk) return {PathClass::sys, 0};
    return {class_of_walk(topology, a, *walk), 0};
}

std::string to_string(const PairClass& pair) {
    switch (pair.kind) {
        case PathClass::self:
            return "X";
        case PathClass::nvlink:
            return fmt::format("NV{}", pair.nvlinks);
        case PathClass::pix:
            return "PIX";
        case PathClass::pxb:
            return "PXB";
        case PathClass::phb:
            return "PHB";
        case PathClass::node:
            return "NODE";
        case PathClass::sys:
            return "SYS";
    }
    return "SYS";
}

}  // namespace sidestep::topology
