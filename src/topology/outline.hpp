// A topology sorted for people: what hangs below what, which machines of a cluster are alike, and how the
// network between them is built. What text, tree, drawings and comparisons share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sidestep/topology.hpp>

namespace sidestep::topology {

// Making one is linear in devices and links (less the sorting). It keeps a reference to the topology.
class Outline {
public:
    explicit Outline(const Topology& topology);

    const Topology& topology() const { return *topology_; }
    const Device& device(DeviceId id) const { return topology_->device(id); }
    const Link& link(std::uint32_t position) const { return topology_->links()[position]; }
    DeviceId far_end(std::uint32_t position, DeviceId near) const {
        return link(position).a == near ? link(position).b : link(position).a;
    }

    // Positions of the links that end at a device.
    const std::vector<std::uint32_t>& links_of(DeviceId id) const { return links_of_[id]; }
    // What hangs directly below a device, in the order of DeviceKind and index.
    const std::vector<DeviceId>& below(DeviceId id) const { return below_[id]; }
    // The link to the parent; nothing where there is no parent.
    std::optional<std::uint32_t> link_up(DeviceId id) const;
    // Devices of one kind by index, of all machines or of one (-1: what the machines share).
    std::vector<DeviceId> of(DeviceKind kind) const;
    std::vector<DeviceId> of(DeviceKind kind, int node) const;

    // The numbers of the machines, ascending; without -1.
    const std::vector<int>& nodes() const { return nodes_; }

private:
    const Topology* topology_;
    std::vector<std::vector<std::uint32_t>> links_of_;
    std::vector<std::vector<DeviceId>> below_;
    std::vector<DeviceId> by_kind_;  // sorted by kind, then index
    std::vector<int> nodes_;
};

// What a device is called within its machine: "gpu:1" of "node3/gpu:1".
std::string_view local_name(const Device& device);
// As matrices and drawings call it: "gpu:1", "mlx5_0" of "nic:mlx5_0", "node3/mlx5_0" where `whole`.
std::string short_name(const Device& device, bool whole);

bool is_fabric(LinkKind kind);         // NVLink or Infinity Fabric between GPUs
bool is_matrix_kind(DeviceKind kind);  // GPU, network card or drive

// "PCIe gen5 x16", "NVLink x5", "Infinity Fabric x1", "NVLink-C2C", "socket link", "network 400 Gb/s".
std::string link_words(const Link& link);
// "1 GPU", "8 network cards", "4 NVSwitches": a number of a kind, in words.
std::string count_words(std::size_t count, DeviceKind kind);
// What a PCIe device's link came up as and what it could be, where `pcie_now` and `pcie_max` differ:
// "gen1 x16 of gen5 x16". GPUs that idle lower their link: docs/topology.md.
std::string pcie_shortfall(const Device& device);
// The rate of words like "gen5 x16"; nothing for other words.
std::optional<double> rate_of_pcie_words(std::string_view words);

// Machines that have the same devices, links and names, all counted within the machine. In the order of
// their first members.
std::vector<std::vector<int>> alike_machines(const Outline& outline);
// "node0 to node127", "node0, node4": for people.
std::string node_words(const std::vector<int>& nodes);

// The network between machines, as far as it can be seen from the switches' links.
struct NetworkSummary {
    std::vector<DeviceId> leaves;  // switches with cards of machines at them
    std::vector<DeviceId> spines;  // switches joined to leaves
    std::vector<DeviceId> cores;   // all others
    // How many cards of a machine have leaves of their own: the number of rails. 0 where a leaf serves
    // cards that stand at different places in their machines.
    int rails = 0;
    double card_gb_per_s = 0;  // the slowest link of a card to a leaf
    std::size_t card_links = 0;
    std::size_t switch_links = 0;  // bundles between switches
};
NetworkSummary summarize_network(const Outline& outline);

}  // namespace sidestep::topology
