// The links between sockets, and those between GPUs: NVLink, Infinity Fabric, NVSwitches.
#pragma once

#include "topology/draw/tree_layout.hpp"

namespace sidestep::topology::draw {

// How much room the arcs between sockets that do not stand next to each other take above the panels.
double room_above_sockets(const Outline& outline, const Picked& picked);
// Edges and words between the sockets that lay_out_trees() has placed.
void draw_socket_links(const Outline& outline, const Picked& picked, Scene& scene, const BoxOf& box_of);

// The links between GPUs and the band of NVSwitches below `trees`. Returns the room taken: as wide as
// `trees`, of no height where there are no such links.
Rect lay_out_fabric(const Outline& outline, const Picked& picked, const Rect& trees, Scene& scene,
                    BoxOf& box_of);

// The links between two GPUs that are both drawn.
std::vector<std::uint32_t> direct_links(const Outline& outline, const Picked& picked);

}  // namespace sidestep::topology::draw
