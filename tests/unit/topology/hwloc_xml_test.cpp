// What hwloc's lstopo writes, read.
#include "topology/hwloc_xml.hpp"

#include <algorithm>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace sidestep::topology {
namespace {

constexpr const char* file = R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0">
    <object type="Package" os_index="0">
      <object type="NUMANode" os_index="0" local_memory="270000000000"/>
      <object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-0f]">
        <object type="PCIDev" pci_busid="0000:00:1f.0" pci_type="0108 [144d:a80a]" pci_link_speed="7.876923">
          <object type="OSDev" name="nvme0n1" osdev_type="0"/>
        </object>
      </object>
    </object>
    <object type="Package" os_index="1">
      <object type="NUMANode" os_index="1"/>
      <object type="Bridge" bridge_type="0-1" bridge_pci="0000:[80-9f]">
        <object type="Bridge" bridge_type="1-1" bridge_pci="0000:[81-85]" pci_busid="0000:80:01.0" pci_type="0604 [8086:352a]" pci_link_speed="63.015385">
          <object type="Bridge" bridge_type="1-1" bridge_pci="0000:[82-85]" pci_busid="0000:81:00.0" pci_type="0604 [1000:c030]" pci_link_speed="63.015385">
            <object type="Bridge" bridge_type="1-1" bridge_pci="0000:[83-83]" pci_busid="0000:82:00.0" pci_type="0604 [1000:c030]">
              <object type="PCIDev" pci_busid="0000:83:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1" pci_link_speed="63.015385">
                <info name="PCIVendor" value="NVIDIA Corporation"/>
                <info name="PCIDevice" value="GH100 [H100 SXM5 80GB]"/>
                <object type="OSDev" name="nvml0" subtype="NVML" osdev_type="5"/>
              </object>
            </object>
            <object type="Bridge" bridge_type="1-1" bridge_pci="0000:[84-84]" pci_busid="0000:82:01.0" pci_type="0604 [1000:c030]">
              <object type="PCIDev" pci_busid="0000:84:00.0" pci_type="0207 [15b3:1021]" pci_link_speed="63.015385">
                <object type="OSDev" name="ib0" osdev_type="2"/>
                <object type="OSDev" name="mlx5_0" osdev_type="3"/>
              </object>
            </object>
          </object>
        </object>
      </object>
    </object>
  </object>
</topology>
)";

TEST(HwlocXml, ShowsTheTree) {
    ASSERT_TRUE(is_hwloc_xml(file));
    const auto topology = read_hwloc_xml(file, "lstopo.xml");
    ASSERT_TRUE(topology.ok()) << topology.error().to_string();
    const auto gpu = topology->find(DeviceKind::gpu, 0);
    const auto card = topology->find("nic:mlx5_0");
    ASSERT_TRUE(gpu && card);
    EXPECT_EQ(topology->device(*gpu).model, "NVIDIA Corporation GH100 [H100 SXM5 80GB]");
    EXPECT_EQ(topology->device(*gpu).properties.at("pcie_now"), "gen5 x16");
    EXPECT_EQ(to_string(topology->pair_class(*gpu, *card)), "PIX");
    EXPECT_EQ(topology->device(*topology->cpu_of(*gpu)).name, "cpu:1");
    const auto drive = topology->find("drive:nvme0n1");
    ASSERT_TRUE(drive);
    EXPECT_EQ(topology->device(*drive).properties.at("pcie_now"), "gen4 x4");
    EXPECT_EQ(topology->device(*topology->cpu_of(*drive)).name, "cpu:0");
}

// A time that grows with the square of their number would be hours.
TEST(HwlocXml, OfManyDevicesTheFirstCount) {
    std::string text = "<topology><object type=\"Machine\">";
    for (int device = 0; device < 5000; ++device)
        text += fmt::format(
            "<object type=\"PCIDev\" pci_busid=\"{:04x}:{:02x}:00.0\" pci_type=\"0207 [15b3:1021]\"/>",
            device / 256, device % 256);
    const auto topology = read_hwloc_xml(text + "</object></topology>", "x");
    ASSERT_TRUE(topology.ok()) << topology.error().to_string();
    EXPECT_TRUE(topology->find("nic:0000:00:00.0"));
    EXPECT_FALSE(topology->find("nic:0013:80:00.0"));
    EXPECT_EQ(std::ranges::count(topology->notes(), "of 5000 PCI devices the first 4096 count"), 1);
}

TEST(HwlocXml, BadOnesAreRefused) {
    EXPECT_FALSE(is_hwloc_xml("<system version=\"1\"/>"));
    for (const char* text : {"<topology", "<topology/>", "<topology><object type=\"PCIDev\"/></topology>",
                             "<!DOCTYPE topology SYSTEM \"x\" [<!ENTITY a \"b\">]><topology>&a;</topology>"})
        EXPECT_EQ(read_hwloc_xml(text, "x").error().code, ErrorCode::invalid_argument) << text;
}

}  // namespace
}  // namespace sidestep::topology
