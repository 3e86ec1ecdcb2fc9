// What the built-in machines are put together from.
//
// Each function adds one device with the next index of its kind and returns where it is; DeviceIds stay
// valid. All but cpus get a name made of kind and index, network cards the name Linux gives them.
#pragma once

#include "topology/parts_builder.hpp"

namespace sidestep::topology::models {

struct GpuKind {
    const char* model;    // as nvidia-smi prints it
    Bytes memory;         // as nvidia-smi prints it: what the driver keeps for itself is taken off
    const char* cc = "";  // compute capability, as the property "cc" has it
};

struct NicKind {
    const char* model;
    const char* rate;        // of each port, as /sys/class/infiniband/*/ports/*/rate has it
    const char* link_layer;  // "InfiniBand" or "Ethernet", as it comes out of the factory
    int ports = 1;
};

inline constexpr NicKind connectx4_edr = {"NVIDIA ConnectX-4", "100 Gb/sec (4X EDR)", "InfiniBand"};
inline constexpr NicKind connectx5_edr = {"NVIDIA ConnectX-5", "100 Gb/sec (4X EDR)", "InfiniBand"};
inline constexpr NicKind connectx6_hdr = {"NVIDIA ConnectX-6", "200 Gb/sec (4X HDR)", "InfiniBand"};
inline constexpr NicKind connectx7_ndr = {"NVIDIA ConnectX-7", "400 Gb/sec (4X NDR)", "InfiniBand"};

DeviceId add_cpu(PartsBuilder& builder, const char* model, Bytes memory);
DeviceId add_host_bridge(PartsBuilder& builder, int numa_node);
DeviceId add_pcie_switch(PartsBuilder& builder, const char* model, int numa_node);
DeviceId add_gpu(PartsBuilder& builder, const GpuKind& kind, const char* bus_id, int numa_node);
// `name` is what Linux calls the card: "mlx5_0". A card with two ports is one device here, called after
// its first port, since both share the card's PCIe link.
DeviceId add_nic(PartsBuilder& builder, const NicKind& kind, const char* name, const char* bus_id,
                 int numa_node);
DeviceId add_drive(PartsBuilder& builder, const char* model, int numa_node);
DeviceId add_nvswitch(PartsBuilder& builder, const char* model, const char* bus_id);

// Adds an NVSwitch to which every GPU there is has `links` NVLinks.
void join_all_gpus(PartsBuilder& builder, DeviceId nvswitch, int links, double gb_per_s);

// A host bridge of its own for one device that hangs at the processor directly.
void join_alone(PartsBuilder& builder, DeviceId device, DeviceId cpu, int generation, int lanes);

// One NVLink in one direction, as `nvidia-smi nvlink -s` shows it: 25.781 on V100, 25 on A100, 26.562 on
// H100 and H200, 53.125 GB/s on B200 and GB200. The data sheets' 25, 25, 25 and 50 are nominal figures.
inline constexpr double nvlink2_gb_per_s = 25.78125;
inline constexpr double nvlink3_gb_per_s = 25;
inline constexpr double nvlink4_gb_per_s = 26.5625;
inline constexpr double nvlink5_gb_per_s = 53.125;

inline constexpr Bytes gib = Bytes{1} << 30;
inline constexpr Bytes mib = Bytes{1} << 20;

}  // namespace sidestep::topology::models
