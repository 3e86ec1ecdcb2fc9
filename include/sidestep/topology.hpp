// What a machine is made of: devices, the links between them, and who may reach whom.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sidestep/api.h>
#include <sidestep/place.hpp>
#include <sidestep/probe_report.hpp>
#include <sidestep/units.hpp>

namespace sidestep {

// net_switch: a switch of the network between the machines of a cluster.
enum class DeviceKind { cpu, host_bridge, pcie_switch, gpu, nvswitch, nic, drive, net_switch };
// c2c: NVLink-C2C between a CPU and a GPU of one package; socket: UPI, Infinity Fabric, ... between CPUs;
// xgmi: AMD's Infinity Fabric between GPUs; network: InfiniBand or Ethernet.
enum class LinkKind { pcie, nvlink, c2c, socket, xgmi, network };

SIDESTEP_API std::string_view to_string(DeviceKind kind);
SIDESTEP_API std::string_view to_string(LinkKind kind);

// The position of a device in Topology::devices().
using DeviceId = std::uint32_t;

// Facts that no route depends on, by name: {"iommu_group", "12"}. docs/topology.md lists the names.
using Properties = std::map<std::string, std::string, std::less<>>;

// One device. A `cpu` is one NUMA node: its cores and its memory.
struct Device {
    DeviceKind kind = DeviceKind::cpu;
    int index = 0;       // counts within the kind; of a GPU: NVML's number, of a cpu: the NUMA node
    std::string name;    // unique: "gpu:0", "cpu:1", "nvswitch:2", "nic:mlx5_0"
    std::string model;   // "NVIDIA H200", may be empty
    std::string bus_id;  // "0000:1b:00.0", may be empty
    int numa_node = -1;  // -1: the machine does not say
    Bytes memory = 0;    // of a GPU or cpu, 0 when not known
    // Which machine of a cluster; -1: shared by all, as the switches between them are. The devices of node
    // k are called "nodeK/gpu:3" where there are several, with indices that count over the whole cluster,
    // except numa_node, which counts within the machine.
    int node = 0;
    // Of a PCIe switch: access control (ACS) sends traffic between its ports up to the host bridge.
    bool acs_redirect = false;
    Properties properties;

    bool operator==(const Device&) const = default;
};

// One link, or a bundle of equal links between the same two devices.
struct Link {
    DeviceId a = 0;
    DeviceId b = 0;
    LinkKind kind = LinkKind::pcie;
    int width = 1;          // PCIe lanes, or the number of NVLinks in the bundle
    double gb_per_s = 0;    // the whole bundle, one direction, as signalled less line coding
    double latency_us = 0;  // one crossing

    bool operator==(const Link&) const = default;
};

// Whether one GPU may read and write another's memory directly, and why not.
struct PeerAccess {
    bool allowed = false;
    bool atomics = false;  // native atomics work over the path
    std::string reason;    // why it is refused; empty when allowed
    std::string remedy;    // what would allow it; may be empty

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

    // True where every link is NVLink or Infinity Fabric between GPUs (through switches or not).
    bool all_nvlink = false;
    int nvlinks = 0;  // how many run side by side where all_nvlink is true, else 0

    // Whether a link is crossed twice: ACS took the walk up to the host bridge and back.
    SIDESTEP_API bool redirected() const;
};

// Which links a walk may use. nvlink: NVLink and xgmi; pcie: PCIe and links between sockets.
enum class Fabric { any, nvlink, pcie };

// How two devices are joined, in the words of nvidia-smi, nearest first.
enum class PathClass {
    self,    // X: the same device
    nvlink,  // NV#: NVLink all the way, # links
    xgmi,    // XGMI: AMD's Infinity Fabric all the way
    pix,     // at most one PCIe switch
    pxb,     // several PCIe switches, no host bridge
    phb,     // one host bridge
    node,    // several host bridges of one NUMA node
    sys,     // across NUMA nodes, or not joined by anything that is known
    net,     // NET: in different machines of a cluster, joined by its network
};

struct PairClass {
    PathClass kind = PathClass::sys;
    int links = 0;  // NVLinks or Infinity Fabric links side by side, else 0

    bool operator==(const PairClass&) const = default;
};

// "X", "NV18", "XGMI", "PIX", "PXB", "PHB", "NODE", "SYS", "NET".
SIDESTEP_API std::string to_string(const PairClass& pair);
// "self", "nvlink", "xgmi", "pix", ...: as files write it.
SIDESTEP_API std::string_view to_string(PathClass kind);

// What two devices have between them, as far as the topology tells.
struct Pair {
    PairClass pair;
    std::optional<std::uint32_t> narrowest;  // position in Topology::links() of the worst link
    double gb_per_s = 0;      // what a copy reaches over the path, one direction: the narrowest link's rate
                              // less what packets and engines cost (docs/topology.md); 0 where unjoined
    double latency_us = 0;    // of one crossing
    bool redirected = false;  // ACS takes the traffic through the host bridge, a switch could have turned it
    std::string words;        // "NVLink (18 links through NVSwitch)"
};

// An immutable snapshot. Copying is cheap enough for tests, not for hot paths. All methods may be
// called from several threads at once.
class SIDESTEP_API Topology {
public:
    // What a Topology is made of, before it is checked.
    struct Parts {
        std::string name;       // "dgx-h100", "live"
        bool emulated = false;  // true for models and files: the GPUs are not in this machine
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
        // Pairs of GPUs up to this class may reach each other over PCIe where no driver said otherwise;
        // `self`: none.
        PathClass pcie_peers = PathClass::self;
        Properties properties;           // of the machine: "kernel", "iommu", ...
        std::vector<std::string> notes;  // what could not be read, and why
        bool operator==(const Parts&) const = default;
    };

