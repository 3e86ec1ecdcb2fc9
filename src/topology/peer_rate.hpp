// What a copy reaches over a path.
#pragma once

#include <sidestep/topology.hpp>

namespace sidestep::topology {

// The position of a path's slowest link; the path has links.
std::uint32_t narrowest_link(const Topology& topology, const Path& path);

// GB/s of a large copy by a copy engine: reached_part() of the slowest link. Between two GPUs over PCIe, `peers`, 5/6 of
// that are left where they pass through the host bridge of an Intel processor, which splits their packets (NCCL
// counts 6/5 of the bandwidth for such hops: INTEL_P2P_OVERHEAD in its src/graph/topo.h), or to another socket.
// `from` is where the path begins.
double reached_gb_per_s(const Topology& topology, DeviceId from, const Path& path, bool peers);

}  // namespace sidestep::topology
