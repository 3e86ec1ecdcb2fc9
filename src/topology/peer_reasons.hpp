// NVML's answers about peer access in words.
#pragma once

#include <sidestep/topology.hpp>
#include "driver/nvml.hpp"

namespace sidestep::topology {

// Access is allowed where both reading and writing are. Otherwise reason and remedy are those of the
// first that is not.
PeerAccess peer_access_of(driver::P2pStatus reads, driver::P2pStatus writes, bool atomics);

}  // namespace sidestep::topology
