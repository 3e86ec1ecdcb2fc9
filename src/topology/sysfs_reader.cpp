#include "topology/sysfs_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "driver/machine_files.hpp"
#include "topology/host_nodes_reader.hpp"
#include "topology/link_rates.hpp"
#include "topology/machine_facts_reader.hpp"
#include "topology/pci_names.hpp"

namespace sidestep::topology {

namespace {

constexpr long nvidia = 0x10de;
constexpr long highest_node = 1 << 20;
constexpr long nvme_class = 0x0108;

// A PCIe link as it can be, and as it runs now. Zero: not told.
struct PcieLink {
    int generation = 0;
    int lanes = 0;
};

// "32.0 GT/s PCIe", "16 GT/s", "Unknown".
int generation_in(const std::string& text) {
    return pcie_generation(std::strtod(text.c_str(), nullptr)).value_or(0);
}

// "0000:1b:00.0", also with a domain of eight digits.
bool is_bus_id(const std::string& text) {
    const auto colon = text.find(':');
    return colon != std::string::npos && text.size() == colon + 8 && text[colon + 3] == ':' &&
           text[colon + 6] == '.' && text.find_first_not_of("0123456789abcdef:.") == std::string::npos;
}

PcieLink narrower(PcieLink a, PcieLink b) {
    return {std::min(a.generation, b.generation), std::min(a.lanes, b.lanes)};
}

class SysfsReader {
public:
    explicit SysfsReader(const driver::MachineFiles& files) : files_(files) {
        const Fact found = hypervisor(files);
        virtual_machine_ = found.known() && found.value != "none";
    }

    PartsBuilder read() {
        read_nodes();
        read_pci();
        read_virtual_rdma();
        join_cpus(builder_, assumed_socket_gb_per_s);
        return std::move(builder_);
    }

private:
    void read_nodes();
    void read_pci();
    bool is_this_pods(const std::string& bus_id) const;
    std::set<std::string> cards_given_away(const std::vector<std::string>& bus_ids);
    void read_block_devices();
    void read_virtual_rdma();
    void add_endpoint(const std::string& bus_id, DeviceKind kind, std::string name = "");
    std::string endpoint_name(const std::string& folder, DeviceKind kind) const;
    std::string endpoint_model(const std::string& folder, DeviceKind kind) const;
    DeviceId parent_of(const std::vector<std::string>& walk, int numa_node);
    DeviceId bridge_of(const std::string& bus, int numa_node);
    void join(DeviceId device, DeviceId parent, const std::string& folder, const std::string& port_folder);
    PcieLink link_in(const std::string& folder, const char* which) const;
    PcieLink link_of(const std::string& folder, const std::string& port_folder);
    bool emulated_port(const std::string& folder) const;
    void replace_made_up_links();

