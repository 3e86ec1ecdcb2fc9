// Eight AMD Instinct MI300X on a two-socket machine.
//
// The tree of PCIe with its bus ids and cards is that of the published topology file ROCm/rccl
// tools/topo_expl/models/topo_8p_940.xml: processors of family 6, model 143 (Sapphire Rapids) with 56 cores;
// on each of eight host bridges a ConnectX-7 with its PCIe switch (15b3:1979) in two levels, and below it the
// bridge inside the GPU's package (1022:1500), all gen5 x16; so a GPU is PXB to its card. Between GPUs: a
// link of Infinity Fabric from each to each of the seven others, 16 lanes of 32 Gb/s, 64 GB/s one way (AMD
// CDNA 3 white paper: 128 GB/s both ways a link, 896 GB/s a GPU). Memory of a GPU: 192 GiB (MI300X data
// sheet). UPI: four links of 16 GT/s, taken to be wired. Host memory and drives vary with the maker and are
// left out.
#include <array>

#include "topology/link_rates.hpp"
#include "topology/models/machine_parts.hpp"
#include "topology/models/models.hpp"

namespace sidestep::topology::models {

namespace {

constexpr double xgmi_gb_per_s = 64;

struct OamSlot {
    int socket;
    const char* gpu_bus_id;
    const char* nic_bus_id;
    const char* nic;
};

constexpr std::array<OamSlot, 8> oam_slots = {{
    {0, "0000:0c:00.0", "0000:07:00.0", "mlx5_0"},
    {0, "0000:15:00.0", "0000:10:00.0", "mlx5_1"},
    {0, "0000:1e:00.0", "0000:19:00.0", "mlx5_2"},
    {0, "0000:69:00.0", "0000:64:00.0", "mlx5_3"},
    {1, "0000:9f:00.0", "0000:9a:00.0", "mlx5_4"},
    {1, "0000:af:00.0", "0000:aa:00.0", "mlx5_5"},
    {1, "0000:bf:00.0", "0000:ba:00.0", "mlx5_6"},
    {1, "0000:df:00.0", "0000:da:00.0", "mlx5_7"},
}};

DeviceId add_slot(PartsBuilder& builder, const OamSlot& slot, DeviceId cpu) {
    const DeviceId bridge = add_host_bridge(builder, slot.socket);
    const DeviceId upper = add_pcie_switch(builder, "NVIDIA ConnectX-7 PCIe switch", slot.socket);
    const DeviceId lower = add_pcie_switch(builder, "NVIDIA ConnectX-7 PCIe switch", slot.socket);
    const DeviceId inside = add_pcie_switch(builder, "AMD Instinct bridge", slot.socket);
    const DeviceId gpu = add_gpu(builder, {"AMD Instinct MI300X", 192 * gib}, slot.gpu_bus_id, slot.socket);
    builder.device(gpu).properties["gfx"] = "gfx942";
    const DeviceId nic = add_nic(builder, connectx7_ndr, slot.nic, slot.nic_bus_id, slot.socket);
    builder.join_pcie(upper, bridge, 5, 16);
    builder.join_pcie(lower, upper, 5, 16);
    builder.join_pcie(inside, lower, 5, 16);
    builder.join_pcie(gpu, inside, 5, 16);
    builder.join_pcie(nic, upper, 5, 16);
    join_host_bridge(builder, bridge, cpu);
    return gpu;
}

}  // namespace

Topology::Parts mi300x() {
    PartsBuilder builder;
    std::array<DeviceId, 2> cpus{};
    for (DeviceId& cpu : cpus) cpu = add_cpu(builder, "Intel Xeon (Sapphire Rapids)", 0);
    std::array<DeviceId, oam_slots.size()> gpus{};
    for (std::size_t i = 0; i < oam_slots.size(); ++i)
        gpus[i] = add_slot(builder, oam_slots[i], cpus[static_cast<std::size_t>(oam_slots[i].socket)]);
    builder.join({cpus[0], cpus[1], LinkKind::socket, 4, 4 * upi2_gb_per_s, socket_latency_us});
    for (std::size_t i = 0; i < gpus.size(); ++i) {
        for (std::size_t j = i + 1; j < gpus.size(); ++j)
            builder.join({gpus[i], gpus[j], LinkKind::xgmi, 1, xgmi_gb_per_s, nvlink_latency_us});
    }
    return std::move(builder.parts());
}

}  // namespace sidestep::topology::models
