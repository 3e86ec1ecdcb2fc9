#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <sidestep/topology.hpp>

namespace sidestep {
namespace {

Topology::Parts two_gpus() {
    Topology::Parts parts;
    parts.devices = {{DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0},
                     {DeviceKind::gpu, 0, "gpu:0", "", "", 0, 0},
                     {DeviceKind::gpu, 1, "gpu:1", "", "", 0, 0}};
    parts.links = {{1, 0, LinkKind::pcie, 16, 63, 0.4}, {2, 0, LinkKind::pcie, 16, 63, 0.4}};
    parts.peers = {{0, 1, {false, false, "no", ""}}};
    return parts;
}

// The error of parts that must not be taken.
Error refusal(const Topology::Parts& parts) {
    auto topology = Topology::create(parts);
    EXPECT_FALSE(topology.ok());
    if (topology.ok()) return {};
    EXPECT_EQ(topology.error().code, ErrorCode::invalid_argument);
    return topology.error();
}

TEST(TopologyCreate, TakesSensibleParts) {
    auto topology = Topology::create(two_gpus());
    ASSERT_TRUE(topology.ok()) << topology.error().to_string();
    EXPECT_EQ(topology->gpu_count(), 2);
    EXPECT_EQ(topology->parts(), two_gpus());
}

TEST(TopologyCreate, TakesAnEmptyMachine) {
    auto topology = Topology::create({});
    ASSERT_TRUE(topology.ok());
    EXPECT_EQ(topology->gpu_count(), 0);
    EXPECT_FALSE(topology->find(Place::host()));
    EXPECT_FALSE(topology->path(0, 0));
}

TEST(TopologyCreate, RefusesNames) {
    auto parts = two_gpus();
    parts.devices[2].name = "gpu:0";
    EXPECT_EQ(refusal(parts).where, "devices[2].name");
    parts.devices[2].name = "";
    EXPECT_EQ(refusal(parts).where, "devices[2].name");
    parts.devices[2].name = "gpu 1";
    EXPECT_EQ(refusal(parts).where, "devices[2].name");
    parts.devices[2].name = std::string(257, 'g');
    EXPECT_EQ(refusal(parts).where, "devices[2].name");
}

TEST(TopologyCreate, RefusesIndices) {
    auto parts = two_gpus();
    parts.devices[2].index = 0;
    const Error twice = refusal(parts);
    EXPECT_EQ(twice.where, "devices[2].index");
    EXPECT_NE(twice.message.find("gpu:0 and gpu:1"), std::string::npos) << twice.message;
    parts.devices[2].index = -1;
    EXPECT_EQ(refusal(parts).where, "devices[2].index");
    parts = two_gpus();
    parts.devices[1].numa_node = -2;
    EXPECT_EQ(refusal(parts).where, "devices[1].numa_node");
}

TEST(TopologyCreate, RefusesLinksToNowhereAndToOneself) {
    auto parts = two_gpus();
    parts.links[1].b = 3;
    EXPECT_EQ(refusal(parts).where, "links[1].b");
    parts.links[1].b = 2;
    const Error loop = refusal(parts);
    EXPECT_EQ(loop.where, "links[1]");
    EXPECT_NE(loop.message.find("gpu:1"), std::string::npos) << loop.message;
}

TEST(TopologyCreate, RefusesWidthsRatesAndLatencies) {
    for (const int width : {0, -1, 100000}) {
        auto parts = two_gpus();
        parts.links[0].width = width;
        EXPECT_EQ(refusal(parts).where, "links[0].width") << width;
    }
    const double infinite = std::numeric_limits<double>::infinity();
    for (const double rate : {0.0, -1.0, 1e9, std::nan(""), infinite}) {
        auto parts = two_gpus();
        parts.links[1].gb_per_s = rate;
        EXPECT_EQ(refusal(parts).where, "links[1].gb_per_s") << rate;
    }
    for (const double latency : {-0.1, 1e12, std::nan(""), infinite}) {
        auto parts = two_gpus();
        parts.links[1].latency_us = latency;
        EXPECT_EQ(refusal(parts).where, "links[1].latency_us") << latency;
    }
}

TEST(TopologyCreate, RefusesPeers) {
    auto parts = two_gpus();
    parts.peers.push_back({1, 2, {}});
    EXPECT_EQ(refusal(parts).where, "peers[1].to");
    parts.peers.back() = {-1, 0, {}};
    EXPECT_EQ(refusal(parts).where, "peers[1].from");
    parts.peers.back() = {1, 1, {}};
    EXPECT_EQ(refusal(parts).where, "peers[1]");
    parts.peers.back() = parts.peers.front();
    EXPECT_EQ(refusal(parts).where, "peers[1]");
}

TEST(TopologyFind, FindsByKindAndPlace) {
    auto parts = two_gpus();
    parts.devices.push_back({DeviceKind::cpu, 2, "cpu:2", "", "", 2, 0});
    auto topology = Topology::create(parts);
    ASSERT_TRUE(topology.ok());
    EXPECT_EQ(topology->find(DeviceKind::gpu, 1), DeviceId{2});
    EXPECT_FALSE(topology->find(DeviceKind::gpu, 2));
    EXPECT_FALSE(topology->find(DeviceKind::nic, 0));
    EXPECT_EQ(topology->find(Place::host()), DeviceId{0});
    EXPECT_EQ(topology->find(Place::host(2)), DeviceId{3});
    EXPECT_FALSE(topology->find(Place::host(1)));
    EXPECT_EQ(topology->find(Place::gpu(0)), DeviceId{1});
    EXPECT_FALSE(topology->find(Place::file("/data/x")));
    EXPECT_FALSE(topology->find(Place::gpu(0).on("node7")));
}

TEST(TopologyPeers, GoByTheDriverThenByNvlink) {
    auto parts = two_gpus();
    auto topology = Topology::create(parts);
    ASSERT_TRUE(topology.ok());
    EXPECT_EQ(topology->peer_access(0, 1), (PeerAccess{false, false, "no", ""}));
    const PeerAccess back = topology->peer_access(1, 0);
    EXPECT_FALSE(back.allowed);
    EXPECT_NE(back.reason.find("no NVLink joins gpu:1 and gpu:0"), std::string::npos) << back.reason;
    EXPECT_TRUE(topology->peer_access(1, 1).allowed);
    EXPECT_NE(topology->peer_access(0, 7).reason.find("gpu:7"), std::string::npos);
    EXPECT_NE(topology->peer_access(9, 0).reason.find("gpu:9"), std::string::npos);

    parts.links.push_back({1, 2, LinkKind::nvlink, 2, 50, 0.1});
    topology = Topology::create(parts);
    ASSERT_TRUE(topology.ok());
    EXPECT_FALSE(topology->peer_access(0, 1).allowed) << "what the driver said counts first";
    EXPECT_TRUE(topology->peer_access(1, 0).allowed);
    EXPECT_TRUE(topology->peer_access(1, 0).atomics);
}

}  // namespace
}  // namespace sidestep
