// Lists of PCI devices, as other tools print them, put into a tree.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sidestep/topology.hpp>

#include "topology/link_rates.hpp"

namespace sidestep::topology {

struct PciSpeed {
    int generation = 0;
    int lanes = 0;

    bool told() const { return pcie_gb_per_s(generation, lanes) > 0; }
};

struct PciEntry {
    std::string bus_id;              // "0000:1b:00.0"
    std::optional<DeviceKind> kind;  // nullopt: a bridge, or nothing that counts
    std::string name;                // "nic:mlx5_0"; empty: made of its bus id
    std::string model;               // "NVIDIA Corporation GH100 [H100 SXM5 80GB]"
    std::string secondary;           // of a bridge: "0000:1c", the bus below it
    int numa_node = -1;
    PciSpeed can;
    PciSpeed now;
    bool redirects = false;  // of a port: access control sends peer traffic up
    std::string driver;
};

// The host bridges, switches and devices of a list, with their links. What is not told of a link is gen3 x16, and a
// note says so. Of more than 4096 entries the first count, with a note.
Topology::Parts pci_tree(const std::vector<PciEntry>& entries);

}  // namespace sidestep::topology
