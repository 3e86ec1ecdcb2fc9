// The panels of the sockets: each a PCIe tree from the processor at the top to the GPUs at the bottom.
#pragma once

#include <unordered_map>

#include "topology/draw/picked.hpp"
#include "topology/draw/scene.hpp"

namespace sidestep::topology::draw {

// Where the devices came to lie: positions in Scene::boxes.
using BoxOf = std::unordered_map<DeviceId, std::size_t>;

// Lays the machine's trees side by side from `top` down and from `left` on, and adds boxes and edges to
// `scene`. All GPUs stand in one row at the bottom of their panels. Returns the room that was taken.
Rect lay_out_trees(const Outline& outline, const Picked& picked, Point at, Scene& scene, BoxOf& box_of);

}  // namespace sidestep::topology::draw
