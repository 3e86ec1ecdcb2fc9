#include "topology/properties_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "driver/p2pmem.hpp"
#include "topology/link_rates.hpp"
#include "topology/machine_facts_reader.hpp"
#include "topology/pci_names.hpp"

namespace sidestep::topology {

namespace {

using driver::MachineFiles;

void put(Properties& properties, const char* name, std::string value) {
    if (!value.empty()) properties[name] = std::move(value);
}

std::string last_part(const std::string& path) {
    return path.substr(path.rfind('/') + 1);
}

// "gen5 x16" of `current` or `max`; empty where it is not told.
std::string pcie_words(const MachineFiles& files, const std::string& folder, const char* which) {
    const auto speed = files.line(fmt::format("{}/{}_link_speed", folder, which));
    const auto width = files.number(fmt::format("{}/{}_link_width", folder, which));
    const auto generation = speed ? pcie_generation(std::strtod(speed->c_str(), nullptr)) : std::nullopt;
    if (!generation || !width || *width < 1 || *width > 32) return {};
    return fmt::format("gen{} x{}", *generation, *width);
}

// "64 MiB, published": memory that other PCI devices may reach, as an NVMe drive's controller memory buffer.
std::string peer_memory_words(const MachineFiles& files, const std::string& bus_id) {
    const auto memory = driver::find_peer_memory(files, bus_id);
    if (!memory) return {};
    return fmt::format("{}, {}", format_bytes(memory->size),
                       memory->published ? "published" : "not published");
}

void add_pci(Device& device, const MachineFiles& files) {
    const std::string folder = fmt::format("/sys/bus/pci/devices/{}", device.bus_id);
    put(device.properties, "pcie_now", pcie_words(files, folder, "current"));
    put(device.properties, "pcie_max", pcie_words(files, folder, "max"));
    put(device.properties, "iommu_group", iommu_group(files, device.bus_id).value);
    put(device.properties, "driver", last_part(files.real_path(folder + "/driver")));
    put(device.properties, "p2pmem", peer_memory_words(files, device.bus_id));
}

const char* words(driver::FabricState state) {
    switch (state) {
        case driver::FabricState::not_supported:
            return "not supported";
        case driver::FabricState::not_started:
            return "not started";
        case driver::FabricState::in_progress:
            return "in progress";
        case driver::FabricState::completed:
            return "completed";
    }
    return "";
}

const char* words(driver::NvmlVirtualization mode) {
    switch (mode) {
        case driver::NvmlVirtualization::none:
            return "none";
        case driver::NvmlVirtualization::passthrough:
            return "pass-through";
        case driver::NvmlVirtualization::vgpu:
            return "vgpu";
        case driver::NvmlVirtualization::host_vgpu:
            return "host of vgpu";
        case driver::NvmlVirtualization::host_vsga:
            return "host of vsga";
    }
    return "";
}

void add_gpu(Device& device, const driver::Nvml& nvml) {
    const auto facts = nvml.gpu(device.index);
    if (!facts.ok()) return;
    Properties& properties = device.properties;
    if (facts->cc_major > 0) properties["cc"] = fmt::format("{}.{}", facts->cc_major, facts->cc_minor);
    if (facts->bar1 > 0) properties["bar1"] = std::to_string(facts->bar1);
    if (facts->mig) properties["mig"] = *facts->mig ? "on" : "off";
    if (facts->virtualization) properties["virtualization"] = words(*facts->virtualization);
    if (facts->pcie_replays) properties["pcie_replays"] = std::to_string(*facts->pcie_replays);
    if (const auto links = nvml.links(device.index); links.ok() && !links->empty()) {
        std::size_t active = 0;
        for (const driver::NvmlLink& link : *links) active += link.active ? 1 : 0;
        properties["nvlinks"] = fmt::format("{} of {}", active, links->size());
    }
    if (const auto fabric = nvml.fabric(device.index); fabric.ok()) {
        properties["fabric"] = words(fabric->state);
        if (fabric->state == driver::FabricState::completed)
            properties["fabric_clique"] = std::to_string(fabric->clique);
    }
}

// "1: RoCE v2 (eth2)": the index, type and network device of each GID in use. The address is left out.
std::string gid_words(const MachineFiles& files, const std::string& port) {
    std::string all;
    for (const std::string& index : files.names(port + "/gids")) {
        const std::string gid = files.line(port + "/gids/" + index).value_or("");
        if (gid.empty() || gid.find_first_not_of("0:") == std::string::npos) continue;
        const std::string type = files.line(port + "/gid_attrs/types/" + index).value_or("unknown type");
        const std::string netdev = files.line(port + "/gid_attrs/ndevs/" + index).value_or("");
        all += fmt::format("{}{}: {}{}", all.empty() ? "" : ", ", index, type,
                           netdev.empty() ? "" : " (" + netdev + ")");
    }
    return all;
}

void add_rdma(Device& device, const MachineFiles& files, const std::string& name) {
    const std::string folder = "/sys/class/infiniband/" + name;
    device.properties["rdma"] = name;
    put(device.properties, "netdev", files.line(folder + "/parent").value_or(""));
    for (const std::string& number : files.names(folder + "/ports")) {
        const std::string port = folder + "/ports/" + number;
        const std::string prefix = "port" + number + ".";
        for (const char* fact : {"state", "phys_state", "rate", "link_layer"})
            put(device.properties, (prefix + fact).c_str(), files.line(port + "/" + fact).value_or(""));
        put(device.properties, (prefix + "gids").c_str(), gid_words(files, port));
    }
}

// The second memory region (BAR1) is the window into a GPU's memory.
void add_gpu_window(Device& device, const MachineFiles& files) {
    const Bytes now = bar_size(files, device.bus_id, 1);
    const Bytes max = bar_largest(files, device.bus_id, 1);
    if (now > 0) device.properties["bar1"] = std::to_string(now);
    if (max > 0) device.properties["bar1_largest"] = std::to_string(max);
}

void add_nic(Device& device, const MachineFiles& files) {
    const std::string folder = fmt::format("/sys/bus/pci/devices/{}", device.bus_id);
    const std::string name = device.name.substr(device.name.find(':') + 1);
    if (files.exists("/sys/class/infiniband/" + name)) add_rdma(device, files, name);
    for (const std::string& netdev :
         device.bus_id.empty() ? std::vector<std::string>() : files.names(folder + "/net")) {
        put(device.properties, "netdev", netdev);
        put(device.properties, "operstate",
            files.line("/sys/class/net/" + netdev + "/operstate").value_or(""));
        const long speed = files.number("/sys/class/net/" + netdev + "/speed").value_or(-1);
        if (speed > 0) device.properties["net_mb_per_s"] = std::to_string(speed);
    }
}

void add_drive(Device& device, const MachineFiles& files) {
    const std::string name = device.name.substr(device.name.find(':') + 1);
    put(device.properties, "transport", files.line("/sys/class/nvme/" + name + "/transport").value_or(""));
    // An NVMe controller's block devices are its namespaces: nvme0n1, nvme0n2.
    std::string blocks;
    for (const std::string& block : files.names("/sys/block")) {
        if (block == name || block.starts_with(name + "n")) blocks += (blocks.empty() ? "" : ", ") + block;
    }
    put(device.properties, "block", blocks);
}

// Whether the ports below a switch redirect: asked between neighbours among its devices.
void add_access_control(PartsBuilder& builder, const MachineFiles& files) {
    std::map<DeviceId, std::vector<DeviceId>> below;
    for (const Link& link : builder.parts().links) {
        for (const auto& [upper, lower] : {std::pair(link.a, link.b), std::pair(link.b, link.a)}) {
            if (link.kind == LinkKind::pcie && builder.device(upper).kind == DeviceKind::pcie_switch &&
                builder.device(lower).kind > DeviceKind::host_bridge)
                below[upper].push_back(lower);
        }
    }
    for (const auto& [id, devices] : below) {
        for (std::size_t i = 0; i + 1 < devices.size(); ++i) {
            const AcsBetween acs =
                acs_between(files, builder.device(devices[i]).bus_id, builder.device(devices[i + 1]).bus_id);
            Device& device = builder.device(id);
            std::string& said = device.properties["acs"];
            if (said.empty() || acs.state == "on")
                said = acs.state == "unknown" ? acs.state : acs.state + " (" + acs.how + ")";
            device.acs_redirect = device.acs_redirect || acs.state == "on";
        }
    }
}

void add_machine(Topology::Parts& parts, const MachineSource& source) {
    Properties& properties = parts.properties;
    const MachineFiles& files = source.files;
    put(properties, "kernel", kernel_release(files).value);
    put(properties, "iommu", iommu_mode(files).value);
    put(properties, "hypervisor", hypervisor(files).value);
    put(properties, "container", container(files).value);
    put(properties, "nvidia_driver", nvidia_driver(files).value);
    put(properties, "nvidia_driver_kind", nvidia_driver_kind(files).value);
    put(properties, "nvidia_peermem", nvidia_peermem(files).value);
    put(properties, "nvidia_fs", nvidia_fs(files).value);
    // The kernel's list of symbols is megabytes long, and each machine is asked before its first copy.
    const auto is_nvme = [](const Device& device) { return device.name.starts_with("drive:nvme"); };
    if (std::any_of(parts.devices.begin(), parts.devices.end(), is_nvme))
        put(properties, "kernel_p2pdma", kernel_p2pdma(files).value);
    if (!source.nvml) return;
    put(properties, "nvml_driver", source.nvml->driver_version());
    if (const auto on = source.nvml->confidential_computing(); on.ok())
        properties["confidential_computing"] = *on ? "on" : "off";
}

}  // namespace

void add_properties(PartsBuilder& builder, const MachineSource& source) {
    for (Device& device : builder.parts().devices) {
        if (!device.bus_id.empty() && device.kind != DeviceKind::host_bridge) add_pci(device, source.files);
        if (device.kind == DeviceKind::cpu) {
            put(device.properties, "cpus",
                source.files.line(fmt::format("/sys/devices/system/node/node{}/cpulist", device.index))
                    .value_or(""));
        }
        if (device.kind == DeviceKind::gpu) add_gpu_window(device, source.files);
        if (device.kind == DeviceKind::gpu && source.nvml) add_gpu(device, *source.nvml);
        if (device.kind == DeviceKind::nic) add_nic(device, source.files);
        if (device.kind == DeviceKind::drive) add_drive(device, source.files);
    }
    add_access_control(builder, source.files);
    add_machine(builder.parts(), source);
}

}  // namespace sidestep::topology
