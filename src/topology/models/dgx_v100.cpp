// NVIDIA's machines with V100 GPUs: DGX-1 (V100, 32 GB) and DGX-2.
//
// DGX-1. NVLinks: the hybrid cube mesh as several independent `nvidia-smi topo -m` matrices of such machines
// print it (microsoft/msccl-tools tests/test_topologies.py, NVIDIA/nccl#302, #671; Li et al.,
// "Evaluating modern GPU interconnect", 2019). The same matrices give PIX between two GPUs and their card,
// PHB within a socket, SYS between sockets: a PCIe switch for two GPUs and a card, and one host bridge a
// socket. PCIe gen3 x16 throughout (the topology file in nccl#671: PEX 8764, 8 GT/s). Cards: DGX-1
// User Guide, interfaces enp5s0, enp12s0, enp132s0 and enp139s0. Processors, memory: DGX-1 data sheet
// (2 x Xeon E5-2698 v4, 512 GB). QPI: two links of 9.6 GT/s, two bytes a transfer (Intel ARK).
// Not modelled: the drives, which are SATA behind a RAID controller, and the two 10 Gb/s network ports.
//
// DGX-2. The matrix in NVIDIA/nccl-tests#78: NV6 between all GPUs; a card is PIX to two GPUs, PXB to
// two more, NODE to the rest of its socket. NVSwitch: NVIDIA "DGX-2/HGX-2 NVSwitch" (Hot Chips 30, 2018) and
// Fabric Manager user guide: twelve switches, six a baseboard, a link from each of the board's eight GPUs to
// each, and eight trunk links from each to its twin on the other board. Bus ids, cards: DGX-2 User Guide.
// Processors, memory: DGX-2 data sheet (2 x Xeon Platinum 8168, 1.5 TB). UPI: three links of 10.4 GT/s (ARK).
// Not modelled: the drives, since no public text says which PCIe switch they hang at.
//
// Both: memory of a GPU 32768 MiB, as nvidia-smi prints it. GPUs of different Broadwell or older sockets
// cannot reach each other over PCIe: the driver refuses different root complexes there (NVIDIA
// open-gpu-kernel-modules 595.45.04, p2p_caps.c: the list of Intel root ports).
#include <array>

#include "topology/link_rates.hpp"
#include "topology/models/machine_parts.hpp"
#include "topology/models/models.hpp"

