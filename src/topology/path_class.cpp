// How two devices are joined, in nvidia-smi's letters: climbing a tree, never searching the machine.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include <sidestep/topology.hpp>

#include "topology/peer_rate.hpp"

namespace sidestep {

namespace {

// The devices from `id` to the top of its tree, `id` first.
std::vector<DeviceId> climb(const Topology& topology, DeviceId id) {
    std::vector<DeviceId> chain{id};
    while (const auto above = topology.parent(chain.back())) chain.push_back(*above);
    return chain;
}

// Of two chains that meet at a cpu. A GPU that hangs there by C2C has a PCIe domain of its own, and
// nvidia-smi prints SYS between it and what hangs below the cpu's bridges (published matrices of GB200 and
// GH200).
PathClass class_below_cpu(const Topology& topology, DeviceId cpu, const std::vector<DeviceId>& a,
                          const std::vector<DeviceId>& b, int bridges) {
    if (cpu == a[0] || cpu == b[0]) return bridges == 1 ? PathClass::phb : PathClass::node;
    for (const auto* chain : {&a, &b}) {
        const auto below = std::find(chain->begin(), chain->end(), cpu) - 1;
        // A bridge whose NUMA node is not told may be at any cpu.
        if (topology.device(*below).properties.count("cpu_assumed") != 0) return PathClass::sys;
        if (chain->size() >= 2 && (*chain)[1] == cpu &&
            topology.device(chain->front()).kind == DeviceKind::gpu)
            return PathClass::sys;
    }
    return PathClass::node;
}

// The class over PCIe, by what the two chains have in common. nvidia-smi counts the same way: NVML's levels
// are the deepest common ancestor (nvmlGpuTopologyLevel_t).
PathClass class_of_chains(const Topology& topology, const std::vector<DeviceId>& a,
                          const std::vector<DeviceId>& b) {
    int switches = 0;
    int bridges = 0;
    const auto count = [&](DeviceId id) {
        switches += topology.device(id).kind == DeviceKind::pcie_switch ? 1 : 0;
        bridges += topology.device(id).kind == DeviceKind::host_bridge ? 1 : 0;
    };
    for (const DeviceId common : a) {
        const auto met = std::find(b.begin(), b.end(), common);
        if (met == b.end()) {
            count(common);
            continue;
        }
        count(common);
        std::for_each(b.begin(), met, count);
        const DeviceKind kind = topology.device(common).kind;
        if (kind == DeviceKind::cpu) return class_below_cpu(topology, common, a, b, bridges);
        if (kind == DeviceKind::host_bridge) return PathClass::phb;
        return switches > 1 ? PathClass::pxb : PathClass::pix;
    }
    return PathClass::sys;
}

bool is_fabric(LinkKind kind) {
    return kind == LinkKind::nvlink || kind == LinkKind::xgmi;
}

}  // namespace

// NVLink from GPU to GPU, or through one switch, is seen from the two ends' own links; what takes several
// switches is searched for.
PairClass Topology::fabric_class(DeviceId a, DeviceId b) const {
    if (islands_[a] != islands_[b]) return {PathClass::sys, 0};
    int direct = 0;
    int through = 0;
    bool xgmi = false;
    bool several = false;  // a switch of `a` has NVLinks to another switch
    for (const std::uint32_t position : links_of(a)) {
        const Link& first = links()[position];
        if (!is_fabric(first.kind)) continue;
        xgmi = first.kind == LinkKind::xgmi;
        const DeviceId far = first.a == a ? first.b : first.a;
        if (far == b) direct += first.width;
        if (device(far).kind != DeviceKind::nvswitch) continue;
        // The smaller list: a GPU has few links, a switch has many.
        for (const std::uint32_t other : links_of(b)) {
            const Link& second = links()[other];
            if (is_fabric(second.kind) && (second.a == far || second.b == far)) {
                through += std::min(first.width, second.width);
            }
        }
        several = true;
    }
    if (direct + through > 0) return {xgmi ? PathClass::xgmi : PathClass::nvlink, direct + through};
    if (!several) return {PathClass::sys, 0};
    if (const auto walk = path(a, b, Fabric::nvlink)) return {PathClass::nvlink, walk->nvlinks};
    return {PathClass::sys, 0};
}

PairClass Topology::pair_class(DeviceId a, DeviceId b) const {
    if (a >= parts_.devices.size() || b >= parts_.devices.size()) return {};
    if (a == b) return {PathClass::self, 0};
    if (device(a).kind == DeviceKind::gpu && device(b).kind == DeviceKind::gpu) {
        const PairClass fabric = fabric_class(a, b);
        if (fabric.links > 0) return fabric;
    }
    if (device(a).node != device(b).node) return {PathClass::net, 0};
    return {class_of_chains(*this, climb(*this, a), climb(*this, b)), 0};
}

Pair Topology::pair(DeviceId a, DeviceId b) const {
    Pair result;
    result.pair = pair_class(a, b);
    std::optional<Path> way;
    if (result.pair.links > 0) way = path(a, b, Fabric::nvlink);
    if (!way) way = path(a, b, Fabric::any);
    if (!way || way->links.empty()) return result;
    result.narrowest = topology::narrowest_link(*this, *way);
    const bool peers = device(a).kind == DeviceKind::gpu && device(b).kind == DeviceKind::gpu;
    result.gb_per_s = topology::reached_gb_per_s(*this, a, *way, peers);
    result.latency_us = way->latency_us;
    result.redirected = way->redirected();
    result.words = describe(*way);
    if (result.redirected) result.words += ", turned around at the host bridge by ACS";
    return result;
}

std::string to_string(const PairClass& pair) {
    switch (pair.kind) {
        case PathClass::self:
            return "X";
        case PathClass::nvlink:
            return fmt::format("NV{}", pair.links);
        case PathClass::xgmi:
            return "XGMI";
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
        case PathClass::net:
            return "NET";
    }
    return "SYS";
}

}  // namespace sidestep
