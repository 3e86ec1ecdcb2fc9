// How far GPUs are from the nearest device of another kind.
#pragma once

#include <string>
#include <vector>

#include "diagnose/check.hpp"

namespace sidestep::diagnose {

// Whether the PCI tree is one that a hypervisor made up without switches, or is not shown at all: distances
// in it say nothing.
bool hides_tree(const Evidence& evidence);
// The outcome then.
Outcome behind_hypervisor(const std::string& what);

struct DistanceRule {
    std::string what;      // "network card"
    PathClass farthest{};  // the farthest class that is well
};

// Passes where each GPU has one of the devices within the rule; warns of those that have not, with the loss
// of the worst pair where the topology knows one. To GPUs that C2C joins to their CPU, everything that hangs
// at it is near.
Outcome judge_distances(const Evidence& evidence, const std::vector<DeviceId>& others,
                        const DistanceRule& rule);

}  // namespace sidestep::diagnose
