// What peer traffic over PCIe loses on its way.
#pragma once

#include <sidestep/topology.hpp>

namespace sidestep::topology {

// The part of a PCIe path's rate that is left to reads and writes between two GPUs: 5/6 where they pass
// through the host bridge of an Intel processor, which splits their packets (NCCL counts 6/5 of the bandwidth
// for such hops: INTEL_P2P_OVERHEAD in its src/graph/topo.h), else 1. `from` is where the path begins.
double peer_part(const Topology& topology, DeviceId from, const Path& path);

}  // namespace sidestep::topology
