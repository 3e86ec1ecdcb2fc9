#include <gtest/gtest.h>

#include <sidestep/topology.hpp>

#include "topology/link_rates.hpp"

namespace sidestep {
namespace {

TEST(TopologyModel, UnknownNamesListTheKnownOnes) {
    const auto unknown = Topology::model("dgx-z9");
    ASSERT_FALSE(unknown.ok());
    EXPECT_EQ(unknown.error().code, ErrorCode::not_found);
    EXPECT_NE(unknown.error().message.find("dgx-z9"), std::string::npos);
    for (const std::string& name : Topology::model_names()) {
        EXPECT_NE(unknown.error().hint.find(name), std::string::npos) << name;
    }
}

TEST(TopologyModel, EveryModelHolds) {
    ASSERT_FALSE(Topology::model_names().empty());
    for (const std::string& name : Topology::model_names()) {
        const auto topology = Topology::model(name);
        ASSERT_TRUE(topology.ok()) << name << ": " << topology.error().to_string();
        EXPECT_EQ(topology->name(), name);
        EXPECT_TRUE(topology->emulated());
        EXPECT_GT(topology->gpu_count(), 0);
        ASSERT_TRUE(topology->find(Place::host()));
        for (int gpu = 0; gpu < topology->gpu_count(); ++gpu) {
            const auto id = topology->find(Place::gpu(gpu));
            ASSERT_TRUE(id) << name << " gpu:" << gpu;
            EXPECT_TRUE(topology->path(*id, *topology->find(Place::host()))) << name << " gpu:" << gpu;
        }
    }
}

TEST(DgxH100, HasTheFiguresOfTheMachine) {
    const auto dgx = Topology::model("dgx-h100");
    ASSERT_TRUE(dgx.ok());
    EXPECT_EQ(dgx->gpu_count(), 8);
    const auto count = [&](DeviceKind kind) {
        int found = 0;
        for (const Device& device : dgx->devices()) found += device.kind == kind ? 1 : 0;
        return found;
    };
    EXPECT_EQ(count(DeviceKind::cpu), 2);
    EXPECT_EQ(count(DeviceKind::nvswitch), 4);
    EXPECT_EQ(count(DeviceKind::pcie_switch), 8);
    EXPECT_EQ(count(DeviceKind::nic), 8);
    const Device& gpu = dgx->device(*dgx->find(Place::gpu(7)));
    EXPECT_EQ(gpu.name, "gpu:7");
    EXPECT_EQ(gpu.memory, Bytes{81559} << 20);
    EXPECT_EQ(gpu.numa_node, 1);
    EXPECT_EQ(dgx->device(*dgx->find(Place::host(1))).memory, Bytes{1} << 40);
}

TEST(DgxH100, PathsAreThoseOfTheMachine) {
    const auto dgx = Topology::model("dgx-h100");
    ASSERT_TRUE(dgx.ok());
    const DeviceId gpu0 = *dgx->find(Place::gpu(0));
    const DeviceId gpu7 = *dgx->find(Place::gpu(7));

    const auto nvlink = dgx->path(gpu0, gpu7);
    ASSERT_TRUE(nvlink);
    EXPECT_EQ(nvlink->nvlinks, 18);
    EXPECT_DOUBLE_EQ(nvlink->gb_per_s, 18 * 26.5625);
    EXPECT_EQ(dgx->describe(*nvlink), "NVLink (18 links through NVSwitch)");
    EXPECT_TRUE(dgx->peer_access(0, 7).allowed);
    EXPECT_TRUE(dgx->peer_access(0, 7).atomics);

    const auto host = dgx->path(gpu0, *dgx->find(Place::host(0)));
    ASSERT_TRUE(host);
    EXPECT_NEAR(host->gb_per_s, 63.015, 0.001);
    EXPECT_EQ(host->links.size(), 3U);
    EXPECT_EQ(dgx->describe(*host), "PCIe gen5 x16");
    EXPECT_EQ(dgx->path(gpu7, *dgx->find(Place::host(0)))->links.size(), 4U)
        << "over the link between the sockets";

    const auto letters = [&](DeviceId a, DeviceId b) { return to_string(dgx->pair_class(a, b)); };
    EXPECT_EQ(letters(gpu0, gpu7), "NV18");
    EXPECT_EQ(letters(gpu0, *dgx->find(DeviceKind::nic, 0)), "PIX");
    EXPECT_EQ(letters(gpu0, *dgx->find(DeviceKind::nic, 1)), "NODE");
    EXPECT_EQ(letters(gpu0, *dgx->find(DeviceKind::nic, 4)), "SYS");
}

TEST(LinkRates, PcieByGenerationAndLanes) {
    EXPECT_DOUBLE_EQ(topology::pcie_gb_per_s(1, 16), 4);
    EXPECT_DOUBLE_EQ(topology::pcie_gb_per_s(2, 1), 0.5);
    EXPECT_NEAR(topology::pcie_gb_per_s(3, 16), 15.754, 0.001);
    EXPECT_NEAR(topology::pcie_gb_per_s(4, 16), 31.508, 0.001);
    EXPECT_NEAR(topology::pcie_gb_per_s(5, 16), 63.015, 0.001);
    EXPECT_DOUBLE_EQ(topology::pcie_gb_per_s(6, 16), 121);
    EXPECT_EQ(topology::pcie_gb_per_s(0, 16), 0);
    EXPECT_EQ(topology::pcie_gb_per_s(7, 16), 0);
    EXPECT_EQ(topology::pcie_generation(2.5), 1);
    EXPECT_EQ(topology::pcie_generation(32.0), 5);
    EXPECT_FALSE(topology::pcie_generation(0));
    EXPECT_FALSE(topology::pcie_generation(7));
    EXPECT_EQ(topology::pcie_generation_of(63, 16), 5);
    EXPECT_FALSE(topology::pcie_generation_of(50, 16));
}

TEST(TopologyText, ShowsTheMachine) {
    const auto dgx = Topology::model("dgx-h100");
    ASSERT_TRUE(dgx.ok());
    const std::string text = dgx->to_text();
    EXPECT_NE(text.find("machine dgx-h100 (emulated): 8 GPUs\n"), std::string::npos) << text;
    EXPECT_NE(text.find("gpu:3  NV18   NV18   NV18   X      NV18   NV18   NV18   NV18   0\n"),
              std::string::npos)
        << text;
    EXPECT_NE(
        text.find("gpu:4  0000:9d:00.0  NVIDIA H100 80GB HBM3  79.6 GiB  numa 1  PCIe gen5 x16, 63.0 GB/s; "
                  "NVLink (18 links through NVSwitch), 478 GB/s\n"),
        std::string::npos)
        << text;
    EXPECT_NE(text.find("PIX to gpu:7\n"), std::string::npos) << text;
    EXPECT_NE(text.find("  cpu:1  Intel Xeon Platinum 8480C  1 TiB\n"), std::string::npos) << text;
    EXPECT_EQ(text.find("notes"), std::string::npos) << text;
    EXPECT_EQ(text.find(" \n"), std::string::npos) << "no blanks at ends of lines";
}

TEST(TopologyText, ShowsNotesAndAnEmptyMachine) {
    Topology::Parts parts;
    parts.name = "bare";
    parts.notes = {"nothing to see"};
    const auto bare = Topology::create(parts);
    ASSERT_TRUE(bare.ok());
    EXPECT_EQ(bare->to_text(), "machine bare: 0 GPUs\n\nnotes\n  nothing to see\n");
}

}  // namespace
}  // namespace sidestep
