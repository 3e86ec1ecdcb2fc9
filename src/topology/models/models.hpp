// The built-in machines. A further one is a function here and a line in models.cpp.
//
// In each, network cards 0 to N-1 are those of the compute network, nearest to the GPUs and in their order;
// cards for storage come after them. docs/machines.md says what each machine holds, and what is left out.
#pragma once

#include <sidestep/topology.hpp>

namespace sidestep::topology::models {

Topology::Parts dgx_1v();
Topology::Parts dgx_2();
Topology::Parts dgx_a100();
Topology::Parts dgx_h100();
Topology::Parts dgx_h200();
Topology::Parts dgx_b200();
Topology::Parts gb200_nvl72();
Topology::Parts gb200_tray();
Topology::Parts mi300x();
Topology::Parts pcie_4l40s();
Topology::Parts pcie_2s();
Topology::Parts laptop();

}  // namespace sidestep::topology::models
