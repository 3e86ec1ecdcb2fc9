// What becomes of the elements of NCCL's topology files, and of every oddity that such files have.
#include "tests/unit/topology/nccl_xml_files.hpp"

namespace sidestep {
namespace {

using testing::between;
using testing::gpu;
using testing::machine;
using testing::noted;
using testing::property;
using testing::read;
using testing::recorded;

const Device& device(const Topology& topology, std::string_view name) {
    const auto found = topology.find(name);
    EXPECT_TRUE(found) << name;
    return topology.device(found.value_or(0));
}

const Link& link_up(const Topology& topology, const std::string& name) {
    const DeviceId id = topology.find(name).value();
    const DeviceId above = topology.parent(id).value();
    for (const Link& link : topology.links()) {
        if (link.a == id && link.b == above) return link;
    }
    ADD_FAILURE() << name << " has no link up";
    return topology.links().front();
}

TEST(NcclXmlRead, ReadsAWholeMachine) {
    const Topology h200 = read(recorded("hgx-h200.xml"), "/etc/topology/hgx-h200.xml");
    EXPECT_EQ(h200.name(), "hgx-h200");
    EXPECT_TRUE(h200.emulated());
    EXPECT_EQ(h200.gpu_count(), 8);
    EXPECT_TRUE(h200.notes().empty());
    const Device& gpu3 = device(h200, "gpu:3");
    EXPECT_EQ(gpu3.bus_id, "0000:61:00.0");
    EXPECT_EQ(gpu3.model, "NVIDIA H200");
    EXPECT_EQ(gpu3.numa_node, 0);
    EXPECT_EQ(property(gpu3, "cc"), "9.0");
    EXPECT_EQ(property(gpu3, "nccl.gdr"), "1");
    EXPECT_EQ(property(gpu3, "nccl.rank"), "3");
    const Device& card = device(h200, "nic:mlx5_11");
    EXPECT_EQ(card.index, 7);
    EXPECT_EQ(card.model, "NVIDIA ConnectX-7");
    EXPECT_EQ(property(card, "net_mb_per_s"), "400000");
    EXPECT_EQ(property(card, "nccl.guid"), "0xa088c20300000007");
    EXPECT_EQ(device(h200, "cpu:1").model, "GenuineIntel family 6 model 143");
    EXPECT_EQ(property(device(h200, "cpu:1"), "nccl.affinity"), "ffffffff,00000000");

    EXPECT_EQ(between(h200, "gpu:0", "gpu:7"), "NV18");
    EXPECT_EQ(between(h200, "gpu:7", "nic:mlx5_11"), "PIX");
    EXPECT_EQ(between(h200, "gpu:0", "nic:mlx5_3"), "PHB");  // as NCCL: it knows no host bridges
    EXPECT_EQ(between(h200, "gpu:0", "nic:mlx5_11"), "SYS");
    EXPECT_EQ(link_up(h200, "gpu:0").width, 16);
    EXPECT_NEAR(link_up(h200, "gpu:0").gb_per_s, 63.015, 0.001);
    const auto path = h200.path(*h200.find("gpu:0"), *h200.find("gpu:5"));
    ASSERT_TRUE(path);
    EXPECT_NEAR(path->gb_per_s, 18 * 26.5625, 1e-9);
    int switches = 0;
    for (const Device& each : h200.devices()) switches += each.kind == DeviceKind::nvswitch ? 1 : 0;
    EXPECT_EQ(switches, 4);
    EXPECT_EQ(device(h200, "nvswitch:2").bus_id, "0000:09:00.0");
}

TEST(NcclXmlRead, ANameInTheFileIsTheName) {
    EXPECT_EQ(read("<system version=\"1\" name=\"mine\"/>", "a/b.xml").name(), "mine");
    EXPECT_EQ(read("<system version=\"1\"/>", "a/b.xml").name(), "b");
    EXPECT_EQ(read("<system version=\"1\"/>", "topology").name(), "topology");
    EXPECT_EQ(read("<!-- a comment --><!-- another\n --><system version=\"1\"/>\n<!-- and one more -->")
                  .gpu_count(),
              0);
}

// GPUs without <gpu> are numbered as NVML does, by their bus ids; this file does not list them in that order.
TEST(NcclXmlRead, GpusWithoutAnElementOfTheirOwn) {
    const Topology a100 = read(recorded("a100x8-vm-flat.xml"));
    ASSERT_EQ(a100.gpu_count(), 8);
    EXPECT_EQ(device(a100, "gpu:0").bus_id, "0001:00:00.0");
    EXPECT_EQ(device(a100, "gpu:2").bus_id, "0003:00:00.0");
    EXPECT_EQ(device(a100, "gpu:4").bus_id, "000b:00:00.0");
    EXPECT_EQ(device(a100, "gpu:7").bus_id, "000e:00:00.0");
    EXPECT_EQ(between(a100, "gpu:0", "gpu:1"), "PIX");
    EXPECT_EQ(between(a100, "gpu:0", "gpu:2"), "SYS");
    EXPECT_EQ(device(a100, "nic:0").kind, DeviceKind::nic);
    EXPECT_NEAR(link_up(a100, "gpu:0").gb_per_s, 31.508, 0.001);  // "16 GT/s", as older kernels write it
    EXPECT_EQ(a100.notes().size(), 1U) << "who lends NVLinks";

    // Up to what NCCL allows without being told.
    EXPECT_EQ(a100.parts().pcie_peers, PathClass::pxb);
    EXPECT_TRUE(a100.peer_access(0, 1).allowed);
    EXPECT_FALSE(a100.peer_access(0, 1).atomics);
    EXPECT_FALSE(a100.peer_access(0, 2).allowed);
}

TEST(NcclXmlRead, LinksToThemselvesAndWithoutSpeed) {
    const Topology a100 = read(recorded("a100x4-vm-self-links.xml"));
    ASSERT_EQ(a100.gpu_count(), 4);
    EXPECT_EQ(between(a100, "gpu:0", "gpu:1"), "SYS");
    EXPECT_EQ(device(a100, "gpu:2").model, "NVIDIA A100 80GB PCIe");
    EXPECT_TRUE(noted(a100, "line 6: <nvlink target=\"0001:00:00.0\">: points at its own GPU"));
    EXPECT_TRUE(noted(a100, "counted as gen3 or x16, as NCCL does: 4"));
    EXPECT_EQ(link_up(a100, "gpu:0").width, 16);
    EXPECT_NEAR(link_up(a100, "gpu:0").gb_per_s, 15.754, 0.001);
    // A card straight below the processor.
    const Device& card = device(a100, "nic:eth0");
    EXPECT_EQ(card.bus_id, "");
    EXPECT_EQ(card.numa_node, 0);
    EXPECT_EQ(between(a100, "gpu:0", "nic:eth0"), "PHB");
    EXPECT_EQ(between(a100, "gpu:1", "nic:eth0"), "SYS");
}

TEST(NcclXmlRead, DevicesWithoutAClass) {
    const Topology a10g = read(recorded("a10gx8-vm-no-class.xml"));
    EXPECT_EQ(a10g.gpu_count(), 0);
    EXPECT_EQ(a10g.notes().front(),
              "the file holds no GPU: one is a <pci> with a <gpu> in it, or of class 0x0302");
    EXPECT_TRUE(noted(
        a10g, "do not say their class and are counted as switches, as NCCL does: 9 (first: <pci busid"));
    EXPECT_LE(a10g.notes().size(), 3U);
    EXPECT_EQ(device(a10g, "pcie_switch:8").bus_id, "0000:00:15.0");
    EXPECT_EQ(device(a10g, "cpu:1").model, "");
}

TEST(NcclXmlRead, HiddenSwitchesAndOddBusIds) {
    const Topology h200 = read(recorded("h200x4-vm-hidden-switches.xml"));
    ASSERT_EQ(h200.gpu_count(), 4);
    EXPECT_EQ(device(h200, "gpu:0").bus_id, "0000:01:00.0");  // NVML writes 00000000:01:00.0
    EXPECT_EQ(between(h200, "gpu:0", "gpu:3"), "NV18");
    EXPECT_EQ(device(h200, "nvswitch:0").bus_id, "");
    EXPECT_EQ(device(h200, "cpu:0").numa_node, -1);
    EXPECT_FALSE(h200.find("nvswitch:1"));
    EXPECT_EQ(property(device(h200, "nic:ens5"), "nccl.speed"), "-1");
    EXPECT_EQ(link_up(h200, "nic:ens5").width, 16);  // 255 stands for "not known"

    const Topology upper =
        read(machine(gpu(0x1b, 0, "<nvlink target=\"0000:AF:00.0\" count=\"2\" tclass=\"0x030200\"/>") +
                     gpu(0xaf, 1, "<nvlink target=\"00000000:1B:00.0\" count=\"2\" tclass=\"0x0302\"/>")));
    EXPECT_EQ(between(upper, "gpu:0", "gpu:1"), "NV2");
    const Topology domain = read(machine("<pci busid=\"10000:E1:00.0\" class=\"0x010802\"/>"));
    EXPECT_EQ(device(domain, "drive:0").bus_id, "10000:e1:00.0");
}

TEST(NcclXmlRead, InfinityFabricOfVersion2) {
    const Topology mi300x = read(recorded("mi300x-rccl.xml"));
    ASSERT_EQ(mi300x.gpu_count(), 8);
    EXPECT_EQ(mi300x.parts().properties.at("nccl.version"), "2");
    EXPECT_EQ(between(mi300x, "gpu:0", "gpu:7"), "XGMI");
    EXPECT_EQ(between(mi300x, "gpu:0", "nic:mlx5_0"), "PXB");
    EXPECT_EQ(device(mi300x, "gpu:4").model, "AMD Instinct MI300X");
    EXPECT_EQ(property(device(mi300x, "gpu:4"), "gfx"), "gfx942");
    EXPECT_EQ(property(device(mi300x, "gpu:4"), "nccl.sm"), "304");
    EXPECT_EQ(property(device(mi300x, "gpu:4"), "cc"), "(none)");
    EXPECT_EQ(property(device(mi300x, "gpu:4"), "nccl.arch"), "38911");
    const auto path = mi300x.path(*mi300x.find("gpu:0"), *mi300x.find("gpu:7"), Fabric::nvlink);
    ASSERT_TRUE(path);
    EXPECT_DOUBLE_EQ(path->gb_per_s, 64);
}

TEST(NcclXmlRead, SeveralMachinesOfARack) {
    const Topology rack = read(recorded("gb300-two-trays.xml"));
    EXPECT_EQ(rack.gpu_count(), 8);
    EXPECT_EQ(device(rack, "node1/gpu:2").index, 6);
    EXPECT_EQ(device(rack, "node1/gpu:2").node, 1);
    EXPECT_EQ(device(rack, "node1/cpu:1").numa_node, 1);
    EXPECT_EQ(device(rack, "node1/gpu:2").bus_id, device(rack, "node0/gpu:2").bus_id);
    EXPECT_EQ(device(rack, "nvswitch:0").node, -1);
    EXPECT_EQ(between(rack, "node0/gpu:0", "node1/gpu:3"), "NV18");
    EXPECT_EQ(between(rack, "node0/gpu:0", "node1/nic:mlx5_0"), "NET");
    EXPECT_EQ(rack.parent(*rack.find("node0/gpu:0")), rack.find("node0/cpu:0"));
    bool c2c = false;
    for (const Link& link : rack.links()) {
        if (link.kind != LinkKind::c2c) continue;
        c2c = true;
        EXPECT_EQ(link.width, 5);
        EXPECT_NEAR(link.gb_per_s, 223.56, 1e-9);
    }
    EXPECT_TRUE(c2c);
}

TEST(NcclXmlRead, LinksBetweenSwitches) {
    const Topology l40s = read(recorded("l40sx4-switch-links.xml"));
    EXPECT_EQ(between(l40s, "gpu:0", "gpu:2"), "PXB");
    const DeviceId a = l40s.find("pcie_switch:1").value();
    const DeviceId b = l40s.find("pcie_switch:2").value();
    int found = 0;
    for (const Link& link : l40s.links()) found += link.a == a && link.b == b ? 1 : 0;
    EXPECT_EQ(found, 1);
    const auto path = l40s.path(*l40s.find("gpu:0"), *l40s.find("gpu:2"));
    ASSERT_TRUE(path);
    EXPECT_EQ(path->links.size(), 3U);  // not through the upper switch

    const Topology lonely = read(
        machine("<pci busid=\"0000:01:00.0\" class=\"0x060400\"><pcilink target=\"0000:09:00.0\"/></pci>"));
    EXPECT_TRUE(noted(lonely, "<pcilink target=\"0000:09:00.0\">: no two switches of this file"));
}

TEST(NcclXmlRead, NvlinksToIbmProcessors) {
    const Topology power = read(recorded("v100x4-power9.xml"));
    EXPECT_EQ(between(power, "gpu:0", "gpu:1"), "NV3");
    EXPECT_EQ(between(power, "gpu:0", "gpu:2"), "SYS");
    EXPECT_EQ(device(power, "cpu:8").model, "ppc64");
    const auto path = power.path(*power.find("gpu:2"), *power.find("cpu:8"));
    ASSERT_TRUE(path);
    EXPECT_NEAR(path->gb_per_s, 3 * 25.78125, 1e-9);
}

TEST(NcclXmlRead, RatesFollowTheComputeCapability) {
    const auto rate = [](const char* sm) {
        const std::string text =
            machine(fmt::format("<pci busid=\"0000:01:00.0\" class=\"0x030200\"><gpu dev=\"0\"{}><nvlink "
                                "target=\"fffffff:ffff:ff\" "
                                "count=\"2\"/></gpu></pci>",
                                *sm == '\0' ? "" : fmt::format(" sm=\"{}\"", sm)));
        const Topology topology = read(text);
        for (const Link& link : topology.links()) {
            if (link.kind == LinkKind::nvlink) return link.gb_per_s / 2;
        }
        return 0.0;
    };
    EXPECT_DOUBLE_EQ(rate("60"), 20);
    EXPECT_DOUBLE_EQ(rate("70"), 25.78125);
    EXPECT_DOUBLE_EQ(rate("80"), 25);
    EXPECT_DOUBLE_EQ(rate("86"), 14.0625);
    EXPECT_DOUBLE_EQ(rate("90"), 26.5625);
    EXPECT_DOUBLE_EQ(rate("103"), 53.125);
    EXPECT_DOUBLE_EQ(rate(""), 25);
}

// What two GPUs say of their links need not agree; a link of ours goes both ways.
TEST(NcclXmlRead, LinksThatTheTwoEndsTellDifferently) {
    const auto links = [](const std::string& forth, const std::string& back) {
        return read(machine(gpu(1, 0, forth) + gpu(2, 1, back)));
    };
    const std::string to_first = "<nvlink target=\"0000:01:00.0\" count=\"{}\" tclass=\"0x030200\"/>";
    const std::string four = "<nvlink target=\"0000:02:00.0\" count=\"4\" tclass=\"0x030200\"/>";
    EXPECT_EQ(between(links(four, ""), "gpu:0", "gpu:1"), "NV4");
    EXPECT_TRUE(noted(links(four, ""), "tell of 4 and 0 links to each other; counted: 4"));
    EXPECT_EQ(between(links(four, fmt::format(fmt::runtime(to_first), 2)), "gpu:0", "gpu:1"), "NV2");
    // Several lines of one end add up.
    EXPECT_EQ(between(links(four + four, fmt::format(fmt::runtime(to_first), 8)), "gpu:0", "gpu:1"), "NV8");
    EXPECT_TRUE(links(four, fmt::format(fmt::runtime(to_first), 4)).notes().empty());
    EXPECT_TRUE(noted(links("<nvlink target=\"0000:02:00.0\" count=\"0\" tclass=\"0x030200\"/>", ""),
                      "has no links"));
    // Without tclass: a GPU of the file, else an NVSwitch.
    EXPECT_EQ(between(links("<nvlink target=\"0000:02:00.0\" count=\"4\"/>", ""), "gpu:0", "gpu:1"), "NV4");
    const Topology through = links("<nvlink target=\"0000:0a:00.0\" count=\"4\"/>",
                                   "<nvlink target=\"0000:0a:00.0\" count=\"3\"/>");
    EXPECT_EQ(between(through, "gpu:0", "gpu:1"), "NV3");
    EXPECT_EQ(device(through, "nvswitch:0").bus_id, "0000:0a:00.0");
}

TEST(NcclXmlRead, PortsOfOneCard) {
    const Topology ports = read(machine(
        "<pci busid=\"0000:41:00.0\" class=\"0x020700\" vendor=\"0x15b3\" device=\"0x101b\" link_speed=\"16 "
        "GT/s\" "
        "link_width=\"16\"><nic><net name=\"mlx5_0\" dev=\"0\" port=\"1\"/><net name=\"mlx5_1\" dev=\"1\" "
        "port=\"2\"/></nic></pci>"));
    EXPECT_EQ(device(ports, "nic:mlx5_0").bus_id, "0000:41:00.0");
    EXPECT_EQ(device(ports, "nic:mlx5_1").bus_id, "0000:41:00.0");
    EXPECT_EQ(property(device(ports, "nic:mlx5_1"), "nccl.port"), "2");
    EXPECT_EQ(between(ports, "nic:mlx5_0", "nic:mlx5_1"), "PHB");
    EXPECT_NEAR(link_up(ports, "nic:mlx5_1").gb_per_s, 31.508, 0.001);
}

TEST(NcclXmlRead, NumbersAndNamesThatAreThereTwice) {
    const Topology twice = read(machine(gpu(9, 0) + gpu(5, 0) + gpu(3, 2) +
                                        "<nic><net name=\"eth0\" dev=\"1\"/><net name=\"eth0\" dev=\"1\"/>"
                                        "<net name=\"7\" dev=\"4\"/><net name=\"has blanks\"/></nic>"));
    EXPECT_EQ(device(twice, "gpu:0").bus_id, "0000:09:00.0");
    EXPECT_EQ(device(twice, "gpu:1").bus_id, "0000:05:00.0");
    EXPECT_EQ(device(twice, "gpu:2").bus_id, "0000:03:00.0");
    EXPECT_TRUE(noted(twice, "the same number to several of kind gpu"));
    EXPECT_EQ(device(twice, "nic:eth0").index, 1);
    EXPECT_EQ(device(twice, "nic:eth0#0").index, 0);
    EXPECT_EQ(property(device(twice, "nic:eth0#0"), "nccl.name"), "eth0");
    EXPECT_EQ(property(device(twice, "nic:7"), "nccl.name"), "7");
    EXPECT_EQ(property(device(twice, "nic:2"), "nccl.name"), "has blanks");
}

// NCCL passes over what it does not know; we count it.
TEST(NcclXmlRead, UnknownElements) {
    const Topology odd = read(
        "<system version=\"1\"><gpu dev=\"0\"/><cpu numaid=\"0\" colour=\"red\"><future><pci "
        "busid=\"no\"/></future>"
        "<pci busid=\"0000:01:00.0\" class=\"0x030200\"><gpu "
        "dev=\"0\"><nvlinks/></gpu></pci></cpu></system>");
    EXPECT_EQ(odd.gpu_count(), 1);
    EXPECT_TRUE(noted(odd, "left out: 3 (first: <gpu> in line 1)"));
    EXPECT_EQ(property(device(odd, "cpu:0"), "nccl.colour"), "(none)");
}

// One <gpu> for every rank that shares a GPU, or every partition of it.
TEST(NcclXmlRead, SeveralRanksOfAGpu) {
    const Topology shared = read(machine(
        "<pci busid=\"0000:01:00.0\" class=\"0x030200\"><gpu dev=\"0\" sm=\"107\" mlopart=\"0\" rank=\"0\"/>"
        "<gpu dev=\"0\" sm=\"107\" mlopart=\"1\" rank=\"1\"><nvlink target=\"no\" "
        "count=\"x\"/></gpu></pci>"));
    EXPECT_EQ(shared.gpu_count(), 1);
    EXPECT_EQ(property(device(shared, "gpu:0"), "nccl.mlopart"), "0");
    EXPECT_TRUE(noted(shared, "holds several <gpu>"));
}

TEST(NcclXmlRead, DisplaysOfTheBoardAreNoGpus) {
    const Topology board =
        read(machine("<pci busid=\"0000:03:00.0\" class=\"0x030000\" vendor=\"0x1a03\"/>"
                     "<pci busid=\"0000:04:00.0\" class=\"0x030000\" vendor=\"0x10de\"/>"
                     "<pci busid=\"0000:05:00.0\" class=\"0x068000\" vendor=\"0x10de\"/>"
                     "<pci busid=\"0000:06:00.0\" class=\"0x120000\" vendor=\"0x1002\"/>"));
    EXPECT_EQ(board.gpu_count(), 2);
    EXPECT_EQ(device(board, "nvswitch:0").bus_id, "0000:05:00.0");
    EXPECT_TRUE(noted(board, "is of class 0x030000, and is counted as a switch"));
}

// Bridges are made up often enough that some files give two the same bus id; nothing is looked up by it.
TEST(NcclXmlRead, BridgesMayShareABusId) {
    const Topology bridges =
        read(machine("<pci busid=\"0000:c5:00.0\" class=\"0x060400\">" + gpu(0xcf, 0) + "</pci>" +
                     "<pci busid=\"0000:c5:00.0\" class=\"0x060400\">" + gpu(0xd0, 1) + "</pci>"));
    EXPECT_EQ(between(bridges, "gpu:0", "gpu:1"), "PHB");
    EXPECT_TRUE(noted(bridges, "has the same busid; both count"));
}

TEST(NcclXmlRead, EveryRecordedFileReads) {
    EXPECT_GE(testing::recorded_files().size(), 9U);
    for (const auto& file : testing::recorded_files()) {
        const Topology topology = read(testing::text_of(file), file.string());
        EXPECT_GT(topology.devices().size(), 2U) << file;
        EXPECT_EQ(Topology::from_json(topology.to_json(), "")->parts(), topology.parts()) << file;
        EXPECT_EQ(testing::text_of(file).find("<!-- "), 0U) << file << " does not say where it comes from";
    }
}

}  // namespace
}  // namespace sidestep
