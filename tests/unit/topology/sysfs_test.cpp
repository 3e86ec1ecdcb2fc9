#include "topology/sysfs_reader.hpp"

#include <gtest/gtest.h>

#include <unistd.h>
#include <filesystem>

#include "fake_tree.hpp"
#include "topology/pci_names.hpp"

namespace sidestep::topology {
namespace {

Topology read(const FakeTree& tree) {
    auto topology = Topology::live(tree.root());
    EXPECT_TRUE(topology.ok()) << topology.error().to_string();
    return *topology;
}

std::optional<DeviceId> named(const Topology& topology, std::string_view name) {
    for (DeviceId id = 0; id < topology.devices().size(); ++id) {
        if (topology.device(id).name == name) return id;
    }
    return std::nullopt;
}

const Link& link_of(const Topology& topology, std::string_view name) {
    const DeviceId id = named(topology, name).value();
    for (const Link& link : topology.links()) {
        if (link.a == id) return link;
    }
    throw std::logic_error(std::string(name) + " has no link");
}

// Two sockets. Node 0: GPU and network card below one switch, a GPU below two switches in a row, a drive at
// a root port. Node 1: a GPU below a root port of another bridge. An NVSwitch on node 1.
void two_sockets(FakeTree& tree) {
    tree.node(0, 1000);
    tree.node(1, 2000);
    const std::string switched = "pci0000:15/0000:15:01.0/0000:16:00.0/";
    tree.pci("pci0000:15/0000:15:01.0", {bridge_class, "0x8086", "0x352a", "0"});
    tree.pci("pci0000:15/0000:15:01.0/0000:16:00.0", {bridge_class, "0x1000", "0xc030", "0"});
    tree.pci(switched + "0000:17:00.0", {bridge_class, "0x1000", "0xc030", "0"});
    tree.pci(switched + "0000:17:00.0/0000:18:00.0", {nic_class, "0x15b3", "0x1021", "0"});
    tree.folder("/sys/devices/" + switched + "0000:17:00.0/0000:18:00.0/infiniband/mlx5_0");
    tree.pci(switched + "0000:17:01.0", {bridge_class, "0x1000", "0xc030", "0"});
    tree.pci(switched + "0000:17:01.0/0000:1b:00.0", {gpu_class, "0x10de", "0x2330", "0"});
    tree.pci(switched + "0000:17:02.0", {bridge_class, "0x1000", "0xc030", "0"});
    tree.pci(switched + "0000:17:02.0/0000:20:00.0", {bridge_class, "0x1000", "0xc030", "0"});
    tree.pci(switched + "0000:17:02.0/0000:20:00.0/0000:21:00.0", {bridge_class, "0x1000", "0xc030", "0"});
    tree.pci(switched + "0000:17:02.0/0000:20:00.0/0000:21:00.0/0000:22:00.0",
             {gpu_class, "0x10de", "0x2330", "0"});
    tree.pci("pci0000:15/0000:15:02.0", {bridge_class, "0x8086", "0x352a", "0", "16.0 GT/s PCIe", "4"});
    tree.pci("pci0000:15/0000:15:02.0/0000:30:00.0",
             {nvme_class, "0x144d", "0xa824", "0", "32.0 GT/s PCIe", "4", "16.0 GT/s PCIe", "4"});
    tree.write("/sys/devices/pci0000:15/0000:15:02.0/0000:30:00.0/nvme/nvme0/model", "A drive   ");
    tree.pci("pci0000:97/0000:97:01.0", {bridge_class, "0x8086", "0x352a", "1"});
    tree.pci("pci0000:97/0000:97:01.0/0000:98:00.0", {gpu_class, "0x10de", "0x2330", "1"});
    tree.pci("pci0000:97/0000:97:05.0", {bridge_class, "0x8086", "0x352a", "1"});
    tree.pci("pci0000:97/0000:97:05.0/0000:a0:00.0", {nvswitch_class, "0x10de", "0x22a3", "1"});
    tree.pci("pci0000:97/0000:97:1f.0", {"0x060100", "0x8086", "0x1", "1"});  // no device of ours
}

TEST(SysfsReader, ReadsThePciTree) {
    FakeTree tree;
    two_sockets(tree);
    const Topology machine = read(tree);
    EXPECT_EQ(machine.gpu_count(), 3);
    EXPECT_TRUE(machine.emulated());

    const Device& gpu = machine.device(*machine.find(DeviceKind::gpu, 1));
    EXPECT_EQ(gpu.bus_id, "0000:22:00.0");
    EXPECT_EQ(gpu.numa_node, 0);
    EXPECT_EQ(gpu.model, "PCI 10de:2330");
    EXPECT_EQ(machine.device(named(machine, "nic:mlx5_0").value()).model, "NVIDIA ConnectX-7");
    EXPECT_EQ(machine.device(named(machine, "drive:nvme0").value()).model, "A drive");
    EXPECT_EQ(machine.device(*machine.find(Place::host(1))).memory, Bytes{2000} << 10);

    const auto letters = [&](const char* a, const char* b) {
        return to_string(machine.pair_class(named(machine, a).value(), named(machine, b).value()));
    };
    EXPECT_EQ(letters("gpu:0", "nic:mlx5_0"), "PIX");
    EXPECT_EQ(letters("gpu:0", "gpu:1"), "PXB");
    EXPECT_EQ(letters("gpu:0", "drive:nvme0"), "PHB");
    EXPECT_EQ(letters("gpu:0", "gpu:2"), "SYS");
    EXPECT_EQ(letters("nvswitch:0", "gpu:2"), "SYS") << "its PCIe link carries no bytes of ours";
}

TEST(SysfsReader, CountsTheLesserOfDeviceAndPort) {
    FakeTree tree;
    two_sockets(tree);
    const Topology machine = read(tree);
    const Link& drive = link_of(machine, "drive:nvme0");
    EXPECT_EQ(drive.width, 4);
    EXPECT_NEAR(drive.gb_per_s, 7.877, 0.001) << "the port does gen4";
    EXPECT_NEAR(link_of(machine, "gpu:0").gb_per_s, 63.015, 0.001);
    // The bridge of node 0 has one switch and the drive below it.
    EXPECT_NEAR(link_of(machine, "host_bridge:0").gb_per_s, 63.015 + 7.877, 0.001);
    EXPECT_EQ(link_of(machine, "host_bridge:0").width, 20);
}

TEST(SysfsReader, CountsTheCapabilityOfAnIdleLinkAndSaysSo) {
    FakeTree tree;
    tree.node(0, 1000);
    tree.pci("pci0000:15/0000:15:01.0", {bridge_class, "0x8086", "0x1", "0"});
    tree.pci("pci0000:15/0000:15:01.0/0000:16:00.0",
             {gpu_class, "0x10de", "0x2330", "0", "32.0 GT/s PCIe", "16", "2.5 GT/s PCIe", "16"});
    tree.pci("pci0000:15/0000:15:02.0", {bridge_class, "0x8086", "0x1", "0"});
    tree.pci("pci0000:15/0000:15:02.0/0000:17:00.0",
             {gpu_class, "0x10de", "0x2330", "0", "32.0 GT/s PCIe", "16", "32.0 GT/s PCIe", "8"});
    const Topology machine = read(tree);
    EXPECT_NEAR(link_of(machine, "gpu:0").gb_per_s, 63.015, 0.001);
    EXPECT_TRUE(
        has_note(machine.notes(),
                 "gpu:0 (0000:16:00.0): the PCIe link runs at gen1 x16 now and can do gen5 x16; idle"));
    EXPECT_TRUE(has_note(machine.notes(),
                         "gpu:1 (0000:17:00.0): the PCIe link runs at gen5 x8 now and can do gen5 x16"));
}

TEST(SysfsReader, DisbelievesPortsThatHypervisorsMakeUp) {
    FakeTree tree;
    tree.node(0, 1000);
    // One by its vendor, one because more runs through it than it claims.
    tree.pci("pci0000:00/0000:00:01.0", {bridge_class, "0x1b36", "0x000c", "-1", "2.5 GT/s PCIe", "1"});
    tree.pci("pci0000:00/0000:00:01.0/0000:01:00.0",
             {gpu_class, "0x10de", "0x2330", "-1", "32.0 GT/s PCIe", "16", "2.5 GT/s PCIe", "1"});
    tree.pci("pci0000:00/0000:00:02.0", {bridge_class, "0x8086", "0x1", "-1", "2.5 GT/s PCIe", "1"});
    tree.pci("pci0000:00/0000:00:02.0/0000:02:00.0", {gpu_class});
    const Topology machine = read(tree);
    EXPECT_NEAR(link_of(machine, "gpu:0").gb_per_s, 63.015, 0.001);
    EXPECT_NEAR(link_of(machine, "gpu:1").gb_per_s, 63.015, 0.001);
}

// The switch that QEMU imitates claims 2.5 GT/s x1, VMware's ports 5 GT/s x32.
TEST(SysfsReader, ALinkThatAVirtualMachineMadeUpPricesNothing) {
    struct Case {
        const char* flags;
        PciFiles port;
        double up;  // GB/s
        const char* made_up;
    };
    const PciFiles x3130{bridge_class, "0x104c", "0x8232", "-1", "2.5 GT/s PCIe", "1"};
    const PciFiles slow{bridge_class, "0x1000", "0xc030", "-1", "8.0 GT/s PCIe", "8"};
    const PciFiles quick{bridge_class, "0x1000", "0xc030", "-1", "64.0 GT/s PCIe", "16"};
    const PciFiles vmware{bridge_class, "0x15ad", "0x07a0", "-1", "5.0 GT/s PCIe", "32"};
    const Case cases[] = {
        {"flags : fpu", x3130, 63.015, "gen1 x1"},
        {"flags : hypervisor", slow, 63.015, "gen3 x8"},
        {"flags : hypervisor", quick, 121, ""},
        {"flags : fpu", slow, 7.877, ""},
        {"flags : hypervisor", vmware, 63.015, "gen2 x32"},
    };
    for (const Case& c : cases) {
        FakeTree tree;
        tree.node(0, 1000);
        tree.write("/proc/cpuinfo", c.flags);
        const PciFiles root{bridge_class, "0x8086", "0x1", "-1", "64.0 GT/s PCIe", "32"};
        const std::string top = "pci0000:00/0000:00:01.0/0000:01:00.0";
        tree.pci("pci0000:00/0000:00:01.0", root);
        tree.pci(top, c.port);
        // One GPU idles: what runs now tells nothing.
        for (const auto& [port, gpu, now] : {std::tuple("02:00.0", "03:00.0", "32.0 GT/s PCIe"),
                                             std::tuple("02:01.0", "04:00.0", "2.5 GT/s PCIe")}) {
            PciFiles down = c.port;
            if (c.up != 63.015) down = root;
            tree.pci(top + "/0000:" + port, down);
            PciFiles card{gpu_class};
            card.now_speed = now;
            tree.pci(top + "/0000:" + port + "/0000:" + gpu, card);
        }
        const Topology machine = read(tree);
        EXPECT_NEAR(link_of(machine, "pcie_switch:0").gb_per_s, c.up, 0.001) << c.port.vendor << c.flags;
        EXPECT_NEAR(link_of(machine, "gpu:0").gb_per_s, 63.015, 0.001) << c.port.vendor;
        EXPECT_NEAR(link_of(machine, "gpu:1").gb_per_s, 63.015, 0.001) << c.port.vendor;
        const Device& device = machine.device(*machine.find("pcie_switch:0"));
        const auto told = device.properties.find("link_made_up");
        EXPECT_EQ(told == device.properties.end() ? "" : told->second, c.made_up) << c.port.vendor << c.flags;
        EXPECT_EQ(has_note(machine.notes(), "is made up by the virtual machine"), *c.made_up != '\0');
    }
}

TEST(SysfsReader, TakesOtherLinkFiguresWhereSomeAreMissing) {
    FakeTree tree;
    tree.node(0, 1000);
    tree.pci("pci0000:00/0000:00:04.0",
             {gpu_class, "0x10de", "0x1", "-1", "Unknown", "255", "16.0 GT/s PCIe", "8"});
    tree.pci("pci0000:00/0000:00:05.0", {gpu_class, "0x10de", "0x1", "-1", ""});
    const Topology machine = read(tree);
    EXPECT_NEAR(link_of(machine, "gpu:0").gb_per_s, 15.754, 0.001) << "gen4 x8, what it runs at";
    EXPECT_NEAR(link_of(machine, "gpu:1").gb_per_s, 15.754, 0.001) << "assumed gen3 x16";
    EXPECT_TRUE(has_note(machine.notes(), "are counted as gen3 x16: 1"));
}

TEST(SysfsReader, LeavesVirtualFunctionsAndOtherVendorsOut) {
    FakeTree tree;
    tree.node(0, 1000);
    tree.pci("pci0000:00/0000:00:02.0", {"0x030000", "0x1234", "0x1111"});  // a hypervisor's screen
    tree.pci("pci0000:00/0000:00:03.0", {"0x020000", "0x1af4", "0x1041", "-1", ""});
    tree.folder("/sys/devices/pci0000:00/0000:00:03.0/virtio2/net/eth0");
    tree.pci("pci0000:00/0000:00:04.0", {nic_class, "0x15b3", "0x101e"});
    tree.write("/sys/devices/pci0000:00/0000:00:04.0/physfn", "");
    const Topology machine = read(tree);
    EXPECT_EQ(machine.gpu_count(), 0);
    EXPECT_TRUE(named(machine, "nic:eth0"));
    EXPECT_FALSE(machine.find(DeviceKind::nic, 1));
    EXPECT_TRUE(has_note(machine.notes(), "left out: 1"));
}

// What a pod sees of a card with three functions, and what its host does.
TEST(SysfsReader, AFunctionThatAPodWasGivenIsItsCard) {
    for (const bool pod : {true, false}) {
        FakeTree tree;
        tree.node(0, 1000);
        tree.pci("pci0000:00/0000:00:01.0", {bridge_class, "0x8086", "0x1"});
        const std::string bus = "pci0000:00/0000:00:01.0/";
        tree.pci(bus + "0000:01:00.0", {nic_class, "0x15b3", "0x1021"});
        if (!pod) tree.folder("/sys/devices/" + bus + "0000:01:00.0/net/ens1");
        for (const char* function : {"0000:01:00.1", "0000:01:00.2"}) {
            tree.pci(bus + function, {nic_class, "0x15b3", "0x101e", "-1", "Unknown", "0", "Unknown", "0"});
            std::filesystem::create_symlink("../0000:01:00.0",
                                            tree.root() + "/sys/devices/" + bus + function + "/physfn");
        }
        tree.folder("/sys/devices/" + bus + "0000:01:00.2/net/eth1");
        const Topology machine = read(tree);
        EXPECT_EQ(named(machine, "nic:eth1").has_value(), pod);
        EXPECT_EQ(named(machine, "nic:ens1").has_value(), !pod);
        EXPECT_FALSE(machine.find(DeviceKind::nic, 1));
        EXPECT_EQ(
            has_note(machine.notes(), "network cards of which this container has virtual functions alone: 1"),
            pod);
        EXPECT_TRUE(has_note(machine.notes(), fmt::format("left out: {}", pod ? 1 : 2)));
        EXPECT_NEAR(link_of(machine, pod ? "nic:eth1" : "nic:ens1").gb_per_s, 63.015, 0.001);
    }
}

TEST(SysfsReader, MemoryOfGpusIsNoHostMemory) {
    struct Case {
        const char* what;
        const char* cpuinfo;
        const char* status;  // of GPU 0000:01:00.0
        std::vector<int> nodes;
        const char* note;
    };
    const Case cases[] = {
        {"GH200",
         "CPU part\t: 0xd4f",
         "Node: 2\nStatus: online",
         {0},
         "memory of GPUs, and no host memory: 1, 2"},
        {"driver alone", "model name: A", "Node: 2\nStatus: online", {0, 1}, "and no host memory: 2"},
        {"POWER9", "cpu : POWER9, altivec", "", {0}, "and no host memory: 1, 2"},
        {"CXL memory",
         "model name: A",
         "Node: -1\nStatus: disabled",
         {0, 1, 2},
         "without processors and memory: 3"},
    };
    for (const Case& c : cases) {
        FakeTree tree;
        for (int node = 0; node < 3; ++node) tree.node(node, 1000);
        tree.node(3, 0);
        tree.write("/sys/devices/system/node/has_cpu", "0");
        tree.write("/proc/cpuinfo", c.cpuinfo);
        tree.pci("pci0000:00/0000:01:00.0", {gpu_class});
        if (*c.status != '\0') tree.write("/proc/driver/nvidia/gpus/0000:01:00.0/numa_status", c.status);
        const Topology machine = read(tree);
        std::vector<int> nodes;
        for (const Device& device : machine.devices())
            if (device.kind == DeviceKind::cpu) nodes.push_back(device.index);
        EXPECT_EQ(nodes, c.nodes) << c.what;
        EXPECT_TRUE(has_note(machine.notes(), c.note)) << c.what;
        EXPECT_EQ(machine.device(*machine.find("gpu:0")).properties.count("memory_node"),
                  c.status[0] == 'N' && c.status[6] == '2')
            << c.what;
    }
}

TEST(SysfsReader, TreatsUnknownNodesAsTheFirst) {
    FakeTree tree;
    tree.node(1, 1000);
    tree.node(10, 1000);
    tree.pci("pci0000:00/0000:00:04.0", {gpu_class});
    const Topology machine = read(tree);
    EXPECT_EQ(machine.device(*machine.find(Place::gpu(0))).numa_node, -1);
    EXPECT_EQ(machine.find(Place::host()), machine.find(Place::host(1)));
    EXPECT_EQ(machine.path(*machine.find(Place::gpu(0)), *machine.find(Place::host(1)))->links.size(), 2U);
    EXPECT_EQ(machine.path(*machine.find(Place::gpu(0)), *machine.find(Place::host(10)))->links.size(), 3U);
    EXPECT_TRUE(has_note(machine.notes(), "0000:00"));
}

TEST(SysfsReader, AnEmptyRootIsAMachineWithNotes) {
    FakeTree tree;
    tree.write("/proc/meminfo", "MemTotal:        512 kB");
    tree.write("/proc/cpuinfo", "processor : 0\nmodel name\t: A processor\n");
    const Topology machine = read(tree);
    EXPECT_EQ(machine.gpu_count(), 0);
    ASSERT_EQ(machine.devices().size(), 1U);
    EXPECT_EQ(machine.device(0),
              (Device{DeviceKind::cpu, 0, "cpu:0", "A processor", "", -1, Bytes{512} << 10}));
    EXPECT_TRUE(has_note(machine.notes(), "shows no NUMA nodes"));
    EXPECT_TRUE(has_note(machine.notes(), "shows no PCI devices"));
    EXPECT_EQ(Topology::live(tree.root() + "/nowhere").error().code, ErrorCode::not_found);
}

TEST(SysfsReader, AnUnknownNumaNodeIsFarFromEverything) {
    FakeTree tree;
    tree.node(0, 1 << 20);
    tree.node(1, 1 << 20);
    PciFiles known{gpu_class};
    known.numa_node = "0";
    tree.pci("pci0000:10/0000:10:00.0", known);
    tree.pci("pci0000:20/0000:20:00.0", known);
    tree.pci("pci0000:30/0000:30:00.0", {gpu_class});
    const Topology machine = read(tree);
    const auto letters = [&](int a, int b) {
        return to_string(machine.pair_class(*machine.find(Place::gpu(a)), *machine.find(Place::gpu(b))));
    };
    EXPECT_EQ(letters(0, 1), "NODE");
    EXPECT_EQ(letters(0, 2), "SYS");
    EXPECT_TRUE(has_note(machine.notes(), "is not told; counted as at cpu:0"));
}

TEST(SysfsReader, ReadsDisksAndSoftwareRdma) {
    FakeTree tree;
    tree.node(0, 1 << 20);
    tree.pci("pci0000:00/0000:00:05.0", {"0x010000", "0x1af4", "0x1042"});
    tree.folder("/sys/devices/pci0000:00/0000:00:05.0/virtio2/block/vda");
    tree.pci("pci0000:00/0000:00:06.0", {nvme_class, "0x144d"});
    tree.folder("/sys/devices/pci0000:00/0000:00:06.0/nvme/nvme0/nvme0n1");
    tree.folder("/sys/devices/virtual/block/loop0");
    tree.folder("/sys/block");
    const auto block = [&](const std::string& name, const std::string& place) {
        std::filesystem::create_symlink("../devices/" + place, tree.root() + "/sys/block/" + name);
    };
    block("vda", "pci0000:00/0000:00:05.0/virtio2/block/vda");
    block("nvme0n1", "pci0000:00/0000:00:06.0/nvme/nvme0/nvme0n1");
    block("loop0", "virtual/block/loop0");
    tree.folder("/sys/class/infiniband/rxe0");
    const auto machine = Topology::live(tree.root());
    ASSERT_TRUE(machine.ok()) << machine.error().to_string();
    const auto vda = machine->find("drive:vda");
    const auto nvme = machine->find("drive:nvme0");
    ASSERT_TRUE(vda && nvme);
    EXPECT_EQ(machine->device(*vda).bus_id, "0000:00:05.0");
    EXPECT_EQ(machine->device(*nvme).properties.at("block"), "nvme0n1");
    EXPECT_FALSE(machine->find("drive:loop0"));
    EXPECT_FALSE(machine->find("drive:nvme0n1")) << "the controller is the drive";
    EXPECT_EQ(to_string(machine->pair_class(*vda, *nvme)), "PHB");
    ASSERT_TRUE(machine->find("nic:rxe0"));
    EXPECT_FALSE(machine->parent(*machine->find("nic:rxe0")));
}

TEST(SysfsReader, SurvivesNonsense) {
    FakeTree tree;
    tree.write("/sys/devices/system/node/node0/meminfo", "rubbish");
    tree.write("/sys/devices/system/node/node1x/meminfo", "Node 1 MemTotal: 5 kB");
    tree.write("/sys/bus/pci/devices/no-link/class", "0x030200");  // a folder, not a link
    tree.write("/sys/bus/pci/devices/no-link/vendor", "0x10de");
    tree.write("/sys/bus/pci/devices/0000:01:00.0/class", "banana");
    tree.write("/sys/bus/pci/devices/0000:02:00.0/class", "");
    tree.pci("pci0000:00/0000:00:04.0",
             {gpu_class, "0x10de", "", "99999999999999999999", "fast", "-3", "slow", "x"});
    std::filesystem::create_symlink("../../../devices/gone",
                                    tree.root() + "/sys/bus/pci/devices/0000:03:00.0");
    const Topology machine = read(tree);
    EXPECT_EQ(machine.gpu_count(), 2);
    EXPECT_TRUE(has_note(machine.notes(), "cpu:0: its memory cannot be read"));
    EXPECT_TRUE(has_note(machine.notes(), "0000:01:00.0: its class cannot be read"));
    EXPECT_TRUE(has_note(machine.notes(), "0000:02:00.0: its class"));
    EXPECT_TRUE(has_note(machine.notes(), "0000:03:00.0: its class"));
    EXPECT_FALSE(machine.find(Place::host(1)));
    EXPECT_TRUE(machine.path(*machine.find(Place::gpu(0)), *machine.find(Place::host()))) << "still joined";
}

TEST(PciNames, KindsAndModels) {
    EXPECT_EQ(kind_of_class(0x030200, true), DeviceKind::gpu);
    EXPECT_EQ(kind_of_class(0x030000, true), DeviceKind::gpu);
    EXPECT_FALSE(kind_of_class(0x030000, false));
    EXPECT_FALSE(kind_of_class(0x040300, true)) << "the sound function of a card";
    EXPECT_EQ(kind_of_class(0x068000, true), DeviceKind::nvswitch);
    EXPECT_FALSE(kind_of_class(0x068000, false));
    EXPECT_EQ(kind_of_class(0x020000, false), DeviceKind::nic);
    EXPECT_EQ(kind_of_class(0x010802, false), DeviceKind::drive);
    EXPECT_EQ(pci_model(0x15b3, 0x1021), "NVIDIA ConnectX-7");
    EXPECT_EQ(pci_model(0x8086, 0x1), "PCI 8086:0001");
    EXPECT_EQ(pci_model(0, 0), "");
    EXPECT_EQ(numbered("node12", "node"), 12);
    EXPECT_FALSE(numbered("node", "node"));
    EXPECT_FALSE(numbered("node1x", "node"));
    EXPECT_FALSE(numbered("node-1", "node"));
    EXPECT_EQ(cpu_model("x\nmodel name\t: Abc\nmodel name\t: D\n"), "Abc");
    EXPECT_EQ(cpu_model("model name"), "");
    EXPECT_EQ(cpu_model(""), "");
}

TEST(TopologyLive, ReadsThisMachine) {
    const auto machine = Topology::live();
    ASSERT_TRUE(machine.ok()) << machine.error().to_string();
    EXPECT_EQ(machine->name(), "live");
    EXPECT_FALSE(machine->emulated());
    EXPECT_TRUE(machine->find(Place::host()));
}

}  // namespace
}  // namespace sidestep::topology
