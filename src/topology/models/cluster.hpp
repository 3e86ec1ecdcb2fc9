// Several machines of one kind, and the network between them. docs/machines.md describes the wiring.
#pragma once

#include <sidestep/topology.hpp>

namespace sidestep::topology::models {

// The network cards of a machine that the network between machines joins.
struct Rails {
    int count = 0;        // a node: its cards 0 to count-1, rail r being card r
    double gb_per_s = 0;  // of each card, one direction
};

// `count` machines side by side. Machine k's nodes follow those of machine k-1, a device of node k is called
// "nodeK/" and its name in the machine, and indices count on over all of them; devices that nodes share
// (node -1) are called by kind and index. The work is linear in what comes out. There is room for `spare` more.
struct Spare {
    std::size_t devices = 0;
    std::size_t links = 0;
};
Topology::Parts copies(const Topology::Parts& machine, int count, Spare spare = {});

// copies(), joined by a rail-optimised network: in each unit of up to 32 nodes card r of every node goes to
// leaf switch r; leaves are joined by spines, beyond 64 leaves by spines and cores, without loss of rate. Devices of a
// cluster of more than 10,000 GPUs have no properties, and NVSwitches that join the same devices are one.
Topology::Parts cluster(Topology::Parts machine, int count, const Rails& rails);

}  // namespace sidestep::topology::models
