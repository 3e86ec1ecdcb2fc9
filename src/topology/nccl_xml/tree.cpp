#include "topology/nccl_xml/tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "topology/nccl_xml/attributes.hpp"
#include "topology/nccl_xml/draft.hpp"
#include "topology/nccl_xml/values.hpp"

namespace sidestep::topology::nccl_xml {

namespace {

const std::vector<DeviceId> none;

bool is_written(DeviceKind kind) {
    return kind == DeviceKind::gpu || kind == DeviceKind::nic || kind == DeviceKind::pcie_switch;
}

}  // namespace

Tree::Tree(const Topology& topology)
    : topology_(topology),
      links_(topology.devices().size()),
      parents_(topology.devices().size()),
      below_(topology.devices().size()),
      bus_ids_(topology.devices().size()) {
    for (std::uint32_t i = 0; i < topology.links().size(); ++i) {
        links_[topology.links()[i].a].push_back(i);
        links_[topology.links()[i].b].push_back(i);
    }
    for (DeviceId id = 0; id < parents_.size(); ++id) parents_[id] = parent_of(id);
    number_cpus();
    claim_bus_ids();
    place();
}

// A GPU with C2C hangs at its cpu, and may have a PCIe link all the same.
std::optional<DeviceId> Tree::parent_of(DeviceId id) const {
    const auto is_tree = [&](DeviceId up) {
        const DeviceKind kind = topology_.device(up).kind;
        return kind == DeviceKind::host_bridge || kind == DeviceKind::pcie_switch;
    };
    const auto above = topology_.parent(id);
    if (!above || is_tree(*above)) return above;
    for (const std::uint32_t position : links_[id]) {
        const Link& link = topology_.links()[position];
        const DeviceId far = link.a == id ? link.b : link.a;
        if (topology_.device(id).kind == DeviceKind::gpu && link.kind == LinkKind::pcie && is_tree(far))
            return far;
    }
    return std::nullopt;
}

const Link* Tree::up(DeviceId id) const {
    for (const std::uint32_t position : links_[id]) {
        const Link& link = topology_.links()[position];
        const DeviceId far = link.a == id ? link.b : link.a;
        if (link.kind == LinkKind::pcie && parents_[id] == far) return &link;
    }
    return nullptr;
}

const std::vector<DeviceId>& Tree::ports(DeviceId nic) const {
    const auto found = ports_.find(nic);
    return found == ports_.end() ? none : found->second;
}

// NUMA nodes as the devices tell them; what is missing or there twice takes the next free number. A single
// cpu may stay without one.
void Tree::number_cpus() {
    std::set<int> taken;
    std::vector<std::size_t> open;
    for (DeviceId id = 0; id < topology_.devices().size(); ++id) {
        const Device& device = topology_.device(id);
        if (device.kind != DeviceKind::cpu) continue;
        if (device.numa_node > highest_number || !taken.insert(device.numa_node).second)
            open.push_back(cpus_.size());
        cpus_.push_back({id, device.numa_node, {}, 0});
    }
    int next = 0;
    for (const std::size_t at : open) {
        while (!taken.insert(next).second) ++next;
        cpus_[at].numa_node = next;
    }
}

void Tree::place() {
    std::unordered_map<DeviceId, std::size_t> position;
    for (std::size_t i = 0; i < cpus_.size(); ++i) position[*cpus_[i].device] = i;
    std::vector<std::unordered_map<DeviceId, int>> bridges(std::max<std::size_t>(cpus_.size(), 1));
    for (DeviceId id = 0; id < topology_.devices().size(); ++id) {
        if (!is_written(topology_.device(id).kind) || is_port_.count(id) != 0) continue;
        const auto parent = parents_[id];
        if (parent && topology_.device(*parent).kind == DeviceKind::pcie_switch) {
            below_[*parent].push_back(id);
            continue;
        }
        if (cpus_.empty()) cpus_.push_back({});
        const auto cpu = topology_.cpu_of(parent.value_or(id));
        const std::size_t at = cpu ? position[*cpu] : 0;
        // A device without links has no neighbours: it gets a bridge of its own.
        const auto [bridge, is_new] = bridges[at].emplace(parent.value_or(id), cpus_[at].bridges);
        if (is_new) ++cpus_[at].bridges;
        cpus_[at].below.push_back({id, bridge->second});
    }
}

bool Tree::shares(DeviceId nic) {
    const auto id = nccl_xml::bus_id(topology_.device(nic).bus_id);
    if (!id || topology_.device(nic).kind != DeviceKind::nic) return false;
    const auto holder = taken_.find(*id);
    if (holder == taken_.end() || topology_.device(holder->second).kind != DeviceKind::nic) return false;
    if (parents_[holder->second] != parents_[nic]) return false;
    ports_[holder->second].push_back(nic);
    is_port_.insert(nic);
    return true;
}

bool Tree::claim(DeviceId id) {
    const auto own = nccl_xml::bus_id(topology_.device(id).bus_id);
    if (!own || !taken_.emplace(*own, id).second) return false;
    bus_ids_[id] = *own;
    return true;
}

void Tree::make_up(DeviceId id) {
    do {
        // ffff:ff:00.0, ffff:ff:01.0, ..., ffff:fe:00.0: 32 devices a bus, and no machine has that domain.
        const std::uint32_t number = made_up_++;
        bus_ids_[id] = fmt::format("{:04x}:{:02x}:{:02x}.0", 0xffff - (number >> 13),
                                   0xff - (number >> 5) % 256, number % 32);
    } while (!taken_.emplace(bus_ids_[id], id).second);
}

// What NCCL looks up by its bus id comes first: those have to be right.
void Tree::claim_bus_ids() {
    std::vector<DeviceId> open;
    for (const DeviceKind kind :
         {DeviceKind::gpu, DeviceKind::nic, DeviceKind::nvswitch, DeviceKind::pcie_switch}) {
        for (DeviceId id = 0; id < topology_.devices().size(); ++id) {
            const Device& device = topology_.device(id);
            if (device.kind != kind || claim(id)) continue;
            const std::string* is_virtual = find_property(device, virtual_card);
            if (!shares(id) && is_virtual == nullptr) open.push_back(id);
        }
    }
    for (const DeviceId id : open) make_up(id);
}

}  // namespace sidestep::topology::nccl_xml
