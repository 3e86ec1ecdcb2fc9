// NVIDIA DGX A100 (640 GB).
//
// Sources. The matrix of `nvidia-smi topo -m` and the NCCL topology file in NVIDIA/nccl#1505: NV12
// between all GPUs; two GPUs and two cards are PXB to each other below one PCIe switch that shows itself in
// two levels (Broadcom, 1000:c010, gen4 x16); the pairs of GPUs are on NUMA nodes 3, 1, 7 and 5, and the card
// for storage at bus 61 on node 0, since the processors run with four NUMA nodes each. NVLink: two links from
// each GPU to each of six NVSwitches, c4 to c9, in the same file. Cards: DGX A100 User Guide, interfaces
// ibp12s0, ibp18s0, ibp75s0, ibp84s0, ibp141s0, ibp148s0, ibp186s0, ibp204s0, and enp97s0f0 and enp225s0f0
// for storage. Memory of a GPU: 81920 MiB in nvidia-smi. Processors, memory: the data sheet (2 x EPYC 7742, 2
// TB). Not modelled: the drives, since no public text says which PCIe switch they hang at.
#include <array>

#include "topology/link_rates.hpp"
#include "topology/models/machine_parts.hpp"
#include "topology/models/models.hpp"

namespace sidestep::topology::models {

namespace {

constexpr GpuKind a100 = {"NVIDIA A100-SXM4-80GB", 81920 * mib, "8.0"};

// One link between the sockets: 16 lanes of 18 GT/s (AMD, EPYC 7002). The machine is taken to have all
// four, each between the NUMA nodes of one number on both sockets.
constexpr double xgmi2_gb_per_s = 36;
// Between NUMA nodes of one socket nothing is published. They are taken to pass on what a node's memory
// gives: two channels of DDR4-3200.
constexpr double within_socket_gb_per_s = 51.2;

struct Group {
    int numa_node;
    std::array<const char*, 2> gpu_bus_ids;
    std::array<const char*, 2> nics;
    std::array<const char*, 2> nic_bus_ids;
};

constexpr std::array<Group, 4> groups = {{
    {3, {"0000:07:00.0", "0000:0f:00.0"}, {"mlx5_0", "mlx5_1"}, {"0000:0c:00.0", "0000:12:00.0"}},
    {1, {"0000:47:00.0", "0000:4e:00.0"}, {"mlx5_2", "mlx5_3"}, {"0000:4b:00.0", "0000:54:00.0"}},
    {7, {"0000:87:00.0", "0000:90:00.0"}, {"mlx5_6", "mlx5_7"}, {"0000:8d:00.0", "0000:94:00.0"}},
    {5, {"0000:b7:00.0", "0000:bd:00.0"}, {"mlx5_8", "mlx5_9"}, {"0000:ba:00.0", "0000:cc:00.0"}},
}};

constexpr std::array<const char*, 6> nvswitch_bus_ids = {"0000:c4:00.0", "0000:c5:00.0", "0000:c6:00.0",
                                                         "0000:c7:00.0", "0000:c8:00.0", "0000:c9:00.0"};

// Below the second level of the switch: one device.
void join_below(PartsBuilder& builder, DeviceId device, DeviceId upper) {
    const DeviceId lower =
        add_pcie_switch(builder, "Broadcom PEX88000 gen4", builder.device(upper).numa_node);
    builder.join_pcie(lower, upper, 4, 16);
    builder.join_pcie(device, lower, 4, 16);
}

void add_group(PartsBuilder& builder, const Group& group, DeviceId cpu) {
    const DeviceId bridge = add_host_bridge(builder, group.numa_node);
    const DeviceId upper = add_pcie_switch(builder, "Broadcom PEX88000 gen4", group.numa_node);
    builder.join_pcie(upper, bridge, 4, 16);
    for (const char* bus_id : group.gpu_bus_ids)
        join_below(builder, add_gpu(builder, a100, bus_id, group.numa_node), upper);
    for (std::size_t i = 0; i < group.nics.size(); ++i) {
        const DeviceId nic =
            add_nic(builder, connectx6_hdr, group.nics[i], group.nic_bus_ids[i], group.numa_node);
        join_below(builder, nic, upper);
    }
    join_host_bridge(builder, bridge, cpu);
}

void join_numa_nodes(PartsBuilder& builder, const std::array<DeviceId, 8>& cpus) {
    for (std::size_t i = 0; i < cpus.size(); ++i) {
        for (std::size_t j = i + 1; j < cpus.size(); ++j) {
            const bool one_socket = i / 4 == j / 4;
            if (!one_socket && i % 4 != j % 4) continue;
            builder.join({cpus[i], cpus[j], LinkKind::socket, 1,
                          one_socket ? within_socket_gb_per_s : xgmi2_gb_per_s, socket_latency_us});
        }
    }
}

}  // namespace

Topology::Parts dgx_a100() {
    PartsBuilder builder;
    std::array<DeviceId, 8> cpus{};
    for (DeviceId& cpu : cpus) cpu = add_cpu(builder, "AMD EPYC 7742", 256 * gib);
    for (const Group& group : groups)
        add_group(builder, group, cpus[static_cast<std::size_t>(group.numa_node)]);
    NicKind storage = connectx6_hdr;
    storage.link_layer = "Ethernet";
    storage.ports = 2;
    join_alone(builder, add_nic(builder, storage, "mlx5_4", "0000:61:00.0", 0), cpus[0], 4, 16);
    join_alone(builder, add_nic(builder, storage, "mlx5_10", "0000:e1:00.0", 4), cpus[4], 4, 16);
    join_numa_nodes(builder, cpus);
    for (const char* bus_id : nvswitch_bus_ids) {
        join_all_gpus(builder, add_nvswitch(builder, "NVIDIA NVSwitch 2", bus_id), 2, nvlink3_gb_per_s);
    }
    return std::move(builder.parts());
}

}  // namespace sidestep::topology::models
