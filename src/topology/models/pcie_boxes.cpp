// Machines whose GPUs meet over PCIe alone. No vendor's machine: each is the plainest one of its kind.
//
// pcie-4l40s: four L40S in the "single root" layout that server makers offer: a PCIe gen4 switch below one
// processor, two more below it, each with two GPUs, a ConnectX-7 of 200 Gb/s and two drives. Cards and drives
// stand below the switch of the GPUs, as the NVIDIA-Certified Systems Configuration Guide asks, with one card
// for two GPUs. Below a common switch the driver lets GPUs reach each other whatever the processor is
// (NVIDIA open-gpu-kernel-modules 595.45.04, p2p_caps.c).
//
// pcie-2s: two GPUs on each of two sockets, each on a host bridge of its own, as the matrix of `nvidia-smi
// topo -m` of a two-socket EPYC machine with 96 cores a socket shows (warpem/miss-alignment#106): NODE
// within a socket, SYS across, NODE to the card. A card and a drive a socket. On EPYC the driver lets GPUs
// reach each other across host bridges and sockets (same file).
//
// laptop: a GeForce on eight gen4 lanes, one NVMe drive, 2.5 Gb/s Ethernet, all on one host bridge. The
// processor's own graphics are not modelled.
//
// Memory of a GPU: what nvidia-smi prints. Host memory is made up: 256 GiB a socket, 32 GiB.
#include <array>

#include "topology/link_rates.hpp"
#include "topology/models/machine_parts.hpp"
#include "topology/models/models.hpp"

namespace sidestep::topology::models {

namespace {

constexpr GpuKind l40s = {"NVIDIA L40S", 46068 * mib, "8.9"};
constexpr GpuKind a100_pcie = {"NVIDIA A100 80GB PCIe", 81920 * mib, "8.0"};
constexpr GpuKind laptop_gpu = {"NVIDIA GeForce RTX 4070 Laptop GPU", 8188 * mib, "8.9"};

constexpr NicKind connectx7_200 = {"NVIDIA ConnectX-7", "200 Gb/sec (2X NDR)", "InfiniBand"};

// Between EPYC 9004 sockets: up to four links of 16 lanes of 32 GT/s (AMD); three are taken to be wired, as
// in machines with 160 PCIe lanes.
constexpr int xgmi3_links = 3;
constexpr double xgmi3_gb_per_s = 64;

// Under one of the lower switches of the machine with L40S.
void add_l40s_pair(PartsBuilder& builder, DeviceId upper, int number) {
    const char* const model = "PCIe gen4 switch";
    const DeviceId lower = add_pcie_switch(builder, model, 0);
    builder.join_pcie(lower, upper, 4, 16);
    for (int gpu = 0; gpu < 2; ++gpu) builder.join_pcie(add_gpu(builder, l40s, "", 0), lower, 4, 16);
    const DeviceId nic = add_nic(builder, connectx7_200, number == 0 ? "mlx5_0" : "mlx5_1", "", 0);
    builder.join_pcie(nic, lower, 4, 16);
    for (int drive = 0; drive < 2; ++drive)
        builder.join_pcie(add_drive(builder, "NVMe drive", 0), lower, 4, 4);
}

// One socket of the machine with GPUs at the processors.
void add_socket(PartsBuilder& builder, DeviceId cpu, const char* nic_name) {
    const int numa_node = builder.device(cpu).numa_node;
    for (int i = 0; i < 2; ++i) join_alone(builder, add_gpu(builder, a100_pcie, "", numa_node), cpu, 4, 16);
    const DeviceId bridge = add_host_bridge(builder, numa_node);
    builder.join_pcie(add_nic(builder, connectx6_hdr, nic_name, "", numa_node), bridge, 4, 16);
    builder.join_pcie(add_drive(builder, "NVMe drive", numa_node), bridge, 4, 4);
    join_host_bridge(builder, bridge, cpu);
}

}  // namespace

Topology::Parts pcie_4l40s() {
    PartsBuilder builder;
    std::array<DeviceId, 2> cpus{};
    for (DeviceId& cpu : cpus) cpu = add_cpu(builder, "", 256 * gib);
    const DeviceId bridge = add_host_bridge(builder, 0);
    const DeviceId upper = add_pcie_switch(builder, "PCIe gen4 switch", 0);
    builder.join_pcie(upper, bridge, 4, 16);
    for (int number = 0; number < 2; ++number) add_l40s_pair(builder, upper, number);
    join_host_bridge(builder, bridge, cpus[0]);
    builder.join({cpus[0], cpus[1], LinkKind::socket, 1, assumed_socket_gb_per_s, socket_latency_us});
    builder.parts().pcie_peers = PathClass::pxb;
    return std::move(builder.parts());
}

Topology::Parts pcie_2s() {
    PartsBuilder builder;
    std::array<DeviceId, 2> cpus{};
    for (DeviceId& cpu : cpus) cpu = add_cpu(builder, "AMD EPYC 9654", 256 * gib);
    add_socket(builder, cpus[0], "mlx5_0");
    add_socket(builder, cpus[1], "mlx5_1");
    builder.join(
        {cpus[0], cpus[1], LinkKind::socket, xgmi3_links, xgmi3_links * xgmi3_gb_per_s, socket_latency_us});
    builder.parts().pcie_peers = PathClass::sys;
    return std::move(builder.parts());
}

Topology::Parts laptop() {
    PartsBuilder builder;
    const DeviceId cpu = add_cpu(builder, "", 32 * gib);
    const DeviceId bridge = add_host_bridge(builder, 0);
    builder.join_pcie(add_gpu(builder, laptop_gpu, "", 0), bridge, 4, 8);
    builder.join_pcie(add_drive(builder, "NVMe drive", 0), bridge, 4, 4);
    const DeviceId nic = builder.add({DeviceKind::nic, 0, "nic:eth0", "2.5 Gb/s Ethernet", "", 0});
    builder.device(nic).properties["net_mb_per_s"] = "2500";
    builder.join_pcie(nic, bridge, 2, 1);
    join_host_bridge(builder, bridge, cpu);
    return std::move(builder.parts());
}

}  // namespace sidestep::topology::models
