// What a machine is made of: devices, the links between them, and who may reach whom.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sidestep/api.h>
#include <sidestep/place.hpp>
#include <sidestep/units.hpp>

namespace sidestep {

enum class DeviceKind { cpu, host_bridge, pcie_switch, gpu, nvswitch, nic, drive };
enum class LinkKind { pcie, nvlink, c2c, socket };  // socket: UPI, Infinity Fabric, ... between CPUs

SIDESTEP_API std::string_view to_string(DeviceKind kind);
SIDESTEP_API std::string_view to_string(LinkKind kind);

// The position of a device in Topology::devices().
using DeviceId = std::uint32_t;

// One device. A `cpu` is one NUMA node: its cores and its memory.
struct Device {
    DeviceKind kind = DeviceKind::cpu;
    int index = 0;          // counts within the kind; of a GPU: NVML's number, of a cpu: the NUMA node
    std::string name;       // unique: "gpu:0", "cpu:1", "nvswitch:2", "nic:mlx5_0"
    std::string model;      // "NVIDIA H200", may be empty
    std::string bus_id;     // "0000:1b:00.0", may be empty
    int numa_node = -1;     // -1: the machine does not say
    Bytes memory = 0;       // of a GPU or cpu, 0 when not known

    bool operator==(const Device&) const = default;
};

// One link, or a bundle of equal links between the same two devices.
struct Link {
    DeviceId a = 0;
    DeviceId b = 0;
    LinkKind kind = LinkKind::pcie;
    int width = 1;             // PCIe lanes, or the number of NVLinks in the bundle
    double gb_per_s = 0;       // the whole bundle, one direction, as signalled less line coding
    double latency_us = 0;     // one crossing

    bool operator==(const Link&) const = default;
};

// Whether one GPU may read and write another's memory directly, and why not.
struct PeerAccess {
    bool allowed = false;
    bool atomics = false;      // native atomics work over the path
    std::string reason;        // why it is refused; empty when allowed
    std::string remedy;        // what would allow it; may be empty

    bool operator==(const PeerAccess&) const = default;
};

// A walk over links from one device to another.
//
// GPUs spread their NVLink traffic over all NVSwitches that join them. Of such side by side walks
// `links` is the widest one, and `gb_per_s` and `nvlinks` count all of them; so gb_per_s can be above
// the rate of the links listed, and is what flows that share the walk have to divide.
struct Path {
    std::vector<std::uint32_t> links;  // positions in Topology::links(), in order
    double gb_per_s = 0;               // of the narrowest link, one direction; 0 without links
    double latency_us = 0;             // sum of the crossings

    // True where every link is NVLink (through switches or not).
    bool all_nvlink = false;
    int nvlinks = 0;  // how many run side by side where all_nvlink is true, else 0
};

// Which links a walk may use.
enum class Fabric { any, nvlink, pcie };  // pcie: PCIe and links between sockets

// An immutable snapshot. Copying is cheap enough for tests, not for hot paths. All methods may be
// called from several threads at once.
class SIDESTEP_API Topology {
public:
    // What a Topology is made of, before it is checked.
    struct Parts {
        std::string name;      // "dgx-h100", "live"
        bool emulated = false; // true for models and files: the GPUs are not in this machine
        std::vector<Device> devices;
        std::vector<Link> links;
        // Peer access that was read from a driver. Pairs not listed follow the rule of peer_access().
        struct Peer {
            int from = 0;
            int to = 0;
            PeerAccess access;
            bool operator==(const Peer&) const = default;
        };
        std::vector<Peer> peers;
        std::vector<std::string> notes;  // what could not be read, and why
        bool operator==(const Parts&) const = default;
    };

    // Checks that names are unique, links end at devices that are there, and widths and rates are
    // sensible; ErrorCode::invalid_argument names the element that is wrong.
    static Result<Topology> create(Parts parts);

    // The machine this process runs on: /sys and, where it is there, NVML. `root` is put before every
    // path that is read ("" for the real machine), so a recorded tree can be read instead; NVML is
    // asked only for the real one. A machine without GPUs is a valid topology.
    static Result<Topology> live(const std::string& root = "");

    // One of the built-in machines ("dgx-h100"). ErrorCode::not_found lists the names there are.
    static Result<Topology> model(std::string_view name);
    static std::vector<std::string> model_names();

    // The own JSON format (docs/topology-format.md). A loaded topology counts as emulated.
    static Result<Topology> load(const std::string& path);
    static Result<Topology> from_json(std::string_view text, const std::string& where);
    std::string to_json() const;

    const std::string& name() const { return parts_.name; }
    bool emulated() const { return parts_.emulated; }
    const std::vector<Device>& devices() const { return parts_.devices; }
    const std::vector<Link>& links() const { return parts_.links; }
    const std::vector<std::string>& notes() const { return parts_.notes; }
    const Parts& parts() const { return parts_; }

    int gpu_count() const { return gpu_count_; }
    const Device& device(DeviceId id) const { return parts_.devices[id]; }
    // The device of that kind and index.
    std::optional<DeviceId> find(DeviceKind kind, int index) const;
    // The GPU or cpu that holds a place's bytes; host memory without a node is that of the first cpu.
    // Files have no device.
    std::optional<DeviceId> find(const Place& place) const;

    // The widest walk from `a` to `b` over links of `fabric`; of equally wide ones the quickest. A walk
    // passes through switches, bridges and cpus, never through a GPU, network card or drive; what enters
    // an NVSwitch by NVLink leaves it by NVLink. No links where `a` is `b`. The work is linear in the
    // number of links, nothing is kept between calls.
    std::optional<Path> path(DeviceId a, DeviceId b, Fabric fabric = Fabric::any) const;

    // Whether GPU `from` may reach GPU `to`: what a driver said, else: allowed where an all-NVLink walk
    // connects them.
    PeerAccess peer_access(int from, int to) const;

    // Words for a path: "NVLink (18 links through NVSwitch)", "PCIe gen5 x16".
    std::string describe(const Path& path) const;

    // The whole machine for people to read: the matrix of GPU pairs with nvidia-smi's letters (NV#, PIX,
    // PXB, PHB, NODE, SYS), then the devices, then the notes. Ends in a newline. The matrix is left out
    // above 64 GPUs.
    std::string to_text() const;

private:
    explicit Topology(Parts parts);
    Parts parts_;
    int gpu_count_ = 0;
    std::vector<std::vector<std::uint32_t>> links_of_;  // by device
    std::vector<DeviceId> by_kind_;                     // sorted by kind, then index
    std::vector<std::uint32_t> peers_by_pair_;          // positions in parts_.peers, sorted by from, to
};

}  // namespace sidestep
