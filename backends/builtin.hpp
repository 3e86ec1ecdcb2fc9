// The list of backends: the one place where they are named.
#pragma once

#include "backend/registry.hpp"
#include "base/environment.hpp"

namespace sidestep::backends {

// Adds every backend of this build, and notes those it leaves out. An emulated machine has no use for
// the backends of real devices: they are not added, since nobody would ask why they are off.
void add_builtin(backend::Registry& registry, const Topology& topology, const base::Environment& environment);

}  // namespace sidestep::backends
