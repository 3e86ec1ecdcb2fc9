#include "topology/lspci_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <vector>

#include "topology/link_rates.hpp"
#include "topology/parts_builder.hpp"

namespace sidestep::topology {

namespace {

constexpr std::size_t most_devices = 4096;
constexpr std::size_t deepest = 64;  // bridges above a device

struct Speed {
    int generation = 0;
    int lanes = 0;

    bool told() const { return pcie_gb_per_s(generation, lanes) > 0; }
};

struct Entry {
    std::string bus_id;     // "0000:1b:00.0"
    std::string kind;       // "3D controller"
    std::string model;      // "NVIDIA Corporation GH100 [H100 SXM5 80GB]"
    std::string secondary;  // of a bridge: "0000:1c", the bus below it
    int numa_node = -1;
    Speed can;
    Speed now;
    bool redirects = false;
    std::string driver;
};

std::string bus_of(const std::string& bus_id) {
    return bus_id.substr(0, bus_id.rfind(':'));
}

// "1b:00.0" or "0000:1b:00.0" at the start of a line; empty where there is none.
std::string address_of(const std::string& line) {
    unsigned domain = 0;
    unsigned bus = 0;
    unsigned device = 0;
    unsigned function = 0;
    if (std::sscanf(line.c_str(), "%8x:%2x:%2x.%1x ", &domain, &bus, &device, &function) != 4) {
        domain = 0;
        if (std::sscanf(line.c_str(), "%2x:%2x.%1x ", &bus, &device, &function) != 3) return {};
    }
    return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, bus, device, function);
}

// "Speed 16GT/s (downgraded), Width x8 (downgraded)"
Speed speed_in(const std::string& line) {
    Speed speed;
    const auto rate = line.find("Speed ");
    const auto width = line.find("Width x");
    if (rate == std::string::npos || width == std::string::npos) return speed;
    speed.generation = pcie_generation(std::strtod(line.c_str() + rate + 6, nullptr)).value_or(0);
    speed.lanes = std::atoi(line.c_str() + width + 7);
    return speed;
}

// "3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)"
void read_head(const std::string& line, Entry& entry) {
    const auto start = line.find(' ') + 1;
    const auto colon = line.find(": ", start);
    if (colon == std::string::npos) return;
    entry.kind = line.substr(start, colon - start);
    entry.model = line.substr(colon + 2);
    for (const char* end : {" (rev ", " (prog-if "})
        entry.model.resize(std::min(entry.model.find(end), entry.model.size()));
}

void read_detail(const std::string& line, Entry& entry) {
    const auto after = [&](const char* name) -> const char* {
        const auto at = line.find(name);
        return at == std::string::npos ? nullptr : line.c_str() + at + std::string_view(name).size();
    };
    if (const char* text = after("NUMA node: ")) entry.numa_node = std::atoi(text);
    if (const char* text = after("secondary="))
        entry.secondary = fmt::format("{}:{:02x}", entry.bus_id.substr(0, entry.bus_id.find(':')),
                                      std::strtoul(text, nullptr, 16) & 0xff);
    if (after("LnkCap:")) entry.can = speed_in(line);
    if (after("LnkSta:")) entry.now = speed_in(line);
    if (const char* text = after("Kernel driver in use: ")) entry.driver = text;
    if (after("ACSCtl:"))
        for (const char* bit : {"ReqRedir+", "CmpltRedir+", "UpstreamFwd+"})
            entry.redirects = entry.redirects || line.find(bit) != std::string::npos;
}

std::vector<Entry> parse(std::string_view text) {
    std::istringstream lines{std::string(text)};
    std::vector<Entry> entries;
    for (std::string line; std::getline(lines, line);) {
        const std::string bus_id = address_of(line);
        if (!bus_id.empty()) {
            if (entries.size() == most_devices) break;
            entries.push_back({});
            entries.back().bus_id = bus_id;
            read_head(line, entries.back());
        } else if (!entries.empty()) {
            read_detail(line, entries.back());
        }
    }
    return entries;
}

std::optional<DeviceKind> kind_of(const Entry& entry) {
    const auto is = [&](const char* kind) { return entry.kind.starts_with(kind); };
    // Functions that a card lends to guests have no link of their own.
    if (entry.model.find("Virtual Function") != std::string::npos) return std::nullopt;
    const bool display =
        is("3D controller") || is("VGA compatible controller") || is("Processing accelerators");
    if (display && (entry.model.starts_with("NVIDIA") || is("Processing accelerators")))
        return DeviceKind::gpu;
    if (is("Infiniband controller") || is("Ethernet controller")) return DeviceKind::nic;
    if (is("Non-Volatile memory controller")) return DeviceKind::drive;
    return std::nullopt;
}

class Tree {
public:
    explicit Tree(const std::vector<Entry>& entries) : entries_(entries) {
        for (const Entry& entry : entries)
            if (!entry.secondary.empty()) bridge_above_.emplace(entry.secondary, &entry);
    }

