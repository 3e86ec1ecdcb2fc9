// The built-in machines. A further one is a file here and a line in models.cpp.
#pragma once

#include <sidestep/topology.hpp>

namespace sidestep::topology::models {

Topology::Parts dgx_h100();

}  // namespace sidestep::topology::models
