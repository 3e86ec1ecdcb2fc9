// The built-in machines whose GPUs meet over PCIe alone.
#include <gtest/gtest.h>

#include <sidestep/topology.hpp>

#include "tests/unit/topology/model_rows.hpp"
#include "topology/link_rates.hpp"

namespace sidestep {
namespace {

using Rows = std::vector<std::string>;

constexpr double gen4_x16 = 16 * 16 * 128.0 / 130 / 8;
constexpr double reached = 26.3 / 31.508;  // of PCIe 4

TEST(Pcie4L40s, HangsBelowSwitches) {
    const Topology machine = built_in("pcie-4l40s");
    EXPECT_EQ(rows(machine, DeviceKind::gpu),
              (Rows{"X PIX PXB PXB", "PIX X PXB PXB", "PXB PXB X PIX", "PXB PXB PIX X"}));
    EXPECT_EQ(rows(machine, DeviceKind::nic), (Rows{"PIX PXB", "PIX PXB", "PXB PIX", "PXB PIX"}));
    EXPECT_EQ(row(machine, 0, DeviceKind::drive), "PIX PIX PXB PXB");
    EXPECT_EQ(row(machine, 3, DeviceKind::drive), "PXB PXB PIX PIX");
    EXPECT_EQ(machine.device(*machine.find("gpu:3")).memory, Bytes{46068} << 20);
}

TEST(Pcie4L40s, PeersMeetAtASwitchWithoutAtomics) {
    const Topology machine = built_in("pcie-4l40s");
    for (int to = 1; to < 4; ++to) {
        EXPECT_TRUE(machine.peer_access(0, to).allowed) << to;
        EXPECT_FALSE(machine.peer_access(0, to).atomics) << to;
    }
    EXPECT_NEAR(pair(machine, "gpu:0", "gpu:1").gb_per_s, gen4_x16 * reached, 1e-6);
    EXPECT_NEAR(pair(machine, "gpu:0", "gpu:3").gb_per_s, gen4_x16 * reached, 1e-6);
    EXPECT_NEAR(pair(machine, "gpu:0", "gpu:1").latency_us, 0.8, 1e-9);
    EXPECT_NEAR(pair(machine, "gpu:0", "gpu:3").latency_us, 1.6, 1e-9);
    EXPECT_NEAR(pair(machine, "gpu:0", "drive:nvme0").gb_per_s, gen4_x16 / 4 * reached, 1e-6);
    EXPECT_EQ(pair(machine, "gpu:0", "drive:nvme0").words, "PCIe gen4 x4");
}

// What the model is for: a switch that redirects takes the pair up to the host bridge.
TEST(Pcie4L40s, RedirectingSwitchesTurnPairsAroundAtTheHostBridge) {
    Topology::Parts parts = built_in("pcie-4l40s").parts();
    for (Device& device : parts.devices) device.acs_redirect = device.kind == DeviceKind::pcie_switch;
    const Topology machine = Topology::create(parts).value();
    const Pair turned = pair(machine, "gpu:0", "gpu:1");
    EXPECT_EQ(turned.pair.kind, PathClass::pix) << "the class tells of wires, not of access control";
    EXPECT_TRUE(turned.redirected);
    EXPECT_GT(turned.latency_us, 0.8);
    EXPECT_FALSE(pair(built_in("pcie-4l40s"), "gpu:0", "gpu:1").redirected);
}

TEST(Pcie2s, HasGpusOnBothSockets) {
    const Topology machine = built_in("pcie-2s");
    EXPECT_EQ(rows(machine, DeviceKind::gpu),
              (Rows{"X NODE SYS SYS", "NODE X SYS SYS", "SYS SYS X NODE", "SYS SYS NODE X"}));
    EXPECT_EQ(rows(machine, DeviceKind::nic), (Rows{"NODE SYS", "NODE SYS", "SYS NODE", "SYS NODE"}));
    EXPECT_EQ(rows(machine, DeviceKind::drive), (Rows{"NODE SYS", "NODE SYS", "SYS NODE", "SYS NODE"}));
    EXPECT_EQ(to_string(pair(machine, "nic:mlx5_0", "drive:nvme0").pair), "PHB");
    for (int to = 1; to < 4; ++to) {
        EXPECT_TRUE(machine.peer_access(0, to).allowed) << to;
        EXPECT_FALSE(machine.peer_access(0, to).atomics) << to;
    }
    EXPECT_NEAR(pair(machine, "gpu:0", "gpu:3").gb_per_s, gen4_x16 * reached * 5 / 6, 1e-6)
        << "to the other socket";
    EXPECT_EQ(pair(machine, "gpu:0", "gpu:3").words, "PCIe gen4 x16 + socket link");
}

TEST(Laptop, HasOneOfEach) {
    const Topology machine = built_in("laptop");
    for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::gpu, DeviceKind::drive, DeviceKind::nic})
        EXPECT_EQ(count(machine, kind), 1) << to_string(kind);
    EXPECT_EQ(row(machine, 0, DeviceKind::drive), "PHB");
    EXPECT_EQ(row(machine, 0, DeviceKind::nic), "PHB");
    const auto host = machine.path(*machine.find("gpu:0"), *machine.find("cpu:0"));
    EXPECT_NEAR(host->gb_per_s, gen4_x16 / 2, 1e-9);
    EXPECT_EQ(machine.describe(*host), "PCIe gen4 x8");
}

}  // namespace
}  // namespace sidestep