    Topology::Parts build() {
        std::set<int> nodes = {0};
        for (const Entry& entry : entries_)
            if (kind_of(entry) && entry.numa_node >= 0 && entry.numa_node < 1024)
                nodes.insert(entry.numa_node);
        for (const int node : nodes)
            cpus_.emplace(node, builder_.add({DeviceKind::cpu, node, "", "", "", node, 0}));
        join_cpus(builder_, assumed_socket_gb_per_s);
        for (const Entry& entry : entries_)
            if (const auto kind = kind_of(entry)) add(entry, *kind);
        for (const auto& [bus, bridge] : host_bridges_) {
            const auto cpu = cpus_.find(builder_.device(bridge).numa_node);
            join_host_bridge(builder_, bridge, cpu == cpus_.end() ? cpus_.begin()->second : cpu->second);
        }
        builder_.parts().emulated = true;
        builder_.note("lspci tells nothing of NVLinks, of memory and of a driver");
        if (assumed_ > 0)
            builder_.note(fmt::format(
                "PCIe links that do not show their speed and are counted as gen3 x16: {}", assumed_));
        return std::move(builder_.parts());
    }

private:
    // The bridges above a device, the highest first: a root port, then the ports of each switch in pairs.
    std::vector<const Entry*> walk_to(const Entry& entry) const {
        std::vector<const Entry*> walk;
        for (std::string bus = bus_of(entry.bus_id); walk.size() < deepest;) {
            const auto above = bridge_above_.find(bus);
            if (above == bridge_above_.end() || bus_of(above->second->bus_id) == bus) break;
            walk.push_back(above->second);
            bus = bus_of(above->second->bus_id);
        }
        std::reverse(walk.begin(), walk.end());
        return walk;
    }

    void add(const Entry& entry, DeviceKind kind) {
        const std::string name = kind == DeviceKind::nic     ? "nic:" + entry.bus_id
                                 : kind == DeviceKind::drive ? "drive:" + entry.bus_id
                                                             : "";
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
    DeviceId pcie_switch(const Entry& upstream, const Entry& port, DeviceId above, int numa_node) {
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
    void join(DeviceId id, DeviceId above, const Entry& entry, const Entry* port) {
        Speed can = entry.can;
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

    const std::vector<Entry>& entries_;
    std::map<std::string, const Entry*> bridge_above_;  // by the bus below it
    std::map<std::string, DeviceId> host_bridges_;      // by bus
    std::map<std::string, DeviceId> switches_;          // by upstream port
    std::map<int, DeviceId> cpus_;
    PartsBuilder builder_;
    int assumed_ = 0;
};

}  // namespace

bool is_lspci_text(std::string_view text) {
    return !address_of(std::string(text.substr(0, 16))).empty();
}

Result<Topology> read_lspci(std::string_view text, const std::string& where) {
    const auto entries = parse(text);
    if (std::none_of(entries.begin(), entries.end(),
                     [](const Entry& entry) { return kind_of(entry).has_value(); }))
        return Error{ErrorCode::invalid_argument, "there is no GPU, network card or NVMe drive in it", where,
                     "the file has to hold what lspci -vvv prints"};
    Topology::Parts parts = Tree(entries).build();
    parts.name = where;
    return Topology::create(std::move(parts));
}

}  // namespace sidestep::topology
