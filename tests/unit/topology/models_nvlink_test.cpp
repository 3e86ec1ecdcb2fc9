// The built-in machines with NVLink or Infinity Fabric, against what is published of them.
#include <gtest/gtest.h>

#include <cmath>

#include <sidestep/topology.hpp>

#include "tests/unit/topology/model_rows.hpp"

namespace sidestep {
namespace {

using Rows = std::vector<std::string>;

constexpr Bytes mib = Bytes{1} << 20;

struct Figures {
    const char* name;
    int gpus;
    int nvswitches;
    int links;          // of a GPU
    double nominal;     // GB/s of a GPU, one direction, as data sheets have it
    const char* pairs;  // the class between all GPUs, "" where it differs
    const char* model;
    Bytes memory;
    const char* cc;
};

// Fabric Manager user guide, data sheets, nvidia-smi.
constexpr Figures figures[] = {
    {"dgx-1v", 8, 0, 6, 150, "", "Tesla V100-SXM2-32GB", 32768 * mib, "7.0"},
    {"dgx-2", 16, 12, 6, 150, "NV6", "Tesla V100-SXM3-32GB", 32768 * mib, "7.0"},
    {"dgx-a100", 8, 6, 12, 300, "NV12", "NVIDIA A100-SXM4-80GB", 81920 * mib, "8.0"},
    {"dgx-h100", 8, 4, 18, 450, "NV18", "NVIDIA H100 80GB HBM3", 81559 * mib, "9.0"},
    {"dgx-h200", 8, 4, 18, 450, "NV18", "NVIDIA H200", 143771 * mib, "9.0"},
    {"dgx-b200", 8, 2, 18, 900, "NV18", "NVIDIA B200", 183359 * mib, "10.0"},
    {"gb200-nvl72", 72, 18, 18, 900, "NV18", "NVIDIA GB200", 189471 * mib, "10.0"},
    {"gb200-tray", 4, 18, 18, 900, "NV18", "NVIDIA GB200", 189471 * mib, "10.0"},
    {"mi300x", 8, 0, 7, 448, "XGMI", "AMD Instinct MI300X", 196608 * mib, ""},
};

TEST(NvlinkModels, HaveThePublishedFigures) {
    for (const Figures& wanted : figures) {
        const Topology machine = built_in(wanted.name);
        EXPECT_EQ(machine.gpu_count(), wanted.gpus) << wanted.name;
        EXPECT_EQ(count(machine, DeviceKind::nvswitch), wanted.nvswitches) << wanted.name;
        if (*wanted.pairs != '\0') {
            EXPECT_EQ(all_pairs(machine), wanted.pairs) << wanted.name;
        }
        for (int gpu = 0; gpu < wanted.gpus; ++gpu) {
            const Nvlinks all = nvlinks(machine, gpu);
            EXPECT_EQ(all.links, wanted.links) << wanted.name << " gpu:" << gpu;
            // As signalled the links carry up to 1/16 more than data sheets say.
            EXPECT_GE(all.gb_per_s, wanted.nominal) << wanted.name;
            EXPECT_LE(all.gb_per_s, wanted.nominal * 17 / 16) << wanted.name;
            const Device& device = machine.device(*machine.find(DeviceKind::gpu, gpu));
            EXPECT_EQ(device.model, wanted.model);
            EXPECT_EQ(device.memory, wanted.memory) << wanted.name;
            const auto cc = device.properties.find("cc");
            EXPECT_EQ(cc == device.properties.end() ? "" : cc->second, wanted.cc) << wanted.name;
        }
    }
}

// Between two GPUs of a machine with NVSwitches flow all their links, and no machine has more.
TEST(NvlinkModels, PathsCountAllLinks) {
    for (const Figures& wanted : figures) {
        if (wanted.nvswitches == 0) continue;
        const Topology machine = built_in(wanted.name);
        const DeviceId first = *machine.find(DeviceKind::gpu, 0);
        for (const int other : {1, wanted.gpus - 1}) {
            const auto path = machine.path(first, *machine.find(DeviceKind::gpu, other));
            ASSERT_TRUE(path) << wanted.name;
            EXPECT_EQ(path->nvlinks, wanted.links) << wanted.name << " gpu:" << other;
            EXPECT_NEAR(path->gb_per_s, nvlinks(machine, 0).gb_per_s, 1e-9) << wanted.name;
            EXPECT_TRUE(machine.peer_access(0, other).allowed) << wanted.name;
            EXPECT_TRUE(machine.peer_access(other, 0).atomics) << wanted.name;
        }
    }
}

TEST(Dgx1v, IsAHybridCubeMesh) {
    const Topology machine = built_in("dgx-1v");
    EXPECT_EQ(rows(machine, DeviceKind::gpu), (Rows{
                                                  "X NV1 NV1 NV2 NV2 SYS SYS SYS",
                                                  "NV1 X NV2 NV1 SYS NV2 SYS SYS",
                                                  "NV1 NV2 X NV2 SYS SYS NV1 SYS",
                                                  "NV2 NV1 NV2 X SYS SYS SYS NV1",
                                                  "NV2 SYS SYS SYS X NV1 NV1 NV2",
                                                  "SYS NV2 SYS SYS NV1 X NV2 NV1",
                                                  "SYS SYS NV1 SYS NV1 NV2 X NV2",
                                                  "SYS SYS SYS NV1 NV2 NV1 NV2 X",
                                              }));
    EXPECT_EQ(rows(machine, DeviceKind::nic), (Rows{
                                                  "PIX PHB SYS SYS",
                                                  "PIX PHB SYS SYS",
                                                  "PHB PIX SYS SYS",
                                                  "PHB PIX SYS SYS",
                                                  "SYS SYS PIX PHB",
                                                  "SYS SYS PIX PHB",
                                                  "SYS SYS PHB PIX",
                                                  "SYS SYS PHB PIX",
                                              }));
}

TEST(Dgx1v, PairsWithoutALinkAreRefusedAndGoByTheHost) {
    const Topology machine = built_in("dgx-1v");
    EXPECT_TRUE(machine.peer_access(0, 4).atomics);
    EXPECT_FALSE(machine.peer_access(0, 5).allowed);
    EXPECT_NE(machine.peer_access(0, 5).reason.find("SYS"), std::string::npos);
    const Pair linked = pair(machine, "gpu:0", "gpu:3");
    EXPECT_NEAR(linked.gb_per_s, 47.9, 1e-6);
    EXPECT_EQ(linked.words, "NVLink (2 links)");
    const Pair far = pair(machine, "gpu:0", "gpu:5");
    EXPECT_EQ(far.words, "PCIe gen3 x16 + socket link");
    EXPECT_LT(far.gb_per_s, 15.754);
}

TEST(Dgx2, JoinsBothBoardsThroughTrunks) {
    const Topology machine = built_in("dgx-2");
    EXPECT_EQ(row(machine, 0, DeviceKind::nic), "PIX PXB NODE NODE SYS SYS SYS SYS SYS");
    EXPECT_EQ(row(machine, 2, DeviceKind::nic), "PXB PIX NODE NODE SYS SYS SYS SYS SYS");
    EXPECT_EQ(row(machine, 15, DeviceKind::nic), "SYS SYS SYS SYS NODE NODE PXB PIX NODE");
    const DeviceId gpu0 = *machine.find("gpu:0");
    EXPECT_EQ(machine.path(gpu0, *machine.find("gpu:7"))->links.size(), 2U) << "one switch";
    const auto across = machine.path(gpu0, *machine.find("gpu:8"));
    EXPECT_EQ(across->links.size(), 3U) << "two switches";
    EXPECT_NEAR(across->latency_us, 0.3, 1e-9);
    EXPECT_NEAR(across->gb_per_s, 6 * 25.78125, 1e-9);
    int trunks = 0;
    for (const Link& link : machine.links()) {
        if (machine.device(link.a).kind != DeviceKind::nvswitch) continue;
        ASSERT_EQ(machine.device(link.b).kind, DeviceKind::nvswitch);
        EXPECT_EQ(link.width, 8);
        ++trunks;
    }
    EXPECT_EQ(trunks, 6);
}

TEST(DgxA100, HasTheMatrixOfTheMachine) {
    const Topology machine = built_in("dgx-a100");
    // As nvidia-smi prints it, but for the order of the cards: those for storage come last here.
    EXPECT_EQ(row(machine, 0, DeviceKind::nic), "PXB PXB SYS SYS SYS SYS SYS SYS SYS SYS");
    EXPECT_EQ(row(machine, 3, DeviceKind::nic), "SYS SYS PXB PXB SYS SYS SYS SYS SYS SYS");
    EXPECT_EQ(row(machine, 4, DeviceKind::nic), "SYS SYS SYS SYS PXB PXB SYS SYS SYS SYS");
    EXPECT_EQ(row(machine, 7, DeviceKind::nic), "SYS SYS SYS SYS SYS SYS PXB PXB SYS SYS");
    EXPECT_EQ(pair(machine, "nic:mlx5_0", "nic:mlx5_1").pair.kind, PathClass::pxb);
    EXPECT_EQ(machine.device(*machine.find("nic:mlx5_9")).bus_id, "0000:cc:00.0");
    EXPECT_EQ(machine.device(*machine.find("nic:mlx5_4")).properties.at("port2.rate"), "200 Gb/sec (4X HDR)");
    const std::vector<int> numa = {3, 3, 1, 1, 7, 7, 5, 5};
    for (int gpu = 0; gpu < 8; ++gpu)
        EXPECT_EQ(machine.device(*machine.find(Place::gpu(gpu))).numa_node,
                  numa[static_cast<std::size_t>(gpu)]);
    EXPECT_NEAR(pair(machine, "gpu:0", "gpu:7").gb_per_s, 270, 1e-6);
    // Both NUMA nodes of one socket and the other socket are reached.
    for (int node = 0; node < 8; ++node)
        EXPECT_TRUE(machine.path(*machine.find("gpu:0"), *machine.find(Place::host(node)))) << node;
}

class DgxGen5 : public testing::TestWithParam<const char*> {};

TEST_P(DgxGen5, HasTheTreeOfTheMachine) {
    const Topology machine = built_in(GetParam());
    EXPECT_EQ(count(machine, DeviceKind::cpu), 2);
    EXPECT_EQ(count(machine, DeviceKind::nic), 10);
    EXPECT_EQ(row(machine, 0, DeviceKind::nic), "PXB NODE NODE NODE SYS SYS SYS SYS NODE SYS");
    EXPECT_EQ(row(machine, 2, DeviceKind::nic), "NODE NODE PXB NODE SYS SYS SYS SYS NODE SYS");
    EXPECT_EQ(row(machine, 7, DeviceKind::nic), "SYS SYS SYS SYS NODE NODE NODE PXB SYS NODE");
    EXPECT_EQ(machine.device(*machine.find(Place::gpu(7))).bus_id, "0000:df:00.0");
    EXPECT_EQ(machine.device(*machine.find(DeviceKind::nic, 7)).bus_id, "0000:dc:00.0");
    EXPECT_EQ(machine.device(*machine.find(Place::host(1))).memory, Bytes{1} << 40);
    const auto host = machine.path(*machine.find("gpu:0"), *machine.find(Place::host(0)));
    EXPECT_NEAR(host->gb_per_s, 63.015, 0.001);
    EXPECT_EQ(machine.describe(*host), "PCIe gen5 x16");
    EXPECT_EQ(machine.path(*machine.find("gpu:7"), *machine.find(Place::host(0)))->links.size(),
              host->links.size() + 1)
        << "over the link between the sockets";
    EXPECT_NEAR(pair(machine, "gpu:0", "cpu:0").gb_per_s, 55.5, 0.01);
}

INSTANTIATE_TEST_SUITE_P(NvlinkModels, DgxGen5, testing::Values("dgx-h100", "dgx-h200", "dgx-b200"),
                         [](const auto& tested) { return std::string(tested.param + 4); });

TEST(DgxH100, NamesItsCardsAndReachesWhatH200Measured) {
    const Topology machine = built_in("dgx-h100");
    EXPECT_EQ(machine.device(*machine.find("nic:mlx5_0")).index, 0);
    EXPECT_EQ(machine.device(*machine.find("nic:mlx5_11")).index, 7);
    EXPECT_EQ(machine.device(*machine.find("nic:mlx5_0")).properties.at("port1.rate"), "400 Gb/sec (4X NDR)");
    EXPECT_EQ(machine.device(*machine.find("nic:mlx5_7")).bus_id, "0000:aa:00.0") << "for storage";
    const Pair far = pair(machine, "gpu:0", "gpu:7");
    EXPECT_EQ(far.words, "NVLink (18 links through NVSwitch)");
    EXPECT_NEAR(far.gb_per_s, 396, 0.1);
    EXPECT_NEAR(far.latency_us, 0.2, 1e-9);
    std::vector<int> widths;
    for (const Link& link : machine.links()) {
        if (link.kind == LinkKind::nvlink && link.a == *machine.find("gpu:3")) widths.push_back(link.width);
    }
    EXPECT_EQ(widths, (std::vector<int>{5, 5, 4, 4}));
}

TEST(DgxB200, CallsItsCardsOtherwise) {
    const Topology machine = built_in("dgx-b200");
    EXPECT_EQ(machine.device(*machine.find("nic:mlx5_4")).bus_id, "0000:18:00.0");
    EXPECT_EQ(machine.device(*machine.find("nic:mlx5_5")).model, "NVIDIA BlueField-3");
    EXPECT_NEAR(pair(machine, "gpu:0", "gpu:1").gb_per_s, 770, 0.1);
}

TEST(Gb200, TraysOfTheRackAreMachinesOfTheirOwn) {
    const Topology rack = built_in("gb200-nvl72");
    EXPECT_EQ(count(rack, DeviceKind::cpu), 36);
    EXPECT_EQ(count(rack, DeviceKind::nic), 18 * 6);
    const Device& gpu = rack.device(*rack.find("node3/gpu:1"));
    EXPECT_EQ(gpu.node, 3);
    EXPECT_EQ(gpu.index, 3 * 4 + 1);
    EXPECT_EQ(gpu.bus_id, "0009:01:00.0");
    EXPECT_EQ(gpu.numa_node, 0);
    EXPECT_EQ(rack.find(Place::gpu(1).on("node3")), rack.find("node3/gpu:1"));
    EXPECT_EQ(rack.find(Place::host(1).on("node17")), rack.find("node17/cpu:1"));
    EXPECT_EQ(rack.device(*rack.find("nvswitch:17")).node, -1);
    const Pair across = pair(rack, "node0/gpu:0", "node17/gpu:3");
    EXPECT_EQ(to_string(across.pair), "NV18");
    EXPECT_NEAR(across.gb_per_s, 770, 0.1);
    EXPECT_TRUE(rack.peer_access(0, 71).atomics);
    EXPECT_EQ(to_string(rack.pair_class(*rack.find("node0/gpu:0"), *rack.find("node1/nic:mlx5_0"))), "NET");
}

TEST(Gb200, ReachesItsGraceOverC2c) {
    const Topology tray = built_in("gb200-tray");
    EXPECT_EQ(row(tray, 0, DeviceKind::nic), "SYS SYS SYS SYS SYS SYS");
    EXPECT_EQ(row(tray, 3, DeviceKind::nic), "SYS SYS SYS SYS SYS SYS");
    const auto near = tray.path(*tray.find("gpu:0"), *tray.find("cpu:0"));
    EXPECT_EQ(tray.describe(*near), "NVLink-C2C");
    EXPECT_NEAR(near->gb_per_s, 223.56, 1e-9);
    EXPECT_NEAR(tray.path(*tray.find("gpu:0"), *tray.find("cpu:1"))->gb_per_s, 150, 1e-9);
    const Pair card = pair(tray, "gpu:0", "nic:mlx5_0");
    EXPECT_NEAR(card.gb_per_s, 55.5, 0.01);
    EXPECT_EQ(tray.device(*tray.find("nvswitch:0")).node, 0);
    EXPECT_EQ(tray.device(*tray.find("nic:mlx5_4")).bus_id, "0010:03:00.0");
    EXPECT_EQ(tray.device(*tray.find("nic:mlx5_2")).model, "NVIDIA BlueField-3");
}

TEST(Mi300x, IsAFullMesh) {
    const Topology machine = built_in("mi300x");
    const DeviceId gpu0 = *machine.find("gpu:0");
    for (int other = 1; other < 8; ++other) {
        const DeviceId to = *machine.find(DeviceKind::gpu, other);
        EXPECT_EQ(machine.pair_class(gpu0, to), (PairClass{PathClass::xgmi, 1}));
        EXPECT_EQ(machine.path(gpu0, to)->links.size(), 1U);
        EXPECT_DOUBLE_EQ(machine.path(gpu0, to)->gb_per_s, 64);
    }
    EXPECT_EQ(pair(machine, "gpu:0", "gpu:7").words, "Infinity Fabric (1 link)");
    EXPECT_TRUE(machine.peer_access(0, 7).atomics);
    EXPECT_EQ(row(machine, 0, DeviceKind::nic), "PXB NODE NODE NODE SYS SYS SYS SYS");
    EXPECT_EQ(row(machine, 6, DeviceKind::nic), "SYS SYS SYS SYS NODE NODE PXB NODE");
    EXPECT_EQ(count(machine, DeviceKind::pcie_switch), 24);
}

}  // namespace
}  // namespace sidestep
