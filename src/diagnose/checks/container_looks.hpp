// What looks for the causes of group container; container.cpp has the words.
#pragma once

#include "diagnose/check.hpp"

namespace sidestep::diagnose {

// container_limits.cpp: what a container keeps from its processes.
Outcome look_shm(const Evidence& evidence);
Outcome look_namespaces(const Evidence& evidence);
Outcome look_pidfd(const Evidence& evidence);

// hidden_topology.cpp: what a virtual machine does not show, and the file that tells NCCL.
Outcome look_hidden_switches(const Evidence& evidence);
Outcome look_topology_file(const Evidence& evidence);

}  // namespace sidestep::diagnose
