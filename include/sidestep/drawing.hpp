// A machine drawn: as a tree of lines, as Graphviz DOT, as SVG.
//
// All are pure functions of the topology, whose work and output stay bounded: of a cluster one machine is
// drawn in full, the others are summed up, and each drawing says how much it leaves out. docs/topology.md
// shows them.
#pragma once

#include <string>

#include <sidestep/api.h>
#include <sidestep/topology.hpp>

namespace sidestep {

enum class Theme {
    automatic,  // dark where the viewer prefers that (prefers-color-scheme), else light
    light,
    dark,
};

struct DrawOptions {
    Theme theme = Theme::automatic;
    // The machine of a cluster that is drawn in full; a number without a machine means the first.
    int node = 0;
};

// The tree a person climbs to see what is behind what: NUMA nodes, host bridges, switches, devices, each with
// its link, and the NVLinks. UTF-8, without colours, ends in a newline. Of machines that are alike one is
// shown.
SIDESTEP_API std::string draw_tree(const Topology& topology);

// A line for each pair of a GPU with another GPU, a network card or a drive: class, the rate a copy is
// expected to reach in GB/s, microseconds of one crossing, the worst link and the path in words. Of a cluster
// the pairs of its first machine; at most the first 64 devices.
SIDESTEP_API std::string list_pairs(const Topology& topology);

// A graph for Graphviz ("dot -Tsvg"), version 2.40 or later: a cluster for each socket, edges as wide as
// their links are fast. Names are quoted, so any topology gives a valid file.
SIDESTEP_API std::string draw_dot(const Topology& topology, const DrawOptions& options = {});

// A drawing that stands alone: one SVG 1.1 document without scripts, fonts or other files. Sockets are
// panels with the PCIe tree of each, below them the NVLinks, the matrix of GPU pairs, the network between
// machines and a legend. Colours are those of the path classes, edges are as wide as their links are fast,
// and everything has a <title> with the details. Up to 32 GPUs and a few hundred devices are drawn.
SIDESTEP_API std::string draw_svg(const Topology& topology, const DrawOptions& options = {});

}  // namespace sidestep
