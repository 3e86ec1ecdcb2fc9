// NVIDIA's eight-GPU machines of PCIe gen5: DGX H100, DGX H200 and DGX B200.
//
// They share one host board. GPUs and network cards pair off: DGX H100/H200 User Guide, table 6 "Network
// Modules"; bus ids and names of the cards, with the two for storage: table 5 "Network Port Mapping". The
// DGX B200 has the same buses, with four more RDMA names before (its cards for managing NVLink) and
// BlueField-3 in the slots for storage (DGX B200 User Guide; public `ibdev2netdev` output).
// A GPU hangs below its ConnectX-7, which has a PCIe switch inside: the GPU's bus is the card's plus three,
// which leaves room for a second switch in between, as in the published topology file of another machine with
// these cards (ROCm/rccl topo_8p_940.xml, bridges 15b3:1979). So a GPU is PXB to its card, NODE to the others
// of its socket and SYS to the rest: what public `nvidia-smi topo -m` matrices of machines with eight B200,
// eight ConnectX-7 and two BlueField-3 print (vllm-project/vllm#16336). Each pair has a host bridge of
// its own; the cards for storage hang at the processors.
// NVLink: 18 links a GPU; 5, 5, 4 and 4 to the four NVSwitches of H100 and H200 (dumps of HGX machines), 9
// and 9 to the two of B200. Memory of a GPU: what nvidia-smi prints. Processors, host memory: the data sheets
// (2 x Xeon Platinum 8480C or 8570, 2 TB).
// Not modelled: the drives (eight U.2, two M.2), since no public text says where they hang; the cards for
// managing the machine and NVLink.
#include <array>
#include <vector>

#include "topology/link_rates.hpp"
#include "topology/models/machine_parts.hpp"
#include "topology/models/models.hpp"

namespace sidestep::topology::models {

namespace {

struct DgxSlot {
    int socket;
    const char* gpu_bus_id;
    const char* nic_bus_id;  // the guide names the interface ibp24s0 for bus 0x18, and so on
};

// One row a GPU.
constexpr std::array<DgxSlot, 8> dgx_slots = {{
    {0, "0000:1b:00.0", "0000:18:00.0"},
    {0, "0000:43:00.0", "0000:40:00.0"},
    {0, "0000:52:00.0", "0000:4f:00.0"},
    {0, "0000:61:00.0", "0000:5e:00.0"},
    {1, "0000:9d:00.0", "0000:9a:00.0"},
    {1, "0000:c3:00.0", "0000:c0:00.0"},
    {1, "0000:d1:00.0", "0000:ce:00.0"},
    {1, "0000:df:00.0", "0000:dc:00.0"},
}};

using Names = std::array<const char*, 8>;
constexpr Names hopper_nics = {"mlx5_0", "mlx5_3", "mlx5_4",  "mlx5_5",
                               "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"};
constexpr Names blackwell_nics = {"mlx5_4",  "mlx5_7",  "mlx5_8",  "mlx5_9",
                                  "mlx5_10", "mlx5_13", "mlx5_14", "mlx5_15"};

struct Machine {
    GpuKind gpu;
    const char* cpu;
    double upi_gb_per_s;  // of one of four links; all are taken to be wired
    Names nics;           // in the order of the slots
    NicKind storage;
    std::array<const char*, 2> storage_nics;  // on socket 0 at bus 29, on socket 1 at bus aa
    const char* nvswitch;
    std::vector<int> links_to_switch;  // of each GPU, one entry an NVSwitch
    double nvlink_gb_per_s;
};

// UPI of 20 GT/s, two bytes a transfer (Intel ARK, Xeon Platinum 8570).
constexpr double upi_20_gb_per_s = 40;

Machine hopper(const GpuKind& gpu) {
    NicKind storage = connectx7_ndr;
    storage.ports = 2;
    return {gpu,
            "Intel Xeon Platinum 8480C",
            upi2_gb_per_s,
            hopper_nics,
            storage,
            {"mlx5_1", "mlx5_7"},
            "NVIDIA NVSwitch 3",
            {5, 5, 4, 4},
            nvlink4_gb_per_s};
}

void add_slot(PartsBuilder& builder, const Machine& machine, std::size_t i, DeviceId cpu) {
    const DgxSlot& slot = dgx_slots[i];
    const DeviceId bridge = add_host_bridge(builder, slot.socket);
    const DeviceId upper = add_pcie_switch(builder, "NVIDIA ConnectX-7 PCIe switch", slot.socket);
    const DeviceId lower = add_pcie_switch(builder, "NVIDIA ConnectX-7 PCIe switch", slot.socket);
    const DeviceId gpu = add_gpu(builder, machine.gpu, slot.gpu_bus_id, slot.socket);
    const DeviceId nic = add_nic(builder, connectx7_ndr, machine.nics[i], slot.nic_bus_id, slot.socket);
    builder.join_pcie(upper, bridge, 5, 16);
    builder.join_pcie(lower, upper, 5, 16);
    builder.join_pcie(gpu, lower, 5, 16);
    builder.join_pcie(nic, upper, 5, 16);
    join_host_bridge(builder, bridge, cpu);
}

Topology::Parts eight_gpus(const Machine& machine) {
    PartsBuilder builder;
    std::array<DeviceId, 2> cpus{};
    for (DeviceId& cpu : cpus) cpu = add_cpu(builder, machine.cpu, 1024 * gib);
    for (std::size_t i = 0; i < dgx_slots.size(); ++i)
        add_slot(builder, machine, i, cpus[static_cast<std::size_t>(dgx_slots[i].socket)]);
    const std::array<const char*, 2> storage_bus_ids = {"0000:29:00.0", "0000:aa:00.0"};
    for (std::size_t socket = 0; socket < cpus.size(); ++socket) {
        const DeviceId nic = add_nic(builder, machine.storage, machine.storage_nics[socket],
                                     storage_bus_ids[socket], static_cast<int>(socket));
        join_alone(builder, nic, cpus[socket], 5, 16);
    }
    builder.join({cpus[0], cpus[1], LinkKind::socket, 4, 4 * machine.upi_gb_per_s, socket_latency_us});
    for (const int links : machine.links_to_switch)
        join_all_gpus(builder, add_nvswitch(builder, machine.nvswitch, ""), links, machine.nvlink_gb_per_s);
    return std::move(builder.parts());
}

}  // namespace

Topology::Parts dgx_h100() {
    return eight_gpus(hopper({"NVIDIA H100 80GB HBM3", 81559 * mib, "9.0"}));
}

Topology::Parts dgx_h200() {
    return eight_gpus(hopper({"NVIDIA H200", 143771 * mib, "9.0"}));
}

Topology::Parts dgx_b200() {
    NicKind storage = {"NVIDIA BlueField-3", "400 Gb/sec (4X NDR)", "InfiniBand", 2};
    return eight_gpus({{"NVIDIA B200", 183359 * mib, "10.0"},
                       "Intel Xeon Platinum 8570",
                       upi_20_gb_per_s,
                       blackwell_nics,
                       storage,
                       {"mlx5_5", "mlx5_11"},
                       "NVIDIA NVSwitch 5",
                       {9, 9},
                       nvlink5_gb_per_s});
}

}  // namespace sidestep::topology::models
