// NVIDIA DGX H100: eight H100 SXM5, four NVSwitches, eight ConnectX-7 for the compute network.
//
// Sources. The pairing of GPUs and network cards and their names: DGX H100 User Guide, table 6 "Network
// Modules". GPUs and network cards share a PCIe switch, and each switch has a host bridge of its own: the
// matrices of `nvidia-smi topo -m` of such machines show PIX to one card, NODE or SYS to the others; eight
// bridges appear in published NCCL topology files. NVLink: 18 links a GPU, 5, 5, 4 and 4 to the four
// NVSwitches, in dumps of HGX H100 and H200 machines. Memory of a GPU: 81559 MiB in nvidia-smi (80 GiB less
// what the driver keeps). Host memory: 2 TiB (DGX H100 data sheet). The machine's two ConnectX-7 for storage
// and its drives are not modelled.
#include <fmt/format.h>

#include <array>

#include "topology/link_rates.hpp"
#include "topology/models/models.hpp"
#include "topology/parts_builder.hpp"

namespace sidestep::topology::models {

namespace {

struct Slot {
    int socket;
    const char* gpu_bus_id;
    const char* nic_bus_id;  // the guide names the interface ibp24s0 for bus 0x18, and so on
    const char* nic;
};

// One row a GPU. The GPUs' bus ids are those of published `nvidia-smi` output of a DGX H100.
constexpr std::array<Slot, 8> slots = {{
    {0, "0000:1b:00.0", "0000:18:00.0", "mlx5_0"},
    {0, "0000:43:00.0", "0000:40:00.0", "mlx5_3"},
    {0, "0000:52:00.0", "0000:4f:00.0", "mlx5_4"},
    {0, "0000:61:00.0", "0000:5e:00.0", "mlx5_5"},
    {1, "0000:9d:00.0", "0000:9a:00.0", "mlx5_6"},
    {1, "0000:c3:00.0", "0000:c0:00.0", "mlx5_9"},
    {1, "0000:d1:00.0", "0000:ce:00.0", "mlx5_10"},
    {1, "0000:df:00.0", "0000:dc:00.0", "mlx5_11"},
}};

constexpr std::array<int, 4> links_to_switch = {5, 5, 4, 4};

// One NVLink 4 in one direction, as `nvidia-smi nvlink -s` shows it. The data sheets' 25 (50 both ways)
// is the nominal figure.
constexpr double nvlink4_gb_per_s = 26.5625;

constexpr Bytes gpu_memory = Bytes{81559} << 20;
constexpr Bytes socket_memory = Bytes{1} << 40;

void add_slot(PartsBuilder& builder, const Slot& slot, int index, DeviceId cpu) {
    const DeviceId bridge = builder.add({DeviceKind::host_bridge, index, "", "", "", slot.socket, 0});
    const DeviceId pcie_switch =
        builder.add({DeviceKind::pcie_switch, index, "", "PCIe gen5 switch", "", slot.socket, 0});
    const DeviceId gpu = builder.add(
        {DeviceKind::gpu, index, "", "NVIDIA H100 80GB HBM3", slot.gpu_bus_id, slot.socket, gpu_memory});
    const DeviceId nic = builder.add({DeviceKind::nic, index, fmt::format("nic:{}", slot.nic),
                                      "NVIDIA ConnectX-7", slot.nic_bus_id, slot.socket, 0});
    builder.join_pcie(pcie_switch, bridge, 5, 16);
    builder.join_pcie(gpu, pcie_switch, 5, 16);
    builder.join_pcie(nic, pcie_switch, 5, 16);
    join_host_bridge(builder, bridge, cpu);
}

}  // namespace

Topology::Parts dgx_h100() {
    PartsBuilder builder;
    std::array<DeviceId, 2> cpus{};
    for (int socket = 0; socket < 2; ++socket) {
        cpus[static_cast<std::size_t>(socket)] = builder.add(
            {DeviceKind::cpu, socket, "", "Intel Xeon Platinum 8480C", "", socket, socket_memory});
    }
    for (std::size_t i = 0; i < slots.size(); ++i) {
        add_slot(builder, slots[i], static_cast<int>(i), cpus[static_cast<std::size_t>(slots[i].socket)]);
    }
    // All four UPI links of the processor are taken to be wired.
    builder.join({cpus[0], cpus[1], LinkKind::socket, 4, 4 * upi2_gb_per_s, socket_latency_us});

    for (std::size_t i = 0; i < links_to_switch.size(); ++i) {
        const int index = static_cast<int>(i);
        const DeviceId nvswitch =
            builder.add({DeviceKind::nvswitch, index, "", "NVIDIA NVSwitch 3", "", -1, 0});
        for (DeviceId id = 0; id < nvswitch; ++id) {
            if (builder.device(id).kind != DeviceKind::gpu) continue;
            builder.join_nvlink(id, nvswitch, links_to_switch[i], nvlink4_gb_per_s);
        }
    }
    return std::move(builder.parts());
}

}  // namespace sidestep::topology::models