namespace sidestep::topology::models {

namespace {

constexpr GpuKind v100_sxm2 = {"Tesla V100-SXM2-32GB", 32768 * mib, "7.0"};
constexpr GpuKind v100_sxm3 = {"Tesla V100-SXM3-32GB", 32768 * mib, "7.0"};

// QPI of 9.6 GT/s and UPI of 10.4 GT/s: two bytes a transfer.
constexpr double qpi_gb_per_s = 19.2;
constexpr double upi1_gb_per_s = 20.8;

// Two GPUs and a card under one PCIe switch.
struct Leaf {
    int socket;
    std::array<const char*, 2> gpu_bus_ids;
    const char* nic;
    const char* nic_bus_id;
};

constexpr std::array<Leaf, 4> dgx1_leaves = {{
    {0, {"0000:06:00.0", "0000:07:00.0"}, "mlx5_0", "0000:05:00.0"},
    {0, {"0000:0a:00.0", "0000:0b:00.0"}, "mlx5_1", "0000:0c:00.0"},
    {1, {"0000:85:00.0", "0000:86:00.0"}, "mlx5_2", "0000:84:00.0"},
    {1, {"0000:89:00.0", "0000:8a:00.0"}, "mlx5_3", "0000:8b:00.0"},
}};

// NVLinks between GPU i and GPU j; symmetric, six a GPU.
constexpr int dgx1_nvlinks[8][8] = {
    {0, 1, 1, 2, 2, 0, 0, 0},  //
    {1, 0, 2, 1, 0, 2, 0, 0},  //
    {1, 2, 0, 2, 0, 0, 1, 0},  //
    {2, 1, 2, 0, 0, 0, 0, 1},  //
    {2, 0, 0, 0, 0, 1, 1, 2},  //
    {0, 2, 0, 0, 1, 0, 2, 1},  //
    {0, 0, 1, 0, 1, 2, 0, 2},  //
    {0, 0, 0, 1, 2, 1, 2, 0},
};

// The cards mlx5_4 and mlx5_5 are the two ports of the one for storage.
constexpr std::array<Leaf, 8> dgx2_leaves = {{
    {0, {"0000:34:00.0", "0000:36:00.0"}, "mlx5_0", "0000:35:00.0"},
    {0, {"0000:39:00.0", "0000:3b:00.0"}, "mlx5_1", "0000:3a:00.0"},
    {0, {"0000:57:00.0", "0000:59:00.0"}, "mlx5_2", "0000:58:00.0"},
    {0, {"0000:5c:00.0", "0000:5e:00.0"}, "mlx5_3", "0000:5d:00.0"},
    {1, {"0000:b7:00.0", "0000:b9:00.0"}, "mlx5_6", "0000:b8:00.0"},
    {1, {"0000:bc:00.0", "0000:be:00.0"}, "mlx5_7", "0000:bd:00.0"},
    {1, {"0000:e0:00.0", "0000:e2:00.0"}, "mlx5_8", "0000:e1:00.0"},
    {1, {"0000:e5:00.0", "0000:e7:00.0"}, "mlx5_9", "0000:e6:00.0"},
}};

// The switch of a leaf, with everything below it.
DeviceId add_leaf(PartsBuilder& builder, const Leaf& leaf, const GpuKind& gpu, const NicKind& card) {
    const DeviceId pcie_switch = add_pcie_switch(builder, "PCIe gen3 switch", leaf.socket);
    for (const char* bus_id : leaf.gpu_bus_ids) {
        builder.join_pcie(add_gpu(builder, gpu, bus_id, leaf.socket), pcie_switch, 3, 16);
    }
    const DeviceId nic = add_nic(builder, card, leaf.nic, leaf.nic_bus_id, leaf.socket);
    builder.join_pcie(nic, pcie_switch, 3, 16);
    return pcie_switch;
}

void add_dgx2_nvswitches(PartsBuilder& builder) {
    constexpr int a_board = 6;
    std::array<DeviceId, 2 * a_board> switches{};
    for (DeviceId& id : switches) id = add_nvswitch(builder, "NVIDIA NVSwitch", "");
    for (DeviceId id = 0; id < switches.front(); ++id) {
        const Device& gpu = builder.device(id);
        if (gpu.kind != DeviceKind::gpu) continue;
        const std::size_t board = gpu.index < 8 ? 0 : a_board;
        for (std::size_t i = 0; i < a_board; ++i)
            builder.join_nvlink(id, switches[board + i], 1, nvlink2_gb_per_s);
    }
    for (std::size_t i = 0; i < a_board; ++i)
        builder.join_nvlink(switches[i], switches[i + a_board], 8, nvlink2_gb_per_s);
}

}  // namespace

Topology::Parts dgx_1v() {
    PartsBuilder builder;
    std::array<DeviceId, 2> cpus{};
    for (DeviceId& cpu : cpus) cpu = add_cpu(builder, "Intel Xeon E5-2698 v4", 256 * gib);
    for (std::size_t socket = 0; socket < cpus.size(); ++socket) {
        const DeviceId bridge = add_host_bridge(builder, static_cast<int>(socket));
        for (const Leaf& leaf : dgx1_leaves) {
            if (leaf.socket != static_cast<int>(socket)) continue;
            builder.join_pcie(add_leaf(builder, leaf, v100_sxm2, connectx4_edr), bridge, 3, 16);
        }
        join_host_bridge(builder, bridge, cpus[socket]);
    }
    builder.join({cpus[0], cpus[1], LinkKind::socket, 2, 2 * qpi_gb_per_s, socket_latency_us});

    std::vector<DeviceId> gpus;
    for (DeviceId id = 0; id < builder.parts().devices.size(); ++id) {
        if (builder.device(id).kind == DeviceKind::gpu) gpus.push_back(id);
    }
    for (std::size_t i = 0; i < gpus.size(); ++i) {
        for (std::size_t j = i + 1; j < gpus.size(); ++j) {
            const int links = dgx1_nvlinks[i][j];
            if (links > 0) builder.join_nvlink(gpus[i], gpus[j], links, nvlink2_gb_per_s);
        }
    }
    builder.parts().pcie_peers = PathClass::phb;
    return std::move(builder.parts());
}

Topology::Parts dgx_2() {
    PartsBuilder builder;
    std::array<DeviceId, 2> cpus{};
    for (DeviceId& cpu : cpus) cpu = add_cpu(builder, "Intel Xeon Platinum 8168", 768 * gib);
    for (std::size_t i = 0; i < dgx2_leaves.size(); i += 2) {
        const int socket = dgx2_leaves[i].socket;
        const DeviceId bridge = add_host_bridge(builder, socket);
        const DeviceId upper = add_pcie_switch(builder, "PCIe gen3 switch", socket);
        builder.join_pcie(upper, bridge, 3, 16);
        for (std::size_t below = i; below < i + 2; ++below) {
            builder.join_pcie(add_leaf(builder, dgx2_leaves[below], v100_sxm3, connectx5_edr), upper, 3, 16);
        }
        join_host_bridge(builder, bridge, cpus[static_cast<std::size_t>(socket)]);
    }
    NicKind storage = connectx5_edr;
    storage.link_layer = "Ethernet";
    storage.ports = 2;
    join_alone(builder, add_nic(builder, storage, "mlx5_4", "0000:86:00.0", 1), cpus[1], 3, 16);
    // All three UPI links of the processor are taken to be wired.
    builder.join({cpus[0], cpus[1], LinkKind::socket, 3, 3 * upi1_gb_per_s, socket_latency_us});
    add_dgx2_nvswitches(builder);
    return std::move(builder.parts());
}

}  // namespace sidestep::topology::models
