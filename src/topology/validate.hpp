// What makes the parts of a topology sensible.
#pragma once

#include <sidestep/topology.hpp>

namespace sidestep::topology {

// Success, or ErrorCode::invalid_argument with the element in `where` ("links[3].width") and its names
// in the message.
Result<void> validate(const Topology::Parts& parts);

// Names, models and notes come out of files of strangers and go to terminals.
void make_printable(Topology::Parts& parts);

}  // namespace sidestep::topology
