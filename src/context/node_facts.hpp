// What this machine reports about itself to the other end of a connection.
#pragma once

#include <string>
#include <vector>

#include <sidestep/topology.hpp>
#include "base/environment.hpp"
#include "wire/telling.hpp"

namespace sidestep::context {

// By the names that docs/network.md lists. `socket`: the connection, -1: none; `engines`: those that this machine has.
wire::Facts facts_of_end(const Topology& topology, const std::vector<std::string>& engines,
                         const base::Environment& environment, int socket);

// What a node tells. The topology outlives it.
wire::Teller teller(const Topology& topology, std::vector<std::string> engines,
                    const base::Environment& environment);

}  // namespace sidestep::context
