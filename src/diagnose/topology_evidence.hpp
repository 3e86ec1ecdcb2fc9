// A topology alone, as evidence: built-in machines and topology files, which have no files and no driver.
#pragma once

#include <sidestep/topology.hpp>

#include "diagnose/evidence.hpp"

namespace sidestep::diagnose {

// NVML's answers are made of what the topology says of its GPUs; what it does not say, NVML does not tell.
Evidence evidence_of(Topology topology);

}  // namespace sidestep::diagnose
