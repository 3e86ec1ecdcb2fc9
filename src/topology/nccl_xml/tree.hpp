// A machine as the tree that a topology file writes down: what hangs below which <cpu>, under which bus id.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <sidestep/topology.hpp>

namespace sidestep::topology::nccl_xml {

class Tree {
public:
    explicit Tree(const Topology& topology);

    struct Top {
        DeviceId device;
        int bridge;  // counts the host bridges below the <cpu>
    };
    struct Cpu {
        std::optional<DeviceId> device;  // none: the topology has no cpu, but devices
        int numa_node = -1;
        std::vector<Top> below;
        int bridges = 0;
    };
    const std::vector<Cpu>& cpus() const { return cpus_; }

    // What hangs below a switch. GPUs, network cards and switches only.
    const std::vector<DeviceId>& below(DeviceId id) const { return below_[id]; }
    // Further ports of a network card, which share its <pci>.
    const std::vector<DeviceId>& ports(DeviceId nic) const;
    const std::string& bus_id(DeviceId id) const { return bus_ids_[id]; }
    // The PCIe link upwards; nullptr where there is none.
    const Link* up(DeviceId id) const;
    // Positions in Topology::links().
    const std::vector<std::uint32_t>& links(DeviceId id) const { return links_[id]; }

private:
    std::optional<DeviceId> parent_of(DeviceId id) const;
    void number_cpus();
    void place();
    void claim_bus_ids();
    bool claim(DeviceId id);
    void make_up(DeviceId id);
    // Whether a card is a further port of one that holds its bus id.
    bool shares(DeviceId nic);

    const Topology& topology_;
    std::vector<std::vector<std::uint32_t>> links_;
    std::vector<std::optional<DeviceId>> parents_;  // a switch or host bridge
    std::vector<Cpu> cpus_;
    std::vector<std::vector<DeviceId>> below_;
    std::unordered_map<DeviceId, std::vector<DeviceId>> ports_;
    std::unordered_set<DeviceId> is_port_;
    std::vector<std::string> bus_ids_;
    std::unordered_map<std::string, DeviceId> taken_;
    std::uint32_t made_up_ = 0;
};

}  // namespace sidestep::topology::nccl_xml
