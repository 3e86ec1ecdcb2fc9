// The other machines of a cluster, and the network between them, in outline.
#pragma once

#include "topology/draw/picked.hpp"
#include "topology/draw/scene.hpp"

namespace sidestep::topology::draw {

// A row of machines, the leaf switches their cards go to, the spines above those; what does not fit is
// counted. Lies below `above`, and where machines share NVSwitches, joins them to the lower edge of that.
// Returns the room taken, none for a single machine.
Rect lay_out_cluster(const Outline& outline, const Picked& picked, const Rect& above, Scene& scene);

}  // namespace sidestep::topology::draw
