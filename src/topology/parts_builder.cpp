#include "topology/parts_builder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "topology/link_rates.hpp"

namespace sidestep::topology {

std::string device_name(DeviceKind kind, int index) {
    return fmt::format("{}:{}", to_string(kind), index);
}

int PartsBuilder::next_index(DeviceKind kind) const {
    int next = 0;
    for (const Device& device : parts_.devices) {
        if (device.kind == kind) next = std::max(next, device.index + 1);
    }
    return next;
}

DeviceId PartsBuilder::add(Device device) {
    if (device.name.empty()) device.name = device_name(device.kind, device.index);
    const auto taken = [&](const Device& other) { return other.name == device.name; };
    if (std::any_of(parts_.devices.begin(), parts_.devices.end(), taken)) {
        device.name += fmt::format("#{}", device.index);
    }
    parts_.devices.push_back(std::move(device));
    return static_cast<DeviceId>(parts_.devices.size() - 1);
}

void PartsBuilder::join_pcie(DeviceId a, DeviceId b, int generation, int lanes) {
    join({a, b, LinkKind::pcie, lanes, pcie_gb_per_s(generation, lanes), pcie_latency_us});
}

void PartsBuilder::join_nvlink(DeviceId a, DeviceId b, int links, double gb_per_s) {
    join({a, b, LinkKind::nvlink, links, links * gb_per_s, nvlink_latency_us});
}

void PartsBuilder::join(Link link) {
    parts_.links.push_back(link);
}

void PartsBuilder::note(std::string text) {
    parts_.notes.push_back(std::move(text));
}

void PartsBuilder::remove(const std::set<DeviceId>& ids) {
    std::vector<Device> devices;
    std::vector<DeviceId> moved_to(parts_.devices.size(), 0);
    for (DeviceId id = 0; id < parts_.devices.size(); ++id) {
        if (ids.count(id) != 0) continue;
        moved_to[id] = static_cast<DeviceId>(devices.size());
        devices.push_back(std::move(parts_.devices[id]));
    }
    std::vector<Link> links;
    for (Link link : parts_.links) {
        if (ids.count(link.a) != 0 || ids.count(link.b) != 0) continue;
        link.a = moved_to[link.a];
        link.b = moved_to[link.b];
        links.push_back(link);
    }
    parts_.devices = std::move(devices);
    parts_.links = std::move(links);
}

void join_cpus(PartsBuilder& builder, double gb_per_s) {
    std::vector<DeviceId> cpus;
    for (DeviceId id = 0; id < builder.parts().devices.size(); ++id) {
        if (builder.device(id).kind == DeviceKind::cpu) cpus.push_back(id);
    }
    for (std::size_t i = 0; i < cpus.size(); ++i) {
        for (std::size_t j = i + 1; j < cpus.size(); ++j) {
            builder.join({cpus[i], cpus[j], LinkKind::socket, 1, gb_per_s, socket_latency_us});
        }
    }
}

void join_host_bridge(PartsBuilder& builder, DeviceId bridge, DeviceId cpu) {
    Link up{bridge, cpu, LinkKind::pcie, 0, 0, host_bridge_latency_us};
    for (const Link& link : builder.parts().links) {
        if (link.a != bridge && link.b != bridge) continue;
        up.width += link.width;
        up.gb_per_s += link.gb_per_s;
    }
    if (up.width > 0) builder.join(up);
}

}  // namespace sidestep::topology
