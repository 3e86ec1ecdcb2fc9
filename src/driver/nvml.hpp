// What NVIDIA's management library says about the GPUs of this machine.
//
// The library is loaded at run time, with prototypes of our own: the build needs no NVIDIA package.
// Tests stand in for the machine by deriving from Nvml, or for the library by a path of their own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

namespace sidestep::driver {

// How a GPU is given to this machine: nvmlGpuVirtualizationMode_t.
enum class NvmlVirtualization { none = 0, passthrough = 1, vgpu = 2, host_vgpu = 3, host_vsga = 4 };

// One GPU. What NVML would not tell stays at its default.
struct NvmlGpu {
    std::string name;    // "NVIDIA H200"
    std::string uuid;    // "GPU-..."
    std::string bus_id;  // as sysfs writes it: "0000:1b:00.0"
    Bytes memory = 0;
    Bytes bar1 = 0;
    int cc_major = 0;  // compute capability
    int cc_minor = 0;
    int pcie_generation = 0;      // the best that card and slot agree on, not what an idle GPU runs at
    int pcie_width = 0;           // lanes, likewise
    int numa_node = -1;           // only the first 64 nodes can be told
    int pcie_generation_now = 0;  // what the link runs at; idle GPUs slow it down
    int pcie_width_now = 0;
    std::optional<unsigned> pcie_replays;  // packets sent again since the driver was loaded
    std::optional<bool> mig;
    std::optional<NvmlVirtualization> virtualization;
    int c2c_links = 0;        // active NVLink-C2C links to the CPU of the package
    double c2c_gb_per_s = 0;  // of all of them, one direction; 0: not told
};

// What one GPU counted, since the driver was loaded unless it says otherwise. nullopt: not told.
struct NvmlCounters {
    using Count = std::optional<unsigned long long>;
    Count ecc_corrected;
    Count ecc_uncorrected;
    Count remapped_rows;                // for good, of memory that failed
    std::optional<bool> remap_pending;  // waits for a reset of the GPU
    std::optional<bool> remap_failed;   // no spare row is left
    Count nvlink_crc_errors;            // over all links
    Count nvlink_replays;
    Count nvlink_recoveries;
    std::optional<unsigned long long> slowed_by;  // NVML_CLOCKS_EVENT_REASON_*, at this moment
};

// Where a GPU stands in the fabric of NVSwitches: nvmlGpuFabricState_t.
enum class FabricState { not_supported = 0, not_started = 1, in_progress = 2, completed = 3 };

struct NvmlFabric {
    FabricState state = FabricState::not_supported;
    int status = 0;            // an nvmlReturn_t, of a completed registration; 0: well
    std::string cluster_uuid;  // 32 hexadecimal digits, all zero outside multi-node NVLink
    unsigned clique = 0;
    unsigned health = 0;  // NVML_GPU_FABRIC_HEALTH_MASK_*; 0: not told
};

enum class NvlinkRemote { unknown, gpu, cpu, nvswitch };

// One NVLink of a GPU.
struct NvmlLink {
    bool active = false;
    NvlinkRemote remote = NvlinkRemote::unknown;
    std::string remote_bus_id;  // empty: the driver does not tell (virtual machines, NVL72)
    double gb_per_s = 0;        // one direction; 0: not told
};

// What is asked of a pair of GPUs, and the answer: nvmlGpuP2PCapsIndex_t and nvmlGpuP2PStatus_t.
enum class P2pCapability { read = 0, write = 1, nvlink = 2, atomics = 3, pci = 4 };
enum class P2pStatus {
    ok = 0,
    chipset_not_supported = 1,
    gpu_not_supported = 2,
    ioh_topology_not_supported = 3,
    disabled_by_regkey = 4,
    not_supported = 5,
    unknown = 6,
};

// The deepest thing two GPUs have in common: nvmlGpuTopologyLevel_t.
enum class CommonAncestor {
    internal = 0,
    single_switch = 10,
    several_switches = 20,
    host_bridge = 30,
    numa_node = 40,
    system = 50,
};

// All methods may be called from several threads at once. Indices are NVML's, from 0 to gpu_count() - 1;
// CUDA_VISIBLE_DEVICES does not change them.
class Nvml {
public:
    virtual ~Nvml() = default;

    // Empty where it is not told.
    virtual std::string driver_version() const = 0;
    virtual Result<int> gpu_count() const = 0;
    // Fails only where there is no such GPU to be had: no permission, fallen off the bus.
    virtual Result<NvmlGpu> gpu(int index) const = 0;
    // Every NVLink the GPU has, active or not; none for a GPU without NVLink.
    virtual Result<std::vector<NvmlLink>> links(int index) const = 0;
    virtual Result<P2pStatus> p2p(int from, int to, P2pCapability capability) const = 0;
    virtual Result<CommonAncestor> common_ancestor(int a, int b) const = 0;
    // ErrorCode::unsupported where the driver or the GPU knows no fabric.
    virtual Result<NvmlFabric> fabric(int index) const = 0;
    virtual Result<NvmlCounters> counters(int index) const;
    // Whether the machine's GPUs work in confidential computing mode.
    virtual Result<bool> confidential_computing() const = 0;
};

// Loads and initialises the library. Fails with ErrorCode::unsupported, saying why: no library, one
// that lacks functions, or a driver that is not loaded. Shut down when the object is destroyed.
Result<std::unique_ptr<Nvml>> load_nvml(const std::string& library = "libnvidia-ml.so.1");

// The GB/s of one NVLink in one direction by compute capability, as nvidia-smi shows it, for drivers
// that do not tell the speed; 0 for GPUs without NVLink.
double nvlink_gb_per_s(int cc_major, int cc_minor);

}  // namespace sidestep::driver
