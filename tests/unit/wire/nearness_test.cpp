// Which card is nearest to memory, on machines that were recorded and built-in ones.
#include "backend/nearness.hpp"

#include <limits>
#include <string>

#include <gtest/gtest.h>

namespace sidestep::backend {
namespace {

std::string recorded(const char* name) {
    return std::string(SIDESTEP_SOURCE_DIR "/tests/recorded/") + name;
}

// All cards that the topology names, in the order in which it does.
std::vector<std::string> cards_of(const Topology& topology) {
    std::vector<std::string> cards;
    for (const Device& device : topology.devices())
        if (device.kind == DeviceKind::nic && device.name.starts_with("nic:"))
            cards.push_back(device.name.substr(4));
    return cards;
}

TEST(Nearness, TheNearestCardIsChosen) {
    struct Case {
        std::string machine;
        Place place;
        const char* card;
        PathClass path;
        const char* words;
    };
    const std::string hgx = recorded("nccl/hgx-h200.xml"), mi300x = recorded("nccl/mi300x-rccl.xml");
    const std::vector<Case> cases = {
        {hgx, Place::gpu(0), "mlx5_0", PathClass::pix, "one switch from gpu:0"},
        {hgx, Place::gpu(3), "mlx5_5", PathClass::pix, "one switch from gpu:3"},
        {hgx, Place::gpu(6), "mlx5_10", PathClass::pix, "one switch from gpu:6"},
        {hgx, Place::host(0), "mlx5_0", PathClass::phb, "at host:0"},
        {hgx, Place::host(1), "mlx5_6", PathClass::phb, "at host:1"},
        {mi300x, Place::gpu(5), "mlx5_5", PathClass::pxb, "several switches from gpu:5"},
        {"dgx-h100", Place::gpu(7), "mlx5_11", PathClass::pxb, "several switches from gpu:7"},
        {"dgx-h100", Place::host(1), "mlx5_6", PathClass::phb, "at host:1"},
        {recorded("h200x4-vm.json"), Place::gpu(2), "eth0", PathClass::phb, "one host bridge from gpu:2"},
    };
    for (const auto& [machine, place, card, path, words] : cases) {
        const auto topology = Topology::open(machine);
        ASSERT_TRUE(topology) << topology.error().to_string();
        const auto cards = cards_of(*topology);
        ASSERT_FALSE(cards.empty()) << machine;
        const std::string& found = cards[nearest_card(*topology, cards, place)];
        const Nearness near = nearness(*topology, found, place);
        EXPECT_EQ(found, card) << machine << " " << place.to_string();
        EXPECT_EQ(near.path, path) << machine << " " << place.to_string();
        EXPECT_EQ(near.words, words);
        // Whatever the order: no other is nearer.
        for (const std::string& other : cards)
            EXPECT_GE(nearness(*topology, other, place).distance(), near.distance()) << other;
    }
}

TEST(Nearness, WhatTheTopologyDoesNotTellIsFarthest) {
    const auto topology = Topology::open(recorded("nccl/hgx-h200.xml")).value();
    EXPECT_EQ(nearness(topology, "mlx5_0", Place::gpu(7)).words, "across NUMA nodes from gpu:7");
    EXPECT_EQ(nearness(topology, "rxe0", Place::gpu(0)), Nearness());
    EXPECT_EQ(nearness(topology, "mlx5_0", Place::gpu(99)), Nearness());
    EXPECT_EQ(nearest_card(topology, {"rxe0", "mlx5_6", "mlx5_0"}, Place::gpu(0)), 2u);
    EXPECT_EQ(nearest_card(topology, {"rxe0", "rxe1"}, Place::gpu(0)), 0u) << "of equals the first";
}

// What each end tells the other of its cards, and frames of where their bytes go.
TEST(Nearness, GpusOfTheOtherEndAreTold) {
    const auto topology = Topology::open("dgx-h100").value();
    const GpuDistances told = gpu_distances(&topology, "mlx5_0");
    for (int gpu = 0; gpu < 8; ++gpu)
        EXPECT_EQ(told[static_cast<std::size_t>(gpu)],
                  nearness(topology, "mlx5_0", Place::gpu(gpu)).distance())
            << gpu;
    EXPECT_LT(told[0], told[7]);
    GpuDistances unknown;
    unknown.fill(longest_distance);
    EXPECT_EQ(told[8], longest_distance) << "there is none";
    EXPECT_EQ(gpu_distances(nullptr, "mlx5_0"), unknown);
    EXPECT_EQ(gpu_distances(&topology, "rxe0"), unknown);
    EXPECT_EQ(told_gpu(Place::gpu(0)), 1);
    EXPECT_EQ(told_gpu(Place::gpu(15).on("n")), 16);
    EXPECT_EQ(told_gpu(Place::gpu(16)), 0);
    EXPECT_EQ(told_gpu(Place::host(3)), 0);
}

// The longer half is what the bytes wait for.
TEST(Nearness, OfAWayBothHalvesCount) {
    const auto pix = static_cast<int>(PathClass::pix), node = static_cast<int>(PathClass::node),
               sys = static_cast<int>(PathClass::sys);
    EXPECT_LT(distance_both_ways(node, node), distance_both_ways(pix, sys));
    EXPECT_LT(distance_both_ways(node, pix), distance_both_ways(node, node));
    EXPECT_LT(distance_both_ways(pix, pix), distance_both_ways(0, node));
    EXPECT_EQ(distance_both_ways(pix, sys), distance_both_ways(sys, pix));
    EXPECT_LT(distance_both_ways(longest_distance, longest_distance), std::numeric_limits<int>::max());
}

// By the last part of a path, which is what the kernel calls a PCI device.
TEST(Nearness, ACardHasAPath) {
    const auto topology = Topology::open("dgx-h100").value();
    EXPECT_EQ(card_at(topology, "/sys/devices/pci0000:15/0000:15:01.0/0000:18:00.0"), "mlx5_0");
    EXPECT_EQ(card_at(topology, "0000:ce:00.0"), "mlx5_10");
    for (const char* other : {"", "/", "/sys/devices/virtual/net/lo", "/sys/devices/pci0000:15/0000:18:00.1",
                              "/sys/devices/pci0000:15/0000:18:00.0/"})
        EXPECT_EQ(card_at(topology, other), "") << other;
    const std::string gpu = topology.device(*topology.find(Place::gpu(0))).bus_id;
    EXPECT_EQ(card_at(topology, gpu), "") << "which is no card";
}

// The card is told with its class; one that is nearer, and is not used, with the reason.
TEST(Nearness, WhyNotANearerCardIsTold) {
    const auto topology = Topology::open(recorded("nccl/hgx-h200.xml")).value();
    const std::vector<LeftOut> none, one = {{"mlx5_0", "its port 1 is down"}},
                                     farther = {{"mlx5_6", "others were named"}};
    const Place gpu = Place::gpu(0);
    const std::string near = card_words(topology, "mlx5_0", none, gpu);
    EXPECT_EQ(near, "mlx5_0 (PIX): one switch from gpu:0");
    EXPECT_EQ(card_words(topology, "mlx5_0", farther, gpu), near);
    EXPECT_EQ(
        card_words(topology, "mlx5_6", one, gpu),
        "mlx5_6 (SYS): across NUMA nodes from gpu:0; mlx5_0 (PIX) is nearer, and is not used: its port 1 "
        "is down");
    EXPECT_EQ(card_words(topology, "rxe0", none, gpu), "rxe0") << "the topology does not tell";
}

}  // namespace
}  // namespace sidestep::backend
