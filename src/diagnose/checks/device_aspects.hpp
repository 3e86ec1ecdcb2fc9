// What devices can be compared by: with others of their kind, with what was expected, with those of other
// machines.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <sidestep/topology.hpp>

namespace sidestep::diagnose {

// GPUs, network cards and drives.
bool has_aspects(const Device& device);

// "lanes" -> "x16", "memory" -> "80 GiB". What is not told is left out. What changes while a device idles, as the
// generation of its link, is not among them.
using Aspects = std::map<std::string, std::string>;
Aspects aspects_of(const Topology& topology, DeviceId id);

// One of several that should be alike, and the aspect in which it differs from more than half of all. What only some
// of them tell is compared among those.
struct OddOne {
    std::size_t index = 0;
    std::string aspect;
    std::string own;
    std::string others;
};
std::vector<OddOne> odd_ones(const std::vector<Aspects>& alike);

// What the link to the device above carries, in GB/s; 0 where there is none.
double own_link_rate(const Topology& topology, DeviceId id);

}  // namespace sidestep::diagnose
