// Clusters of built-in machines: how they are named, wired and searched.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include <sidestep/topology.hpp>

#include "tests/unit/topology/model_rows.hpp"

namespace sidestep {
namespace {

std::string letters(const Topology& cluster, const char* a, const char* b) {
    return to_string(pair(cluster, a, b).pair);
}

// The switches of the network a walk goes through, in order: "leaf of rail 3 of unit 0, spine 1".
std::vector<std::string> switches(const Topology& cluster, const char* from, const char* to) {
    const DeviceId start = cluster.find(from).value();
    const auto path = cluster.path(start, cluster.find(to).value());
    std::vector<std::string> passed;
    if (!path) return {"no way"};
    DeviceId at = start;
    for (const std::uint32_t position : path->links) {
        const Link& link = cluster.links()[position];
        at = link.a == at ? link.b : link.a;
        if (cluster.device(at).kind == DeviceKind::net_switch) passed.push_back(cluster.device(at).model);
    }
    return passed;
}

// The first word of each, "leaf spine leaf".
std::string layers(const std::vector<std::string>& passed) {
    std::string words;
    for (const std::string& model : passed) {
        if (!words.empty()) words += ' ';
        words.append(model, 0, model.find(' '));
    }
    return words;
}

struct Counts {
    int leaves = 0;
    int spines = 0;
    int cores = 0;
    bool operator==(const Counts&) const = default;
};

Counts count_switches(const Topology& cluster) {
    Counts counts;
    for (const Device& device : cluster.devices()) {
        if (device.kind != DeviceKind::net_switch) continue;
        EXPECT_EQ(device.node, -1);
        const std::string layer = layers({device.model});
        (layer == "leaf" ? counts.leaves : layer == "spine" ? counts.spines : counts.cores) += 1;
    }
    return counts;
}

TEST(Cluster, NamesAndNumbersItsDevices) {
    const Topology cluster = built_in("dgx-h100*9");
    EXPECT_EQ(cluster.name(), "dgx-h100*9");
    EXPECT_TRUE(cluster.emulated());
    EXPECT_EQ(cluster.gpu_count(), 72);
    const Device& gpu = cluster.device(*cluster.find("node7/gpu:1"));
    EXPECT_EQ(gpu.index, 7 * 8 + 1);
    EXPECT_EQ(gpu.node, 7);
    EXPECT_EQ(gpu.numa_node, 0) << "counts within the machine";
    EXPECT_EQ(gpu.bus_id, "0000:43:00.0");
    EXPECT_EQ(gpu.properties.at("cc"), "9.0");
    EXPECT_EQ(cluster.find(Place::parse("node7/gpu:1").value()), cluster.find("node7/gpu:1"));
    EXPECT_EQ(cluster.find(Place::gpu(57)), cluster.find("node7/gpu:1"));
    EXPECT_EQ(cluster.find(Place::parse("node8/host:1").value()), cluster.find("node8/cpu:1"));
    EXPECT_EQ(cluster.find(Place::parse("node8/host").value()), cluster.find("node8/cpu:0"));
    EXPECT_FALSE(cluster.find(Place::parse("node9/gpu:0").value()));
    EXPECT_EQ(cluster.device(*cluster.find("node1/cpu:1")).index, 3);
    EXPECT_EQ(cluster.device(*cluster.find("node2/nic:mlx5_11")).index, 2 * 10 + 7);
    EXPECT_EQ(cluster.device(*cluster.find("net_switch:3")).model, "leaf of rail 3 of unit 0");
}

TEST(Cluster, OneMachineHasNoNetwork) {
    EXPECT_EQ(built_in("dgx-h100*1").parts(), built_in("dgx-h100").parts());
    EXPECT_EQ(built_in("gb200-nvl72*1").parts(), built_in("gb200-nvl72").parts());
}

TEST(Cluster, ClassesAreThoseOfTheMachineAndNet) {
    const Topology cluster = built_in("dgx-h100*3");
    EXPECT_EQ(letters(cluster, "node1/gpu:0", "node1/gpu:7"), "NV18");
    EXPECT_EQ(letters(cluster, "node1/gpu:0", "node1/nic:mlx5_0"), "PXB");
    EXPECT_EQ(letters(cluster, "node1/gpu:0", "node1/nic:mlx5_11"), "SYS");
    EXPECT_EQ(letters(cluster, "node1/gpu:0", "node2/gpu:0"), "NET");
    EXPECT_EQ(letters(cluster, "node1/gpu:0", "node0/nic:mlx5_0"), "NET");
    EXPECT_TRUE(cluster.peer_access(8, 15).atomics);
    const PeerAccess far = cluster.peer_access(8, 16);
    EXPECT_FALSE(far.allowed);
    EXPECT_NE(far.reason.find("different machines"), std::string::npos);
}

TEST(Cluster, OneRailIsOneLeafAway) {
    const Topology cluster = built_in("dgx-h100*6");
    EXPECT_EQ(switches(cluster, "node0/gpu:3", "node5/gpu:3"),
              (std::vector<std::string>{"leaf of rail 3 of unit 0"}));
    const auto path = cluster.path(*cluster.find("node0/gpu:3"), *cluster.find("node5/gpu:3"));
    EXPECT_DOUBLE_EQ(path->gb_per_s, 50);
    std::set<std::string> cards;
    for (const std::uint32_t position : path->links) {
        const Link& link = cluster.links()[position];
        for (const DeviceId end : {link.a, link.b})
            if (cluster.device(end).kind == DeviceKind::nic) cards.insert(cluster.device(end).name);
    }
    EXPECT_EQ(cards, (std::set<std::string>{"node0/nic:mlx5_5", "node5/nic:mlx5_5"}));
    const Pair far = pair(cluster, "node0/gpu:3", "node5/gpu:3");
    EXPECT_EQ(far.pair.kind, PathClass::net);
    EXPECT_NEAR(far.gb_per_s, 50 * 0.97, 1e-9);
    EXPECT_EQ(far.words, "PCIe gen5 x16 + network 400 Gb/s");
}

TEST(Cluster, OtherRailsAndOtherUnitsAreASpineAway) {
    const Topology cluster = built_in("dgx-h100*40");
    EXPECT_EQ(layers(switches(cluster, "node0/gpu:3", "node31/gpu:4")), "leaf spine leaf");
    EXPECT_EQ(switches(cluster, "node0/gpu:3", "node31/gpu:3").size(), 1U);
    const auto units = switches(cluster, "node0/gpu:3", "node32/gpu:3");
    EXPECT_EQ(layers(units), "leaf spine leaf");
    EXPECT_EQ(units.front(), "leaf of rail 3 of unit 0");
    EXPECT_EQ(units.back(), "leaf of rail 3 of unit 1");
    // Bytes leave by the card next to the GPU, also towards another rail.
    EXPECT_EQ(switches(cluster, "node0/gpu:3", "node31/gpu:4").front(), "leaf of rail 3 of unit 0");
    EXPECT_EQ(switches(cluster, "node0/gpu:3", "node31/gpu:4").back(), "leaf of rail 4 of unit 0");
}

TEST(Cluster, BeyondSixtyFourLeavesThereAreCores) {
    const Topology cluster = built_in("dgx-h100*320");
    EXPECT_EQ(switches(cluster, "node0/gpu:3", "node31/gpu:3").size(), 1U);
    EXPECT_EQ(layers(switches(cluster, "node0/gpu:3", "node31/gpu:5")), "leaf spine leaf");
    EXPECT_EQ(layers(switches(cluster, "node0/gpu:3", "node319/gpu:3")), "leaf spine core spine leaf");
    EXPECT_DOUBLE_EQ(cluster.path(*cluster.find("node0/gpu:3"), *cluster.find("node319/gpu:6"))->gb_per_s,
                     50);
}

// NVIDIA's table "Larger SuperPOD component counts" (DGX B200 reference architecture).
TEST(Cluster, HasAsManySwitchesAsTheReferenceArchitecture) {
    EXPECT_EQ(count_switches(built_in("dgx-b200*64")), (Counts{16, 8, 0}));
    EXPECT_EQ(count_switches(built_in("dgx-b200*128")), (Counts{32, 16, 0}));
    EXPECT_EQ(count_switches(built_in("dgx-b200*256")), (Counts{64, 32, 0}));
    EXPECT_EQ(count_switches(built_in("dgx-b200*512")), (Counts{128, 128, 64}));
    EXPECT_EQ(count_switches(built_in("dgx-b200*1024")), (Counts{256, 256, 128}));
}

// Every leaf and spine has at least as much rate up as its cards or leaves can fill, on 64 ports.
TEST(Cluster, LosesNoRateOnTheWayUp) {
    for (const char* name : {"dgx-h100*2", "dgx-h100*33", "dgx-h100*128", "dgx-h100*300", "dgx-1v*50",
                             "gb200-nvl72*5", "pcie-2s*7", "laptop*70"}) {
        const Topology cluster = built_in(name);
        EXPECT_TRUE(Topology::create(cluster.parts()).ok()) << name;
        std::map<DeviceId, std::pair<int, int>> down_up;
        for (const Link& link : cluster.links()) {
            if (link.kind != LinkKind::network) continue;
            down_up[link.b].first += link.width;  // links are made from below
            if (cluster.device(link.a).kind == DeviceKind::net_switch) down_up[link.a].second += link.width;
        }
        const Counts counts = count_switches(cluster);
        if (counts.leaves == 1) continue;
        for (const auto& [id, links] : down_up) {
            const auto& [down, up] = links;
            EXPECT_LE(down + up, 64) << name << " " << cluster.device(id).model;
            const bool top = counts.cores > 0 ? layers({cluster.device(id).model}) == "core"
                                              : layers({cluster.device(id).model}) == "spine";
            if (top) continue;
            EXPECT_GE(up, down) << name << " " << cluster.device(id).model;
        }
    }
}

// As many rails as a machine has cards for its GPUs, at the rate the cards say.
TEST(Cluster, JoinsTheCardsOfTheGpusAtTheirRate) {
    for (const std::string& name : Topology::model_names()) {
        const Topology cluster = Topology::model(name + "*2").value();
        const int nodes = name == "gb200-nvl72" ? 36 : 2;
        std::map<int, int> joined;
        for (const Link& link : cluster.links()) {
            if (link.kind != LinkKind::network) continue;
            const Device& card = cluster.device(link.a);
            if (card.kind != DeviceKind::nic) continue;
            ++joined[card.node];
            const auto rate = card.properties.find("port1.rate");
            const double gbit = rate != card.properties.end() ? std::atof(rate->second.c_str()) : 2.5;
            EXPECT_DOUBLE_EQ(link.gb_per_s, gbit / 8) << name;
            EXPECT_EQ(card.properties.count("port2.rate"), 0U) << name << " joins a card for storage";
        }
        ASSERT_EQ(joined.size(), static_cast<std::size_t>(nodes)) << name;
        for (const auto& [node, cards] : joined) EXPECT_EQ(cards, joined[0]) << name << " node" << node;
        EXPECT_EQ(cluster.find("node0/gpu:0").has_value(), true) << name;
        EXPECT_TRUE(
            cluster.path(*cluster.find("node0/gpu:0"), *cluster.find(fmt::format("node{}/gpu:0", nodes - 1))))
            << name;
    }
}

TEST(Cluster, RacksStayWholeAndKeepTheirNvlink) {
    const Topology cluster = built_in("gb200-nvl72*3");
    EXPECT_EQ(cluster.gpu_count(), 216);
    EXPECT_EQ(cluster.device(*cluster.find("node53/gpu:3")).index, 215);
    EXPECT_EQ(letters(cluster, "node0/gpu:0", "node17/gpu:3"), "NV18");
    EXPECT_EQ(letters(cluster, "node18/gpu:0", "node35/gpu:3"), "NV18");
    EXPECT_EQ(letters(cluster, "node17/gpu:0", "node18/gpu:0"), "NET");
    EXPECT_EQ(count(cluster, DeviceKind::nvswitch), 54);
    EXPECT_EQ(cluster.device(*cluster.find("nvswitch:53")).node, -1);
    EXPECT_EQ(count_switches(cluster).leaves, 3 * 4) << "a unit is a rack";
    EXPECT_EQ(layers(switches(cluster, "node17/gpu:0", "node18/gpu:0")), "leaf spine leaf");
    EXPECT_EQ(switches(cluster, "node0/nic:mlx5_4", "node17/nic:mlx5_4"),
              (std::vector<std::string>{"leaf of rail 2 of unit 0"}));
}

TEST(Cluster, IsReadBackTheSame) {
    for (const char* name : {"dgx-1v*2", "gb200-tray*3", "pcie-4l40s*33"}) {
        const Topology cluster = built_in(name);
        const auto again = Topology::from_json(cluster.to_json(), "test");
        ASSERT_TRUE(again.ok()) << again.error().to_string();
        EXPECT_EQ(again->parts(), cluster.parts()) << name;
    }
}

TEST(Cluster, LargeOnesKeepOnlyWhatRoutesDependOn) {
    const auto any = [](const char* name, bool (*told)(const Device&)) {
        const Topology cluster = built_in(name);
        return std::any_of(cluster.devices().begin(), cluster.devices().end(), told);
    };
    const auto properties = [](const Device& device) { return !device.properties.empty(); };
    const auto card_models = [](const Device& device) {
        return device.kind == DeviceKind::nic && !device.model.empty();
    };
    const auto nameless = [](const Device& device) {
        return (device.kind == DeviceKind::gpu || device.kind == DeviceKind::cpu) && device.model.empty();
    };
    EXPECT_TRUE(any("dgx-h100*1250", properties));
    EXPECT_FALSE(any("dgx-h100*1251", properties));
    EXPECT_TRUE(any("dgx-h100*1250", card_models));
    EXPECT_FALSE(any("dgx-h100*1251", card_models));
    EXPECT_FALSE(any("dgx-h100*1251", nameless)) << "rates depend on the models of GPUs and processors";
}

// NVSwitches that the same GPUs reach are one there; those of a dgx-2 have trunks to switches of their own.
TEST(Cluster, LargeOnesHaveTheSameWaysThroughFewerNvswitches) {
    struct Case {
        const char* small;
        const char* large;
        int nvswitches;  // of a machine of the large one
    };
    for (const Case& one :
         {Case{"gb200-tray*2", "gb200-tray*2501", 1}, Case{"dgx-h100*2", "dgx-h100*1251", 1},
          Case{"dgx-a100*2", "dgx-a100*1251", 1}, Case{"dgx-2*2", "dgx-2*626", 12}}) {
        const Topology small = built_in(one.small);
        const Topology large = built_in(one.large);
        for (const char* to : {"node0/gpu:1", "node0/gpu:3", "node1/gpu:0"}) {
            const Pair expected = pair(small, "node0/gpu:0", to);
            const Pair found = pair(large, "node0/gpu:0", to);
            EXPECT_EQ(found.pair, expected.pair) << one.large << ' ' << to;
            EXPECT_DOUBLE_EQ(found.gb_per_s, expected.gb_per_s) << one.large << ' ' << to;
            EXPECT_EQ(found.words, expected.words) << one.large << ' ' << to;
        }
        const auto of_first = [](const Device& device) {
            return device.kind == DeviceKind::nvswitch && device.node == 0;
        };
        EXPECT_EQ(std::count_if(large.devices().begin(), large.devices().end(), of_first), one.nvswitches);
    }
}

TEST(Cluster, RefusesWhatIsNoNumberOfMachines) {
    for (const char* name : {"dgx-h100*0", "dgx-h100*x", "dgx-h100*-1", "dgx-h100**", "dgx-h100*",
                             "dgx-h100*2x", "dgx-h100*+2", "dgx-h100* 2", "dgx-h100*2*2", "dgx-h100*25001",
                             "dgx-h100*99999999999999999999", "gb200-nvl72*2778", "laptop*200001"}) {
        const auto refused = Topology::model(name);
        ASSERT_FALSE(refused.ok()) << name;
        EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument) << name;
        EXPECT_NE(refused.error().hint.find("dgx-h100*128"), std::string::npos) << name;
        EXPECT_NE(refused.error().to_string().find(name), std::string::npos) << name;
    }
    EXPECT_NE(Topology::model("dgx-h100*25001").error().message.find("25000"), std::string::npos);
}

}  // namespace
}  // namespace sidestep