    const driver::MachineFiles& files_;
    bool virtual_machine_ = false;
    PartsBuilder builder_;
    std::map<std::string, DeviceId> bridges_;  // by "0000:15"
    std::map<DeviceId, int> node_of_bridge_;
    std::map<std::string, DeviceId> switches_;  // by the upstream port's bus id
    std::size_t nodes_ = 0;
    std::map<std::string, int> nodes_of_gpus_;  // by bus id
    int assumed_links_ = 0;
    int virtual_functions_ = 0;
};

void SysfsReader::read_nodes() {
    const std::string folder = "/sys/devices/system/node";
    const std::string model = cpu_model(files_.text("/proc/cpuinfo").value_or(""));
    HostNodes found = read_host_nodes(files_);
    for (std::string& note : found.notes) builder_.note(std::move(note));
    nodes_of_gpus_ = std::move(found.of_gpus);
    nodes_ = found.nodes.size();
    for (const int node : found.nodes) {
        const Bytes memory = node_memory(files_, node);
        if (memory == 0)
            builder_.note(fmt::format("cpu:{}: its memory cannot be read from {}", node, folder));
        builder_.add({DeviceKind::cpu, node, "", model, "", node, memory});
    }
    if (!found.nodes.empty()) return;
    builder_.add({DeviceKind::cpu, 0, "", model, "", -1, kib_after(files_, "/proc/meminfo", "MemTotal:")});
    builder_.note(folder + " shows no NUMA nodes: all host memory is counted as cpu:0");
}

void SysfsReader::read_pci() {
    const std::string folder = "/sys/bus/pci/devices";
    const auto bus_ids = files_.names(folder);
    if (bus_ids.empty()) {
        builder_.note(folder + " shows no PCI devices: this is a sandbox, or a machine without PCI");
        return;
    }
    const std::set<std::string> given_away = cards_given_away(bus_ids);
    for (const std::string& bus_id : bus_ids) {
        const std::string at = folder + "/" + bus_id;
        const auto device_class = files_.number(at + "/class");
        if (!device_class) {
            builder_.note(fmt::format("{}: its class cannot be read", bus_id));
            continue;
        }
        const auto kind = kind_of_class(*device_class, files_.number(at + "/vendor") == nvidia);
        if (!kind) continue;
        if (files_.exists(at + "/physfn") && !is_this_pods(bus_id)) {
            ++virtual_functions_;
            continue;
        }
        if (given_away.count(bus_id) == 0) add_endpoint(bus_id, *kind);
    }
    read_block_devices();
    replace_made_up_links();
    for (const auto& [bridge, node] : node_of_bridge_) {
        const DeviceId cpu = cpu_of_node(builder_, node);
        if (node < 0 && nodes_ > 1) {
            builder_.device(bridge).properties["cpu_assumed"] = "yes";
            builder_.note(fmt::format("{}: the NUMA node of PCI bus {} is not told; counted as at {}",
                                      builder_.device(bridge).name, builder_.device(bridge).bus_id,
                                      builder_.device(cpu).name));
        }
        join_host_bridge(builder_, bridge, cpu);
    }
    if (virtual_functions_ > 0) {
        builder_.note(fmt::format("virtual functions of network cards or drives that are left out: {}",
                                  virtual_functions_));
    }
    if (assumed_links_ > 0) {
        builder_.note(fmt::format("PCIe links that do not show their speed and are counted as gen3 x16: {}",
                                  assumed_links_));
    }
}

// A pod sees the whole PCI tree, and the names of its own network devices alone: it was given a virtual function
// whose name it sees where it sees none of the card itself. A host sees both.
bool SysfsReader::is_this_pods(const std::string& bus_id) const {
    const std::string function = "/sys/bus/pci/devices/" + bus_id;
    for (const char* names : {"/net", "/infiniband"}) {
        if (!files_.names(function + names).empty() && files_.names(function + "/physfn" + names).empty())
            return true;
    }
    return false;
}

// The cards of such functions: the pod reaches nothing by them.
std::set<std::string> SysfsReader::cards_given_away(const std::vector<std::string>& bus_ids) {
    std::set<std::string> cards;
    for (const std::string& bus_id : bus_ids) {
        const std::string card = "/sys/bus/pci/devices/" + bus_id + "/physfn";
        if (!files_.exists(card) || !is_this_pods(bus_id)) continue;
        const std::string place = files_.real_path(card);
        if (files_.names(card + "/infiniband").empty()) cards.insert(place.substr(place.rfind('/') + 1));
    }
    if (!cards.empty())
        builder_.note(fmt::format("network cards of which this container has virtual functions alone: {}",
                                  cards.size()));
    return cards;
}

// Disks that hang at another PCI device than an NVMe controller: virtio, SATA, SAS.
void SysfsReader::read_block_devices() {
    for (const std::string& name : files_.names("/sys/block")) {
        const std::string place = files_.real_path("/sys/block/" + name);
        std::string bus_id;
        for (std::size_t at = place.find('/'); at != std::string::npos;) {
            const std::size_t next = place.find('/', at + 1);
            const std::string part = place.substr(at + 1, next == std::string::npos ? next : next - at - 1);
            if (is_bus_id(part)) bus_id = part;
            at = next;
        }
        if (bus_id.empty()) continue;
        const auto pci_class = files_.number("/sys/bus/pci/devices/" + bus_id + "/class");
        if (!pci_class || (*pci_class >> 8) == nvme_class) continue;
        add_endpoint(bus_id, DeviceKind::drive, "drive:" + name);
    }
}

// Soft-RoCE and the like: RDMA devices without a place in the PCI tree.
void SysfsReader::read_virtual_rdma() {
    for (const std::string& name : files_.names("/sys/class/infiniband")) {
        if (files_.exists("/sys/class/infiniband/" + name + "/device")) continue;
        builder_.add({DeviceKind::nic, builder_.next_index(DeviceKind::nic), "nic:" + name,
                      "software RDMA, no PCI device", "", -1, 0});
    }
}

void SysfsReader::add_endpoint(const std::string& bus_id, DeviceKind kind, std::string name) {
    const std::string folder = "/sys/bus/pci/devices/" + bus_id;
    const long told_node = files_.number(folder + "/numa_node").value_or(-1);
    const int numa_node = told_node >= 0 && told_node <= highest_node ? static_cast<int>(told_node) : -1;
    if (name.empty()) name = endpoint_name(folder, kind);
    const DeviceId device = builder_.add({kind, builder_.next_index(kind), std::move(name),
                                          endpoint_model(folder, kind), bus_id, numa_node, 0});
    if (const auto own = nodes_of_gpus_.find(bus_id); own != nodes_of_gpus_.end())
        builder_.device(device).properties["memory_node"] = fmt::format("{}", own->second);
    // The PCIe link of an NVSwitch is for management: no bytes of ours take it.
    if (kind == DeviceKind::nvswitch) return;

    // The bus ids from the root port down to the device, after the host bridge ("pci0000:15"). The last one
    // counts: an Intel VMD is a host bridge below another one.
    std::vector<std::string> walk;
    std::string rest = files_.real_path(folder);
    const auto start = rest.rfind("/pci");
    rest = start == std::string::npos ? "" : rest.substr(start + 4);
    while (!rest.empty()) {
        const auto slash = rest.find('/');
        walk.push_back(rest.substr(0, slash));
        rest = slash == std::string::npos ? "" : rest.substr(slash + 1);
    }
    // A tree without links to the real places: the device sits right below the bridge of its own bus.
    if (walk.size() < 2 || walk.back() != bus_id) walk = {bus_id.substr(0, bus_id.rfind(':')), bus_id};

    const DeviceId parent = parent_of(walk, numa_node);
    join(device, parent, folder, walk.size() > 2 ? "/sys/bus/pci/devices/" + walk[walk.size() - 2] : "");
}

// The switch or host bridge that an endpoint hangs below; makes the ones that are not there yet. walk[0] is
// the host bridge, walk[1] a root port, which belongs to it. After that ports come in pairs: the upstream
// port of a switch, which stands for the switch, and one of its downstream ports.
DeviceId SysfsReader::parent_of(const std::vector<std::string>& walk, int numa_node) {
    DeviceId parent = bridge_of(walk[0], numa_node);
    for (std::size_t i = 2; i + 1 < walk.size(); i += 2) {
        const auto known = switches_.find(walk[i]);
        if (known != switches_.end()) {
            parent = known->second;
            continue;
        }
        const std::string folder = "/sys/bus/pci/devices/" + walk[i];
        const DeviceId made =
            builder_.add({DeviceKind::pcie_switch, builder_.next_index(DeviceKind::pcie_switch), "",
                          endpoint_model(folder, DeviceKind::pcie_switch), walk[i], numa_node, 0});
        join(made, parent, folder, "/sys/bus/pci/devices/" + walk[i - 1]);
        switches_.emplace(walk[i], made);
        parent = made;
    }
    return parent;
}

DeviceId SysfsReader::bridge_of(const std::string& bus, int numa_node) {
    const auto known = bridges_.find(bus);
    if (known != bridges_.end()) {
        int& node = node_of_bridge_[known->second];
        if (node < 0) node = numa_node;
        return known->second;
    }
    const DeviceId made = builder_.add(
        {DeviceKind::host_bridge, builder_.next_index(DeviceKind::host_bridge), "", "", bus, numa_node, 0});
    bridges_.emplace(bus, made);
    node_of_bridge_.emplace(made, numa_node);
    return made;
}

PcieLink SysfsReader::link_in(const std::string& folder, const char* which) const {
    PcieLink link;
    link.generation = generation_in(files_.line(fmt::format("{}/{}_link_speed", folder, which)).value_or(""));
    const long lanes = files_.number(fmt::format("{}/{}_link_width", folder, which)).value_or(0);
    if (lanes >= 1 && lanes <= 32) link.lanes = static_cast<int>(lanes);  // 255: not known
    return link;
}

// What the link to a device can do: the lesser of the device and the port it is plugged into. Not what it
// runs at now, since idle GPUs train their links down.
PcieLink SysfsReader::link_of(const std::string& folder, const std::string& port_folder) {
    PcieLink best = link_in(folder, "max");
    const PcieLink now = link_in(folder, "current");
    if (best.generation == 0 || best.lanes == 0) best = now;
    const bool told = best.generation != 0 && best.lanes != 0;
    // A virtual function has the link of its card, and shows none.
    if (!told && files_.exists(folder + "/physfn")) return link_of(folder + "/physfn", port_folder);
    if (!told) return {};

    if (!port_folder.empty() && !emulated_port(port_folder)) {
        const PcieLink port = link_in(port_folder, "max");
        // A port that claims less than what already runs through it was made up by a hypervisor.
        const bool real = port.generation >= now.generation && port.lanes >= now.lanes;
        if (real && port.generation > 0 && port.lanes > 0) best = narrower(best, port);
    }
    return best;
}

// A hypervisor passes devices on, never the ports above them: those it makes up, and what they claim of their links
// with them. Without word of a hypervisor the vendors tell: QEMU's ports, the Texas Instruments switch that it imitates,
// VMware's.
bool SysfsReader::emulated_port(const std::string& folder) const {
    const long vendor = files_.number(folder + "/vendor").value_or(0);
    const long device = files_.number(folder + "/device").value_or(0);
    constexpr long redhat = 0x1b36;
    constexpr long vmware = 0x15ad;
    constexpr long texas_instruments = 0x104c;
    const bool x3130 = vendor == texas_instruments && (device == 0x8232 || device == 0x8233);
    return virtual_machine_ || vendor == redhat || vendor == vmware || x3130;
}

// A made-up switch may claim a link that is slower than all below it. Nothing tells the real one; it is taken to be as
// quick as the quickest below. From the leaves up: a switch is made before what hangs below it.
void SysfsReader::replace_made_up_links() {
    std::vector<Link>& links = builder_.parts().links;
    for (DeviceId id = static_cast<DeviceId>(builder_.parts().devices.size()); id-- > 0;) {
        Device& device = builder_.device(id);
        if (device.kind != DeviceKind::pcie_switch || !emulated_port("/sys/bus/pci/devices/" + device.bus_id))
            continue;
        Link* up = nullptr;
        const Link* slowest = nullptr;
        const Link* quickest = nullptr;
        for (Link& link : links) {
            if (link.a == id) up = &link;
            if (link.b != id) continue;
            if (slowest == nullptr || link.gb_per_s < slowest->gb_per_s) slowest = &link;
            if (quickest == nullptr || link.gb_per_s > quickest->gb_per_s) quickest = &link;
        }
        if (up == nullptr || slowest == nullptr || up->gb_per_s >= slowest->gb_per_s) continue;
        const auto words = [](const Link& link) {
            return fmt::format("gen{} x{}", pcie_generation_of(link.gb_per_s, link.width).value_or(0),
                               link.width);
        };
        device.properties["link_made_up"] = words(*up);
        builder_.note(
            fmt::format("{} ({}): its link of {} is made up by the virtual machine, since all below it are "
                        "quicker; counted as {}",
                        device.name, device.bus_id, words(*up), words(*quickest)));
        up->width = quickest->width;
        up->gb_per_s = quickest->gb_per_s;
    }
}

void SysfsReader::join(DeviceId device, DeviceId parent, const std::string& folder,
                       const std::string& port_folder) {
    PcieLink link = link_of(folder, port_folder);
    if (link.generation == 0) {
        // Devices that a hypervisor makes up have no PCIe link to speak of.
        ++assumed_links_;
        link = {3, 16};
    }
    builder_.join_pcie(device, parent, link.generation, link.lanes);
    if (builder_.device(device).kind != DeviceKind::gpu && builder_.device(device).kind != DeviceKind::nic)
        return;
    const PcieLink now = link_in(folder, "current");
    if (now.generation == 0 || now.lanes == 0) return;
    if (now.generation >= link.generation && now.lanes >= link.lanes) return;
    builder_.note(fmt::format(
        "{} ({}): the PCIe link runs at gen{} x{} now and can do gen{} x{}{}", builder_.device(device).name,
        builder_.device(device).bus_id, now.generation, now.lanes, link.generation, link.lanes,
        now.lanes == link.lanes ? "; idle devices slow down, look again under load" : ""));
}

std::string SysfsReader::endpoint_name(const std::string& folder, DeviceKind kind) const {
    const auto first = [&](const std::string& below) {
        const auto names = files_.names(folder + below);
        return names.empty() ? std::string() : names.front();
    };
    std::string name;
    if (kind == DeviceKind::nic) {
        name = first("/infiniband");
        if (name.empty()) name = first("/net");
        for (const std::string& child : name.empty() ? files_.names(folder) : std::vector<std::string>()) {
            if (numbered(child, "virtio")) name = first("/" + child + "/net");
        }
        if (name.empty()) name = folder.substr(folder.rfind('/') + 1);
        return "nic:" + name;
    }
    if (kind == DeviceKind::drive) {
        name = first("/nvme");
        if (name.empty()) name = folder.substr(folder.rfind('/') + 1);
        return "drive:" + name;
    }
    return {};
}

std::string SysfsReader::endpoint_model(const std::string& folder, DeviceKind kind) const {
    if (kind == DeviceKind::drive) {
        for (const std::string& name : files_.names(folder + "/nvme")) {
            if (const auto model = files_.line(folder + "/nvme/" + name + "/model")) return *model;
        }
    }
    return pci_model(files_.number(folder + "/vendor").value_or(0),
                     files_.number(folder + "/device").value_or(0));
}

}  // namespace

DeviceId cpu_of_node(const PartsBuilder& builder, int numa_node) {
    std::optional<DeviceId> first;
    for (DeviceId id = 0; id < builder.parts().devices.size(); ++id) {
        const Device& device = builder.device(id);
        if (device.kind != DeviceKind::cpu) continue;
        if (device.index == numa_node) return id;
        if (!first) first = id;
    }
    return first.value_or(0);
}

PartsBuilder read_sysfs(const driver::MachineFiles& files) {
    return SysfsReader(files).read();
}

}  // namespace sidestep::topology
