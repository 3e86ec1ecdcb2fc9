// What stands below the machine: the matrix of classes, the ring of GPUs, the legend, notes.
#pragma once

#include <string>
#include <vector>

#include "topology/draw/picked.hpp"
#include "topology/draw/scene.hpp"

namespace sidestep::topology::draw {

// The classes of up to 16 GPUs among each other and to the machine's cards, each pair a cell in the colour of
// its class. Adds a panel with its upper left corner at `at`; returns the room taken, none where a machine
// has nothing to compare or more GPUs.
Rect add_matrix(const Outline& outline, const Picked& picked, Point at, Scene& scene);

// The GPUs that are joined without switches, around a circle: a mesh shows its shape there.
Rect add_ring(const Outline& outline, const Picked& picked, Point at, Scene& scene);

// The colours that `scene` has used so far, a scale of widths, and the marks.
Rect add_legend(Point at, Scene& scene);

// Sentences, wrapped to a width.
Rect add_notes(const std::vector<std::string>& notes, Point at, double width, Scene& scene);

}  // namespace sidestep::topology::draw
