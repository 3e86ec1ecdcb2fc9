// What `lspci -vvv` prints, read: the tree, the links as they are and as they could be, access control.
#include "topology/lspci_text.hpp"

#include <gtest/gtest.h>

namespace sidestep::topology {
namespace {

// A root port, a switch with two ports, below it a card of H100 at half its lanes and a network card.
constexpr const char* server =
    "00:01.0 PCI bridge: Intel Corporation Device 352a (rev 04) (prog-if 00 [Normal decode])\n"
    "\tNUMA node: 1\n"
    "\tBus: primary=00, secondary=01, subordinate=05, sec-latency=0\n"
    "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported\n"
    "\t\tLnkSta:\tSpeed 32GT/s, Width x16\n\n"
    "01:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)\n"
    "\tBus: primary=01, secondary=02, subordinate=05, sec-latency=0\n"
    "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16\n\t\tLnkSta:\tSpeed 32GT/s, Width x16\n\n"
    "02:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)\n"
    "\tBus: primary=02, secondary=03, subordinate=03, sec-latency=0\n"
    "\t\tLnkCap:\tPort #1, Speed 32GT/s, Width x16\n\t\tLnkSta:\tSpeed 32GT/s, Width x8\n"
    "\t\tACSCap:\tSrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+\n"
    "\t\tACSCtl:\tSrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+\n\n"
    "02:01.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)\n"
    "\tBus: primary=02, secondary=04, subordinate=04, sec-latency=0\n"
    "\t\tLnkCap:\tPort #2, Speed 32GT/s, Width x16\n\n"
    "03:00.0 3D controller: NVIDIA Corporation GH100 [H100 PCIe] (rev a1)\n"
    "\tNUMA node: 1\n"
    "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16\n"
    "\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x8 (downgraded)\n"
    "\tKernel driver in use: nvidia\n\n"
    "04:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]\n"
    "\tNUMA node: 1\n\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16\n\t\tLnkSta:\tSpeed 32GT/s, Width x16\n"
    "04:00.1 Ethernet controller: Mellanox Technologies ConnectX Family mlx5Gen Virtual Function\n";

TEST(LspciText, ShowsTheTreeAndTheLinks) {
    ASSERT_TRUE(is_lspci_text(server));
    const auto topology = read_lspci(server, "lspci.txt");
    ASSERT_TRUE(topology.ok()) << topology.error().to_string();
    const auto gpu = topology->find(DeviceKind::gpu, 0);
    const auto card = topology->find("nic:0000:04:00.0");
    ASSERT_TRUE(gpu && card);
    EXPECT_EQ(topology->device(*gpu).model, "NVIDIA Corporation GH100 [H100 PCIe]");
    EXPECT_EQ(topology->device(*gpu).properties.at("pcie_max"), "gen5 x16");
    EXPECT_EQ(topology->device(*gpu).properties.at("pcie_now"), "gen1 x8");
    EXPECT_EQ(topology->device(*gpu).properties.at("driver"), "nvidia");
    EXPECT_EQ(to_string(topology->pair_class(*gpu, *card)), "PIX");
    EXPECT_TRUE(topology->pair(*gpu, *card).redirected);
    EXPECT_EQ(topology->device(*topology->cpu_of(*gpu)).name, "cpu:1");
    EXPECT_FALSE(topology->find("nic:0000:04:00.1")) << "a function that is lent to guests";
}

TEST(LspciText, WithNumbersAndDomains) {
    const auto topology = read_lspci(
        "10000:e1:00.0 Non-Volatile memory controller [0108]: Samsung\n"
        "0001:41:00.0 VGA compatible controller [0300]: NVIDIA Corporation Device [10de:2684] (rev a1)\n"
        "0001:42:00.0 VGA compatible controller [0300]: ASPEED Technology\n",
        "x");
    ASSERT_TRUE(topology.ok()) << topology.error().to_string();
    EXPECT_EQ(topology->gpu_count(), 1);
    EXPECT_EQ(topology->device(*topology->find(DeviceKind::gpu, 0)).bus_id, "0001:41:00.0");
    EXPECT_TRUE(topology->find("drive:10000:e1:00.0")) << "behind a VMD";
    EXPECT_FALSE(topology->notes().empty());
}

TEST(LspciText, BadOnesAreRefused) {
    EXPECT_FALSE(is_lspci_text("GPU0 GPU1\n"));
    EXPECT_FALSE(is_lspci_text(""));
    EXPECT_EQ(read_lspci("00:00.0 Host bridge: Intel\n", "x").error().code, ErrorCode::invalid_argument);
    // Bridges in a circle, and one above itself.
    for (const char* circle :
         {"01:00.0 PCI bridge: a\n\tBus: primary=01, secondary=02\n02:00.0 PCI bridge: b\n\tBus: "
          "primary=02, secondary=01\n02:01.0 3D controller: NVIDIA x\n",
          "01:00.0 PCI bridge: a\n\tBus: secondary=01\n01:01.0 3D controller: NVIDIA x\n"}) {
        const auto topology = read_lspci(circle, "x");
        ASSERT_TRUE(topology.ok()) << topology.error().to_string();
        EXPECT_EQ(topology->gpu_count(), 1);
    }
}

}  // namespace
}  // namespace sidestep::topology
