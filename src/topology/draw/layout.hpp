// The whole drawing of a machine, as data.
#pragma once

#include <sidestep/drawing.hpp>

#include "topology/draw/scene.hpp"

namespace sidestep::topology::draw {

// Pure: the same topology gives the same scene. Boxes that do not lie in each other do not overlap, and
// everything lies on the canvas.
Scene lay_out(const Topology& topology, const DrawOptions& options);

}  // namespace sidestep::topology::draw
