#include "topology/pci_tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "topology/parts_builder.hpp"

namespace sidestep::topology {

namespace {

constexpr std::size_t most_bridges = 64;  // bridges above a device
// More than any machine has. The time grows with the square of their number.
constexpr std::size_t most_devices = 4096;

std::string bus_of(const std::string& bus_id) {
    return bus_id.substr(0, bus_id.rfind(':'));
}

class Tree {
public:
    explicit Tree(std::span<const PciEntry> entries) : entries_(entries) {
        for (const PciEntry& entry : entries)
            if (!entry.secondary.empty()) bridge_above_.emplace(entry.secondary, &entry);
    }

    Topology::Parts build() {
        std::set<int> nodes = {0};
        for (const PciEntry& entry : entries_)
            if (entry.kind && entry.numa_node >= 0 && entry.numa_node < 1024) nodes.insert(entry.numa_node);
        for (const int node : nodes)
            cpus_.emplace(node, builder_.add({DeviceKind::cpu, node, "", "", "", node, 0}));
        join_cpus(builder_, assumed_socket_gb_per_s);
        for (const PciEntry& entry : entries_)
            if (entry.kind) add(entry, *entry.kind);
        for (const auto& [bus, bridge] : host_bridges_) {
            const auto cpu = cpus_.find(builder_.device(bridge).numa_node);
            join_host_bridge(builder_, bridge, cpu == cpus_.end() ? cpus_.begin()->second : cpu->second);
        }
        builder_.parts().emulated = true;
        if (assumed_ > 0)
            builder_.note(fmt::format(
                "PCIe links that do not show their speed and are counted as gen3 x16: {}", assumed_));
        return std::move(builder_.parts());
    }

private:
    // The bridges above a device, the highest first: a root port, then the ports of each switch in pairs.
    std::vector<const PciEntry*> walk_to(const PciEntry& entry) const {
        std::vector<const PciEntry*> walk;
        for (std::string bus = bus_of(entry.bus_id); walk.size() < most_bridges;) {
            const auto above = bridge_above_.find(bus);
            if (above == bridge_above_.end() || bus_of(above->second->bus_id) == bus) break;
            walk.push_back(above->second);
            bus = bus_of(above->second->bus_id);
        }
        std::reverse(walk.begin(), walk.end());
        return walk;
    }

    void add(const PciEntry& entry, DeviceKind kind) {
        const char* word = kind == DeviceKind::nic ? "nic:" : "drive:";
        const std::string name = kind == DeviceKind::gpu ? ""
                                 : !entry.name.empty()   ? entry.name
                                                         : word + entry.bus_id;
        const DeviceId id = builder_.add(
            {kind, builder_.next_index(kind), name, entry.model, entry.bus_id, entry.numa_node, 0});
        if (!entry.driver.empty()) builder_.device(id).properties["driver"] = entry.driver;
        const auto walk = walk_to(entry);
        const std::string root = walk.empty() ? bus_of(entry.bus_id) : bus_of(walk.front()->bus_id);
        DeviceId above = host_bridge(root, entry.numa_node);
        for (std::size_t i = 1; i + 1 < walk.size(); i += 2) {
            above = pcie_switch(*walk[i], *walk[i - 1], above, entry.numa_node);
            builder_.device(above).acs_redirect =
                builder_.device(above).acs_redirect || walk[i + 1]->redirects;
        }
        join(id, above, entry, walk.empty() ? nullptr : walk.back());
    }

    DeviceId host_bridge(const std::string& bus, int numa_node) {
        const auto found = host_bridges_.find(bus);
        if (found != host_bridges_.end()) return found->second;
        const DeviceId made =
            builder_.add({DeviceKind::host_bridge, builder_.next_index(DeviceKind::host_bridge), "", "", bus,
                          numa_node, 0});
        host_bridges_.emplace(bus, made);
        return made;
    }

    // Called after its upstream port.
    DeviceId pcie_switch(const PciEntry& upstream, const PciEntry& port, DeviceId above, int numa_node) {
        const auto found = switches_.find(upstream.bus_id);
        if (found != switches_.end()) return found->second;
        const DeviceId made =
            builder_.add({DeviceKind::pcie_switch, builder_.next_index(DeviceKind::pcie_switch), "",
                          upstream.model, upstream.bus_id, numa_node, 0});
        switches_.emplace(upstream.bus_id, made);
        join(made, above, upstream, &port);
        return made;
    }

    // A link has the lanes that it came up with. Its generation is what both ends can do: idle devices slow down.
    void join(DeviceId id, DeviceId above, const PciEntry& entry, const PciEntry* port) {
        PciSpeed can = entry.can;
        if (port != nullptr && port->can.told()) {
            can.generation = std::min(can.generation, port->can.generation);
            can.lanes = std::min(can.lanes, port->can.lanes);
        }
        if (!can.told()) {
            ++assumed_;
            builder_.join_pcie(id, above, 3, 16);
            return;
        }
        Properties& properties = builder_.device(id).properties;
        properties["pcie_max"] = fmt::format("gen{} x{}", can.generation, can.lanes);
        if (entry.now.told())
            properties["pcie_now"] = fmt::format("gen{} x{}", entry.now.generation, entry.now.lanes);
        builder_.join_pcie(id, above, can.generation, entry.now.told() ? entry.now.lanes : can.lanes);
    }

    const std::span<const PciEntry> entries_;
    std::map<std::string, const PciEntry*> bridge_above_;  // by the bus below it
    std::map<std::string, DeviceId> host_bridges_;         // by bus
    std::map<std::string, DeviceId> switches_;             // by upstream port
    std::map<int, DeviceId> cpus_;
    PartsBuilder builder_;
    int assumed_ = 0;
};

}  // namespace

Topology::Parts pci_tree(const std::vector<PciEntry>& entries) {
    auto parts = Tree(std::span(entries).first(std::min(entries.size(), most_devices))).build();
    if (entries.size() > most_devices)
        parts.notes.push_back(
            fmt::format("of {} PCI devices the first {} count", entries.size(), most_devices));
    return parts;
}

}  // namespace sidestep::topology
