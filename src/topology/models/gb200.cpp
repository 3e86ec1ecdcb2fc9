// NVIDIA GB200 NVL72: the rack of 72 GPUs, and one of its compute trays.
//
// Sources. DGX SuperPOD GB200 reference architecture, "Network Fabrics": 18 compute trays; nine switch trays
// with two NVLink switch chips each; each GPU has 18 NVLinks, one to each of the 18 chips. A tray: two Grace
// with two GPUs each, one operating system (Multi-Node NVLink tuning guide). Cards: the port table of the
// DGX GB200 deployment guide (mlx5_0, 1, 4 and 5 are ConnectX-7 for the compute network, at 0000, 0002, 0010
// and 0012:03:00.0; mlx5_2 and mlx5_6 BlueField-3 at 0006 and 0016:03:00.0); a card's path in /sys goes
// through one switch, the card's own. GPUs at 0008, 0009, 0018 and 0019:01:00.0 with 189471 MiB, 480 GiB of
// LPDDR5X a Grace. NVLink-C2C: 900 GB/s both ways for a Grace's two GPUs (data sheet); NCCL topology files of
// such trays have <c2c bw="44712" count="5"/> a GPU, so 5 x 44.712 GB/s one way. Between the two Grace:
// 150 GB/s, the C-links in the drawing of the DGX SuperPOD reference architecture.
// The GPUs' PCIe link, which serves management only, is not modelled, nor are the drives (four E1.S and an
// M.2 a tray), since no public text says where they hang.
//
// A GPU and a card of one Grace come out as NODE: C2C leads to the same processor. `nvidia-smi topo -m`
// prints SYS there.
#include <fmt/format.h>

#include <array>

#include "topology/link_rates.hpp"
#include "topology/models/cluster.hpp"
#include "topology/models/machine_parts.hpp"
#include "topology/models/models.hpp"

namespace sidestep::topology::models {

namespace {

constexpr GpuKind gb200 = {"NVIDIA GB200", 189471 * mib, "10.0"};
constexpr NicKind bluefield3 = {"NVIDIA BlueField-3", "200 Gb/sec (4X HDR)", "Ethernet", 2};

constexpr int c2c_links = 5;
constexpr double c2c_gb_per_s = 44.712;
constexpr double c_link_gb_per_s = 150;

constexpr int trays = 18;
constexpr int nvswitches = 18;

struct Board {
    std::array<const char*, 2> gpu_bus_ids;
    std::array<const char*, 2> nics;
    std::array<const char*, 2> nic_bus_ids;
    const char* storage_nic;
    const char* storage_bus_id;
};

constexpr std::array<Board, 2> boards = {{
    {{"0008:01:00.0", "0009:01:00.0"},
     {"mlx5_0", "mlx5_1"},
     {"0000:03:00.0", "0002:03:00.0"},
     "mlx5_2",
     "0006:03:00.0"},
    {{"0018:01:00.0", "0019:01:00.0"},
     {"mlx5_4", "mlx5_5"},
     {"0010:03:00.0", "0012:03:00.0"},
     "mlx5_6",
     "0016:03:00.0"},
}};

// A card behind a switch and a host bridge that no other device shares.
void join_card(PartsBuilder& builder, DeviceId nic, const char* name, DeviceId cpu) {
    const DeviceId pcie_switch = add_pcie_switch(builder, name, builder.device(cpu).numa_node);
    builder.join_pcie(nic, pcie_switch, 5, 16);
    join_alone(builder, pcie_switch, cpu, 5, 16);
}

// A tray without NVLink.
PartsBuilder bare_tray() {
    PartsBuilder builder;
    std::array<DeviceId, 2> cpus{};
    for (DeviceId& cpu : cpus) cpu = add_cpu(builder, "NVIDIA Grace", 480 * gib);
    for (std::size_t i = 0; i < boards.size(); ++i) {
        const int numa_node = static_cast<int>(i);
        for (const char* bus_id : boards[i].gpu_bus_ids) {
            const DeviceId gpu = add_gpu(builder, gb200, bus_id, numa_node);
            builder.join({gpu, cpus[i], LinkKind::c2c, c2c_links, c2c_links * c2c_gb_per_s, c2c_latency_us});
        }
        for (std::size_t k = 0; k < boards[i].nics.size(); ++k) {
            const DeviceId nic =
                add_nic(builder, connectx7_ndr, boards[i].nics[k], boards[i].nic_bus_ids[k], numa_node);
            join_card(builder, nic, "NVIDIA ConnectX-7 PCIe switch", cpus[i]);
        }
    }
    // After all the cards of the compute network, so that those come first.
    for (std::size_t i = 0; i < boards.size(); ++i) {
        const DeviceId nic = add_nic(builder, bluefield3, boards[i].storage_nic, boards[i].storage_bus_id,
                                     static_cast<int>(i));
        join_card(builder, nic, "NVIDIA BlueField-3 PCIe switch", cpus[i]);
    }
    builder.join({cpus[0], cpus[1], LinkKind::socket, 1, c_link_gb_per_s, socket_latency_us});
    return builder;
}

}  // namespace

Topology::Parts gb200_tray() {
    PartsBuilder builder = bare_tray();
    for (int i = 0; i < nvswitches; ++i)
        join_all_gpus(builder, add_nvswitch(builder, "NVIDIA NVSwitch 5", ""), 1, nvlink5_gb_per_s);
    return std::move(builder.parts());
}

Topology::Parts gb200_nvl72() {
    Topology::Parts rack = copies(bare_tray().parts(), trays);
    const auto tray_devices = static_cast<DeviceId>(rack.devices.size());
    for (int i = 0; i < nvswitches; ++i) {
        const auto nvswitch = static_cast<DeviceId>(rack.devices.size());
        rack.devices.push_back({DeviceKind::nvswitch, i, device_name(DeviceKind::nvswitch, i),
                                "NVIDIA NVSwitch 5", "", -1, 0, -1});
        for (DeviceId id = 0; id < tray_devices; ++id) {
            if (rack.devices[id].kind == DeviceKind::gpu)
                rack.links.push_back(
                    {id, nvswitch, LinkKind::nvlink, 1, nvlink5_gb_per_s, nvlink_latency_us});
        }
    }
    return rack;
}

}  // namespace sidestep::topology::models