    // Checks that names are unique, links end at devices that are there, and widths and rates are
    // sensible; ErrorCode::invalid_argument names the element that is wrong.
    static Result<Topology> create(Parts parts);

    // Any machine by name: "live" (or empty: SIDESTEP_MACHINE), a built-in machine or a cluster of it ("dgx-h100*128"),
    // a recorded machine that came with the command, a folder that `sidestep topo --record` wrote, or a file: ".json" in the
    // own format, ".xml" of NCCL or hwloc, ".txt" of `nvidia-smi topo -m` or `lspci -vvv`; another name with a '/' is read
    // as ".json". Faults follow after '!': "dgx-h100!gpu:3.width=8" (docs/commands.md). `as` names a built-in machine that
    // lends NVLinks and GPU names to an NCCL XML file that lacks them; it is an error for other machines.
    static Result<Topology> open(std::string_view machine, std::string_view as = "");

    // The machine this process runs on: /sys and, where it is there, NVML. `root` is put before every
    // path that is read ("" for the real machine), so a recorded tree can be read instead; NVML's answers
    // then come out of the record. A machine without GPUs is a valid topology.
    static Result<Topology> live(const std::string& root = "");

    // One of the built-in machines ("dgx-h100"), or a rail-optimised cluster of N of it ("dgx-h100*128"):
    // docs/topology.md says how it is wired. ErrorCode::not_found lists the names there are;
    // invalid_argument for a cluster of no machines or more than 200,000 GPUs.
    static Result<Topology> model(std::string_view name);
    static std::vector<std::string> model_names();

    // The own JSON format (docs/topology-format.md). A loaded topology counts as emulated.
    static Result<Topology> load(const std::string& path);
    static Result<Topology> from_json(std::string_view text, const std::string& where);
    std::string to_json() const;

    // This machine with what a trial found: pairs that carried wrong bytes, and pairs that were slower than
    // the way through host memory by every engine, count as refused, with the finding as the reason. GPUs
    // are matched by their bus ids; ErrorCode::invalid_argument where one of the report is not here.
    Result<Topology> with_probe(const ProbeReport& report) const;

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
    // The device of that name.
    std::optional<DeviceId> find(std::string_view name) const;
    // The GPU or cpu that holds a place's bytes; host memory without a node is that of the first cpu. A
    // place on another machine ("node7/gpu:1") is looked for in that machine of the cluster. Files have no
    // device.
    std::optional<DeviceId> find(const Place& place) const;

    // The widest walk from `a` to `b` over links of `fabric`; of equally wide ones the quickest. A walk
    // passes through switches, bridges and cpus, never through a GPU or drive, and through a network card
    // only between machines; what enters an NVSwitch by NVLink leaves it by NVLink; a PCIe switch with
    // acs_redirect passes traffic between its lower ports up to the host bridge and back, so a walk may
    // cross a link once each way. No links where `a` is `b`. The work is linear in the links of the two
    // machines and of the switches between machines, nothing is kept between calls.
    std::optional<Path> path(DeviceId a, DeviceId b, Fabric fabric = Fabric::any) const;

    // The class of a pair alone: the work is that of climbing from both ends to what they have in common.
    PairClass pair_class(DeviceId a, DeviceId b) const;
    // Class, worst link, expected rate and latency of a pair.
    Pair pair(DeviceId a, DeviceId b) const;
    // What a device hangs below in the PCIe tree: a switch, host bridge or, for a host bridge and a GPU
    // with C2C, a cpu. Nothing for cpus, NVSwitches and devices that nothing joins.
    std::optional<DeviceId> parent(DeviceId id) const;
    // The cpu at the top of a device's tree; without one the cpu of its NUMA node, or its machine's first.
    std::optional<DeviceId> cpu_of(DeviceId id) const;

    // Whether GPU `from` may reach GPU `to`: what a driver said, else: allowed, with atomics, where an
    // all-NVLink walk connects them, and without atomics over PCIe up to parts().pcie_peers.
    PeerAccess peer_access(int from, int to) const;

    // Words for a path: "NVLink (18 links through NVSwitch)", "PCIe gen5 x16".
    std::string describe(const Path& path) const;

    // The whole machine for people to read: the matrix of GPUs, network cards and drives with nvidia-smi's
    // letters (NV#, PIX, PXB, PHB, NODE, SYS), then the devices, then the notes. Ends in a newline. The
    // matrix is left out above 64 devices.
    std::string to_text() const;

private:
    explicit Topology(Parts parts);
    Parts parts_;
    int gpu_count_ = 0;
    void find_parents();
    void find_islands();
    void place_below(DeviceId above, std::vector<bool>& placed, std::vector<DeviceId>& order);
    PairClass fabric_class(DeviceId a, DeviceId b) const;
    // The positions of a device's links in parts_.links: links_of_ from links_begin_[id] up to links_begin_[id + 1].
    std::span<const std::uint32_t> links_of(DeviceId id) const;
    std::vector<std::uint32_t> links_begin_;    // by device, and one more
    std::vector<std::uint32_t> links_of_;       // of all devices, one after the other
    std::vector<DeviceId> parents_;             // by device; itself where there is none
    std::vector<DeviceId> islands_;             // by device: one of those that NVLinks join it to
    std::vector<DeviceId> by_kind_;             // sorted by kind, then index
    std::vector<std::uint32_t> peers_by_pair_;  // positions in parts_.peers, sorted by from, to
};

}  // namespace sidestep
