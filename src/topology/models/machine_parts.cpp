#include "topology/models/machine_parts.hpp"

#include <fmt/format.h>

namespace sidestep::topology::models {

namespace {

DeviceId add(PartsBuilder& builder, DeviceKind kind, const char* model, const char* bus_id, int numa_node,
             Bytes memory = 0) {
    return builder.add({kind, builder.next_index(kind), "", model, bus_id, numa_node, memory});
}

}  // namespace

DeviceId add_cpu(PartsBuilder& builder, const char* model, Bytes memory) {
    return add(builder, DeviceKind::cpu, model, "", builder.next_index(DeviceKind::cpu), memory);
}

DeviceId add_host_bridge(PartsBuilder& builder, int numa_node) {
    return add(builder, DeviceKind::host_bridge, "", "", numa_node);
}

DeviceId add_pcie_switch(PartsBuilder& builder, const char* model, int numa_node) {
    return add(builder, DeviceKind::pcie_switch, model, "", numa_node);
}

DeviceId add_gpu(PartsBuilder& builder, const GpuKind& kind, const char* bus_id, int numa_node) {
    const DeviceId gpu = add(builder, DeviceKind::gpu, kind.model, bus_id, numa_node, kind.memory);
    if (*kind.cc != '\0') builder.device(gpu).properties["cc"] = kind.cc;
    return gpu;
}

DeviceId add_nic(PartsBuilder& builder, const NicKind& kind, const char* name, const char* bus_id,
                 int numa_node) {
    const DeviceId nic = builder.add({DeviceKind::nic, builder.next_index(DeviceKind::nic),
                                      fmt::format("nic:{}", name), kind.model, bus_id, numa_node});
    for (int port = 1; port <= kind.ports; ++port) {
        builder.device(nic).properties[fmt::format("port{}.rate", port)] = kind.rate;
        builder.device(nic).properties[fmt::format("port{}.link_layer", port)] = kind.link_layer;
    }
    return nic;
}

DeviceId add_drive(PartsBuilder& builder, const char* model, int numa_node) {
    const int index = builder.next_index(DeviceKind::drive);
    return builder.add({DeviceKind::drive, index, fmt::format("drive:nvme{}", index), model, "", numa_node});
}

DeviceId add_nvswitch(PartsBuilder& builder, const char* model, const char* bus_id) {
    return add(builder, DeviceKind::nvswitch, model, bus_id, -1);
}

void join_all_gpus(PartsBuilder& builder, DeviceId nvswitch, int links, double gb_per_s) {
    for (DeviceId id = 0; id < builder.parts().devices.size(); ++id) {
        if (builder.device(id).kind == DeviceKind::gpu) builder.join_nvlink(id, nvswitch, links, gb_per_s);
    }
}

void join_alone(PartsBuilder& builder, DeviceId device, DeviceId cpu, int generation, int lanes) {
    const DeviceId bridge = add_host_bridge(builder, builder.device(cpu).numa_node);
    builder.join_pcie(device, bridge, generation, lanes);
    join_host_bridge(builder, bridge, cpu);
}

}  // namespace sidestep::topology::models
