#include <gtest/gtest.h>

#include <set>

#include "fake_nvml.hpp"
#include "fake_tree.hpp"
#include "topology/nvml_reader.hpp"
#include "topology/peer_reasons.hpp"
#include "topology/sysfs_reader.hpp"

namespace sidestep::topology {
namespace {

using driver::CommonAncestor;
using driver::NvlinkRemote;
using driver::NvmlLink;
using driver::P2pCapability;
using driver::P2pStatus;

Topology merged(const FakeTree& tree, const FakeNvml& nvml) {
    PartsBuilder builder = read_sysfs(driver::MachineFiles(tree.root()));
    merge_nvml(builder, nvml);
    auto topology = Topology::create(std::move(builder.parts()));
    EXPECT_TRUE(topology.ok()) << topology.error().to_string();
    return *topology;
}

std::string letters(const Topology& machine, int a, int b) {
    return to_string(machine.pair_class(*machine.find(Place::gpu(a)), *machine.find(Place::gpu(b))));
}

const char* const vm_bus_ids[] = {"0000:00:04.0", "0000:00:05.0", "0000:00:06.0", "0000:00:07.0"};

// A virtual machine with four H200: everything on bus 00, no NUMA nodes of devices, hidden NVSwitches.
void h200_vm(FakeTree& tree, FakeNvml& nvml) {
    tree.node(0, 528 << 20);
    for (const char* bus_id : vm_bus_ids) {
        tree.pci(std::string("pci0000:00/") + bus_id, {gpu_class});
        nvml.gpus.push_back(h200(bus_id));
    }
}

TEST(LiveTopology, VirtualMachineWithFourH200) {
    FakeTree tree;
    FakeNvml nvml;
    h200_vm(tree, nvml);
    const Topology machine = merged(tree, nvml);
    ASSERT_EQ(machine.gpu_count(), 4);
    const DeviceId gpu0 = *machine.find(Place::gpu(0));
    const DeviceId gpu3 = *machine.find(Place::gpu(3));
    EXPECT_EQ(machine.device(gpu3),
              (Device{DeviceKind::gpu, 3, "gpu:3", "NVIDIA H200", "0000:00:07.0", -1, Bytes{143771} << 20}));
    const auto nvlink = machine.path(gpu0, gpu3);
    ASSERT_TRUE(nvlink);
    EXPECT_EQ(machine.describe(*nvlink), "NVLink (18 links through NVSwitch)");
    EXPECT_NEAR(nvlink->gb_per_s, 18 * 26.562, 0.001);
    for (int a = 0; a < 4; ++a) {
        for (int b = 0; b < 4; ++b) EXPECT_EQ(letters(machine, a, b), a == b ? "X" : "NV18");
    }
    EXPECT_FALSE(machine.find(DeviceKind::nvswitch, 1)) << "one device stands for all NVSwitches";
    EXPECT_TRUE(has_note(machine.notes(), "one device stands for all of them"));
    EXPECT_TRUE(machine.peer_access(0, 3).allowed);
    EXPECT_TRUE(machine.peer_access(0, 3).atomics);
    EXPECT_EQ(machine.parts().peers.size(), 12U);
    EXPECT_EQ(machine.describe(*machine.path(gpu0, *machine.find(Place::host()))), "PCIe gen5 x16");
    // All four share one bridge, which is as wide as the four together.
    EXPECT_NEAR(
        machine.path(*machine.find(DeviceKind::host_bridge, 0), *machine.find(Place::host()))->gb_per_s,
        4 * 63.015, 0.01);
}

TEST(LiveTopology, C2cJoinsAGpuToItsProcessor) {
    FakeTree tree;
    FakeNvml nvml;
    h200_vm(tree, nvml);
    nvml.gpus[1].facts.c2c_links = 5;
    nvml.gpus[1].facts.c2c_gb_per_s = 223.5;
    const Topology machine = merged(tree, nvml);
    const auto path = machine.path(*machine.find(Place::gpu(1)), *machine.find(Place::host()));
    ASSERT_TRUE(path);
    EXPECT_EQ(machine.describe(*path), "NVLink-C2C");
    EXPECT_DOUBLE_EQ(path->gb_per_s, 223.5);
    EXPECT_EQ(machine.describe(*machine.path(*machine.find(Place::gpu(0)), *machine.find(Place::host()))),
              "PCIe gen5 x16");
}

TEST(LiveTopology, NumbersGpusAsNvmlDoes) {
    FakeTree tree;
    FakeNvml nvml;
    h200_vm(tree, nvml);
    std::swap(nvml.gpus[0], nvml.gpus[3]);
    const Topology machine = merged(tree, nvml);
    EXPECT_EQ(machine.device(*machine.find(Place::gpu(0))).bus_id, "0000:00:07.0");
    EXPECT_EQ(machine.device(*machine.find(Place::gpu(3))).bus_id, "0000:00:04.0");
    EXPECT_EQ(machine.gpu_count(), 4);
}

TEST(LiveTopology, LeavesOutGpusNvmlDoesNotList) {
    FakeTree tree;
    FakeNvml nvml;
    h200_vm(tree, nvml);
    nvml.gpus.erase(nvml.gpus.begin() + 1, nvml.gpus.end());
    nvml.gpus[0].facts.bus_id = "0000:00:06.0";
    const Topology machine = merged(tree, nvml);
    ASSERT_EQ(machine.gpu_count(), 1);
    EXPECT_EQ(machine.device(*machine.find(Place::gpu(0))).bus_id, "0000:00:06.0");
    EXPECT_TRUE(machine.path(*machine.find(Place::gpu(0)), *machine.find(Place::host())))
        << "links moved along";
    EXPECT_TRUE(has_note(machine.notes(), "the GPU at 0000:00:04.0 is left out: NVML does not list it"));
}

TEST(LiveTopology, LostGpusAreNoted) {
    FakeTree tree;
    FakeNvml nvml;
    h200_vm(tree, nvml);
    nvml.gpus[1].lost = true;
    const Topology machine = merged(tree, nvml);
    EXPECT_EQ(machine.gpu_count(), 3);
    EXPECT_FALSE(machine.find(Place::gpu(1)));
    EXPECT_TRUE(machine.find(Place::gpu(2))) << "the others keep NVML's numbers";
    EXPECT_TRUE(has_note(machine.notes(), "gpu:1: left out: NVML cannot open the GPU: lost"));
}

TEST(LiveTopology, SysfsWithoutNvml) {
    FakeTree tree;
    FakeNvml nvml;
    h200_vm(tree, nvml);
    nvml.tells_count = false;
    const Topology machine = merged(tree, nvml);
    EXPECT_EQ(machine.gpu_count(), 4);
    EXPECT_TRUE(has_note(machine.notes(), "as sysfs shows them"));
    EXPECT_FALSE(machine.peer_access(0, 1).allowed);
    EXPECT_EQ(letters(machine, 0, 1), "PHB");
}

TEST(LiveTopology, NvmlWithoutSysfs) {
    FakeTree tree;  // empty: a sandbox
    FakeNvml nvml;
    for (int i = 0; i < 6; ++i) {
        nvml.gpus.push_back(h200("0000:0" + std::to_string(i) + ":00.0"));
        nvml.gpus.back().links.clear();
    }
    nvml.gpus[5].facts.pcie_generation = 0;
    nvml.ancestors = {{{0, 1}, CommonAncestor::single_switch},    {{0, 2}, CommonAncestor::several_switches},
                      {{1, 2}, CommonAncestor::several_switches}, {{0, 3}, CommonAncestor::host_bridge},
                      {{1, 3}, CommonAncestor::host_bridge},      {{2, 3}, CommonAncestor::host_bridge},
                      {{0, 4}, CommonAncestor::numa_node},        {{1, 4}, CommonAncestor::numa_node},
                      {{2, 4}, CommonAncestor::numa_node},        {{3, 4}, CommonAncestor::numa_node}};
    const Topology machine = merged(tree, nvml);
    ASSERT_EQ(machine.gpu_count(), 6);
    EXPECT_EQ(machine.device(*machine.find(Place::gpu(2))).name, "gpu:2");
    EXPECT_EQ(letters(machine, 0, 1), "PIX");
    EXPECT_EQ(letters(machine, 0, 2), "PXB");
    EXPECT_EQ(letters(machine, 1, 3), "PHB");
    EXPECT_EQ(letters(machine, 2, 4), "NODE");
    EXPECT_TRUE(has_note(machine.notes(), "gpu:5: seen through NVML only"));
    EXPECT_TRUE(has_note(machine.notes(), "counted as gen3 x16: 1"));
    EXPECT_NEAR(machine.path(*machine.find(Place::gpu(0)), *machine.find(Place::host()))->gb_per_s, 63.015,
                0.001);
    EXPECT_TRUE(machine.peer_access(0, 5).allowed) << "what the driver said";
}

TEST(LiveTopology, NvmlWithoutSysfsPlacesGpusAtTheirNodes) {
    FakeTree tree;
    tree.node(0, 1000);
    tree.node(1, 1000);
    FakeNvml nvml;
    nvml.gpus = {h200("0000:01:00.0"), h200("0000:02:00.0"), h200("0000:03:00.0")};
    for (FakeNvml::Gpu& gpu : nvml.gpus) gpu.links.clear();
    nvml.gpus[0].facts.numa_node = 0;
    nvml.gpus[1].facts.numa_node = 1;
    nvml.gpus[2].facts.numa_node = 5;
    const Topology machine = merged(tree, nvml);
    EXPECT_EQ(letters(machine, 0, 1), "SYS");
    EXPECT_EQ(letters(machine, 0, 2), "NODE") << "a node that does not exist counts as the first";
    EXPECT_EQ(machine.device(*machine.find(Place::gpu(1))).numa_node, 1);
}

TEST(LiveTopology, NeitherSysfsNorNvml) {
    FakeTree tree;
    FakeNvml nvml;
    const Topology machine = merged(tree, nvml);
    EXPECT_EQ(machine.gpu_count(), 0);
    EXPECT_TRUE(machine.find(Place::host()));
    EXPECT_TRUE(has_note(machine.notes(), "shows no PCI devices"));
}

TEST(LiveTopology, SwitchesWithAddressesStayApart) {
    FakeTree tree;
    tree.node(0, 1000);
    tree.pci("pci0000:00/0000:05:00.0", {nvswitch_class, "0x10de", "0x22a3", "0"});
    FakeNvml nvml;
    for (const char* bus_id : {"0000:01:00.0", "0000:02:00.0"}) {
        tree.pci(std::string("pci0000:00/") + bus_id, {gpu_class});
        nvml.gpus.push_back(h200(bus_id));
        // One switch that sysfs shows, one that it does not, and one link whose kind is not told.
        auto& links = nvml.gpus.back().links;
        for (std::size_t i = 0; i < 10; ++i) links[i].remote_bus_id = "0000:05:00.0";
        for (std::size_t i = 10; i < 18; ++i) links[i].remote_bus_id = "0000:06:00.0";
        links[9].remote = NvlinkRemote::unknown;
    }
    const Topology machine = merged(tree, nvml);
    EXPECT_EQ(machine.device(*machine.find(DeviceKind::nvswitch, 0)).bus_id, "0000:05:00.0");
    EXPECT_EQ(machine.device(*machine.find(DeviceKind::nvswitch, 1)).bus_id, "0000:06:00.0");
    EXPECT_FALSE(machine.find(DeviceKind::nvswitch, 2));
    EXPECT_EQ(letters(machine, 0, 1), "NV18");
}

TEST(LiveTopology, GpusJoinedDirectlyShareOneBundle) {
    FakeTree tree;
    FakeNvml nvml;
    h200_vm(tree, nvml);
    for (FakeNvml::Gpu& gpu : nvml.gpus) gpu.links.clear();
    nvml.gpus[0].links = {{true, NvlinkRemote::gpu, vm_bus_ids[1], 25},
                          {true, NvlinkRemote::gpu, vm_bus_ids[1], 25},
                          {true, NvlinkRemote::gpu, vm_bus_ids[2], 0},     // rate not told
                          {true, NvlinkRemote::gpu, "0000:99:00.0", 25},   // not given to us
                          {true, NvlinkRemote::gpu, vm_bus_ids[0], 25},    // to itself
                          {false, NvlinkRemote::gpu, vm_bus_ids[3], 25}};  // down
    nvml.gpus[1].links = {{true, NvlinkRemote::gpu, vm_bus_ids[0], 25},
                          {true, NvlinkRemote::gpu, vm_bus_ids[0], 25}};
    const Topology machine = merged(tree, nvml);
    EXPECT_EQ(letters(machine, 0, 1), "NV2");
    EXPECT_DOUBLE_EQ(
        machine.path(*machine.find(Place::gpu(0)), *machine.find(Place::gpu(1)), Fabric::nvlink)->gb_per_s,
        50);
    EXPECT_EQ(letters(machine, 0, 2), "NV1");
    EXPECT_DOUBLE_EQ(
        machine.path(*machine.find(Place::gpu(0)), *machine.find(Place::gpu(2)), Fabric::nvlink)->gb_per_s,
        26.5625)
        << "by compute capability";
    EXPECT_EQ(letters(machine, 0, 3), "PHB");
    EXPECT_TRUE(has_note(machine.notes(), "gpu:0: an NVLink leads to 0000:99:00.0"));
    EXPECT_TRUE(has_note(machine.notes(), "gpu:0: 5 of 6 NVLinks are active"));
}

TEST(LiveTopology, LinksOfUnknownSpeedAreLeftOutAloud) {
    FakeTree tree;
    FakeNvml nvml;
    h200_vm(tree, nvml);
    nvml.gpus[0].facts.cc_major = 99;
    for (NvmlLink& link : nvml.gpus[0].links) link.gb_per_s = 0;
    const Topology machine = merged(tree, nvml);
    EXPECT_EQ(letters(machine, 0, 1), "PHB");
    EXPECT_EQ(letters(machine, 1, 2), "NV18");
    EXPECT_TRUE(has_note(machine.notes(), "gpu:0: the speed of some NVLinks is not known"));
}

TEST(LiveTopology, RefusedPeersCarryReasonAndRemedy) {
    FakeTree tree;
    FakeNvml nvml;
    h200_vm(tree, nvml);
    nvml.p2p_status[{0, 1, P2pCapability::read}] = P2pStatus::disabled_by_regkey;
    nvml.p2p_status[{1, 0, P2pCapability::write}] = P2pStatus::chipset_not_supported;
    nvml.p2p_status[{2, 3, P2pCapability::atomics}] = P2pStatus::not_supported;
    const Topology machine = merged(tree, nvml);
    EXPECT_NE(machine.peer_access(0, 1).reason.find("registry key"), std::string::npos);
    EXPECT_NE(machine.peer_access(0, 1).remedy.find("RegistryDwords"), std::string::npos);
    EXPECT_NE(machine.peer_access(1, 0).reason.find("chipset"), std::string::npos);
    EXPECT_EQ(machine.peer_access(2, 3), (PeerAccess{true, false, "", ""}));
    EXPECT_EQ(machine.peer_access(3, 2), (PeerAccess{true, true, "", ""}));

    nvml.tells_p2p = false;
    const Topology untold = merged(tree, nvml);
    EXPECT_TRUE(untold.parts().peers.empty());
    EXPECT_TRUE(untold.peer_access(0, 1).allowed) << "by NVLink";
    EXPECT_TRUE(has_note(untold.notes(), "peer access between some GPUs is not told"));
}

TEST(PeerReasons, EveryRefusalSaysSomethingOfItsOwn) {
    std::set<std::string> reasons;
    for (const P2pStatus status : {P2pStatus::chipset_not_supported, P2pStatus::gpu_not_supported,
                                   P2pStatus::ioh_topology_not_supported, P2pStatus::disabled_by_regkey,
                                   P2pStatus::not_supported, P2pStatus::unknown}) {
        const PeerAccess access = peer_access_of(status, P2pStatus::ok, true);
        EXPECT_FALSE(access.allowed);
        EXPECT_FALSE(access.atomics);
        EXPECT_FALSE(access.remedy.empty());
        EXPECT_EQ(access, peer_access_of(P2pStatus::ok, status, true));
        reasons.insert(access.reason);
    }
    EXPECT_EQ(reasons.size(), 6U);
    EXPECT_EQ(peer_access_of(P2pStatus::ok, P2pStatus::ok, true), (PeerAccess{true, true, "", ""}));
}

}  // namespace
}  // namespace sidestep::topology
