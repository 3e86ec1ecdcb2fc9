// How two devices are joined, in nvidia-smi's letters.
#pragma once

#include <string>

#include <sidestep/topology.hpp>

namespace sidestep::topology {

enum class PathClass {
    self,    // X: the same device
    nvlink,  // NV#: NVLink all the way, # links
    pix,     // at most one PCIe switch
    pxb,     // several PCIe switches, no host bridge
    phb,     // one host bridge
    node,    // several host bridges of one NUMA node
    sys,     // across NUMA nodes, or not joined by anything that is known
};

struct PairClass {
    PathClass kind = PathClass::sys;
    int nvlinks = 0;

    bool operator==(const PairClass&) const = default;
};

PairClass classify(const Topology& topology, DeviceId a, DeviceId b);

// "X", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS".
std::string to_string(const PairClass& pair);

}  // namespace sidestep::topology
