#include <gtest/gtest.h>

#include <sidestep/topology.hpp>

namespace sidestep {
namespace {

class Builder {
public:
    DeviceId add(DeviceKind kind) {
        const int index = counts_[static_cast<std::size_t>(kind)]++;
        parts_.devices.push_back(
            {kind, index, std::string(to_string(kind)) + ":" + std::to_string(index), "", "", -1, 0});
        return static_cast<DeviceId>(parts_.devices.size() - 1);
    }
    std::uint32_t join(DeviceId a, DeviceId b, LinkKind kind, double rate, double latency = 1,
                       int width = 1) {
        parts_.links.push_back({a, b, kind, width, rate, latency});
        return static_cast<std::uint32_t>(parts_.links.size() - 1);
    }
    Device& device(DeviceId id) { return parts_.devices[id]; }
    Topology::Parts& parts() { return parts_; }
    Topology build() const { return *Topology::create(parts_); }

private:
    Topology::Parts parts_;
    int counts_[8] = {};
};

using Links = std::vector<std::uint32_t>;

TEST(TopologyPath, PrefersWideThenQuickThenFewLinks) {
    Builder b;
    const DeviceId from = b.add(DeviceKind::gpu);
    const DeviceId to = b.add(DeviceKind::cpu);
    const DeviceId one = b.add(DeviceKind::pcie_switch);
    const DeviceId two = b.add(DeviceKind::pcie_switch);
    b.join(from, to, LinkKind::pcie, 10, 0.1);
    const auto a1 = b.join(from, one, LinkKind::pcie, 30, 2);
    const auto a2 = b.join(one, to, LinkKind::pcie, 20, 2);
    EXPECT_EQ(b.build().path(from, to)->links, (Links{a1, a2})) << "wider beats quicker";
    EXPECT_DOUBLE_EQ(b.build().path(from, to)->gb_per_s, 20);
    EXPECT_DOUBLE_EQ(b.build().path(from, to)->latency_us, 4);

    // Equally wide over the other switch, and quicker.
    const auto b1 = b.join(from, two, LinkKind::pcie, 20, 1);
    const auto b2 = b.join(two, to, LinkKind::pcie, 25, 1);
    EXPECT_EQ(b.build().path(from, to)->links, (Links{b1, b2}));

    // As wide and as quick with fewer links.
    const auto direct = b.join(from, to, LinkKind::pcie, 20, 2);
    EXPECT_EQ(b.build().path(from, to)->links, (Links{direct}));
}

// The widest way to the middle is slow, and the last link makes it no better than the quick way: a search
// that keeps one label a device would answer with the slow one.
TEST(TopologyPath, QuickestOfTheWidestEvenBehindABottleneck) {
    Builder b;
    const DeviceId from = b.add(DeviceKind::gpu);
    const DeviceId middle = b.add(DeviceKind::pcie_switch);
    const DeviceId to = b.add(DeviceKind::cpu);
    b.join(from, middle, LinkKind::pcie, 100, 9);
    const auto quick = b.join(from, middle, LinkKind::pcie, 10, 1);
    const auto last = b.join(middle, to, LinkKind::pcie, 10, 1);
    const auto path = b.build().path(from, to);
    ASSERT_TRUE(path);
    EXPECT_EQ(path->links, (Links{quick, last}));
    EXPECT_DOUBLE_EQ(path->latency_us, 2);
}

TEST(TopologyPath, NeverPassesThroughEndpoints) {
    for (const DeviceKind kind : {DeviceKind::gpu, DeviceKind::nic, DeviceKind::drive}) {
        Builder b;
        const DeviceId from = b.add(DeviceKind::gpu);
        const DeviceId middle = b.add(kind);
        const DeviceId to = b.add(DeviceKind::gpu);
        b.join(from, middle, LinkKind::pcie, 10);
        b.join(middle, to, LinkKind::pcie, 10);
        EXPECT_FALSE(b.build().path(from, to)) << to_string(kind);
        EXPECT_TRUE(b.build().path(from, middle)) << to_string(kind);
    }
    for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::host_bridge, DeviceKind::pcie_switch}) {
        Builder b;
        const DeviceId from = b.add(DeviceKind::gpu);
        const DeviceId middle = b.add(kind);
        const DeviceId to = b.add(DeviceKind::gpu);
        b.join(from, middle, LinkKind::pcie, 10);
        b.join(middle, to, LinkKind::pcie, 10);
        EXPECT_TRUE(b.build().path(from, to)) << to_string(kind);
    }
}

TEST(TopologyPath, NvswitchForwardsNvlinkOnly) {
    Builder b;
    const DeviceId gpu = b.add(DeviceKind::gpu);
    const DeviceId nvswitch = b.add(DeviceKind::nvswitch);
    const DeviceId cpu = b.add(DeviceKind::cpu);
    b.join(gpu, nvswitch, LinkKind::nvlink, 450, 0.1, 18);
    b.join(nvswitch, cpu, LinkKind::pcie, 4);
    EXPECT_FALSE(b.build().path(gpu, cpu));
    EXPECT_TRUE(b.build().path(nvswitch, cpu));
}

TEST(TopologyPath, KeepsToItsFabric) {
    Builder b;
    const DeviceId a = b.add(DeviceKind::gpu);
    const DeviceId c = b.add(DeviceKind::gpu);
    const DeviceId cpu = b.add(DeviceKind::cpu);
    const DeviceId far = b.add(DeviceKind::cpu);
    const auto up = b.join(a, cpu, LinkKind::pcie, 63);
    const auto between = b.join(cpu, far, LinkKind::socket, 128);
    const auto down = b.join(far, c, LinkKind::pcie, 63);
    EXPECT_FALSE(b.build().path(a, c, Fabric::nvlink));
    EXPECT_EQ(b.build().path(a, c, Fabric::pcie)->links, (Links{up, between, down}));
    EXPECT_FALSE(b.build().path(a, c)->all_nvlink);
    EXPECT_EQ(b.build().path(a, c)->nvlinks, 0);

    const auto nvlink = b.join(a, c, LinkKind::nvlink, 50, 0.1, 2);
    EXPECT_EQ(b.build().path(a, c, Fabric::nvlink)->links, (Links{nvlink}));
    EXPECT_EQ(b.build().path(a, c, Fabric::pcie)->links.size(), 3U);
    EXPECT_EQ(b.build().path(a, c, Fabric::any)->links.size(), 3U) << "PCIe is wider here";

    const auto c2c = b.join(a, cpu, LinkKind::c2c, 450);
    EXPECT_EQ(b.build().path(a, cpu)->links, (Links{c2c}));
    EXPECT_EQ(b.build().path(a, cpu, Fabric::pcie)->links, (Links{up}));
}

TEST(TopologyPath, AddsUpNvlinkOverAllSwitchesAndParallelLinks) {
    Builder b;
    const DeviceId a = b.add(DeviceKind::gpu);
    const DeviceId c = b.add(DeviceKind::gpu);
    const DeviceId one = b.add(DeviceKind::nvswitch);
    const DeviceId two = b.add(DeviceKind::nvswitch);
    b.join(a, one, LinkKind::nvlink, 125, 0.1, 5);
    b.join(c, one, LinkKind::nvlink, 100, 0.1, 4);
    const auto wide = b.join(a, two, LinkKind::nvlink, 150, 0.1, 6);
    const auto wide_too = b.join(c, two, LinkKind::nvlink, 175, 0.2, 7);
    b.join(a, c, LinkKind::nvlink, 25, 0.4, 1);
    const auto path = b.build().path(a, c);
    ASSERT_TRUE(path);
    EXPECT_EQ(path->links, (Links{wide, wide_too})) << "the widest walk is the one that is listed";
    EXPECT_DOUBLE_EQ(path->gb_per_s, 100 + 150 + 25);
    EXPECT_EQ(path->nvlinks, 4 + 6 + 1);
    EXPECT_TRUE(path->all_nvlink);
    EXPECT_DOUBLE_EQ(path->latency_us, 0.4) << "that of the slowest walk";
}

TEST(TopologyPath, EdgesOfTheQuestion) {
    Builder b;
    const DeviceId a = b.add(DeviceKind::gpu);
    const DeviceId c = b.add(DeviceKind::gpu);
    const Topology machine = b.build();
    EXPECT_FALSE(machine.path(a, c));
    EXPECT_FALSE(machine.path(a, 2));
    EXPECT_FALSE(machine.path(7, a));
    ASSERT_TRUE(machine.path(a, a));
    EXPECT_TRUE(machine.path(a, a)->links.empty());
    EXPECT_FALSE(machine.path(a, a)->all_nvlink);
    EXPECT_EQ(machine.describe(*machine.path(a, a)), "inside one device");
}

// GPU 0 and 1 share a switch, 2 hangs below a second switch of the same bridge, 3 below the bridge itself,
// 4 below another bridge of the node, 5 on the other node.
TEST(PathClassOf, FollowsNvidiaSmi) {
    Builder b;
    DeviceId gpu[6];
    for (DeviceId& id : gpu) id = b.add(DeviceKind::gpu);
    const DeviceId cpu = b.add(DeviceKind::cpu);
    const DeviceId far_cpu = b.add(DeviceKind::cpu);
    const DeviceId bridge = b.add(DeviceKind::host_bridge);
    const DeviceId other_bridge = b.add(DeviceKind::host_bridge);
    const DeviceId far_bridge = b.add(DeviceKind::host_bridge);
    const DeviceId top = b.add(DeviceKind::pcie_switch);
    const DeviceId below = b.add(DeviceKind::pcie_switch);
    b.join(cpu, far_cpu, LinkKind::socket, 64);
    b.join(bridge, cpu, LinkKind::pcie, 126);
    b.join(other_bridge, cpu, LinkKind::pcie, 63);
    b.join(far_bridge, far_cpu, LinkKind::pcie, 63);
    b.join(top, bridge, LinkKind::pcie, 63);
    b.join(below, top, LinkKind::pcie, 63);
    b.join(gpu[0], top, LinkKind::pcie, 63);
    b.join(gpu[1], top, LinkKind::pcie, 63);
    b.join(gpu[2], below, LinkKind::pcie, 63);
    b.join(gpu[3], bridge, LinkKind::pcie, 63);
    b.join(gpu[4], other_bridge, LinkKind::pcie, 63);
    b.join(gpu[5], far_bridge, LinkKind::pcie, 63);
    const auto letters = [&](const Topology& machine, int x, int y) {
        return to_string(machine.pair_class(gpu[x], gpu[y]));
    };
    const Topology machine = b.build();
    EXPECT_EQ(letters(machine, 0, 0), "X");
    EXPECT_EQ(letters(machine, 0, 1), "PIX");
    EXPECT_EQ(letters(machine, 0, 2), "PXB");
    EXPECT_EQ(letters(machine, 0, 3), "PHB");
    EXPECT_EQ(letters(machine, 2, 3), "PHB");
    EXPECT_EQ(letters(machine, 0, 4), "NODE");
    EXPECT_EQ(letters(machine, 4, 5), "SYS");
    for (int x = 0; x < 6; ++x) {
        for (int y = 0; y < 6; ++y)
            EXPECT_EQ(letters(machine, x, y), letters(machine, y, x)) << x << " " << y;
    }

    b.join(gpu[0], gpu[5], LinkKind::nvlink, 25, 0.1, 1);
    EXPECT_EQ(letters(b.build(), 0, 5), "NV1") << "NVLink overrides the rest";
    b.join(gpu[0], gpu[5], LinkKind::nvlink, 25, 0.1, 1);
    EXPECT_EQ(letters(b.build(), 0, 5), "NV2");
}

TEST(PathClassOf, UnjoinedIsSys) {
    Builder b;
    const DeviceId a = b.add(DeviceKind::gpu);
    const DeviceId c = b.add(DeviceKind::gpu);
    EXPECT_EQ(b.build().pair_class(a, c), (PairClass{PathClass::sys, 0}));
}

// Two GPUs and a card below one switch, below a bridge of an Intel processor.
struct Switched {
    Builder b;
    DeviceId cpu = b.add(DeviceKind::cpu);
    DeviceId bridge = b.add(DeviceKind::host_bridge);
    DeviceId upper = b.add(DeviceKind::pcie_switch);
    DeviceId lower = b.add(DeviceKind::pcie_switch);
    DeviceId gpu0 = b.add(DeviceKind::gpu);
    DeviceId gpu1 = b.add(DeviceKind::gpu);
    DeviceId nic = b.add(DeviceKind::nic);
    std::uint32_t top = b.join(cpu, bridge, LinkKind::pcie, 200, 0.1);
    std::uint32_t up = b.join(bridge, upper, LinkKind::pcie, 60);
    std::uint32_t middle = b.join(upper, lower, LinkKind::pcie, 60);
    std::uint32_t to0 = b.join(lower, gpu0, LinkKind::pcie, 60);
    std::uint32_t to1 = b.join(lower, gpu1, LinkKind::pcie, 60);
    std::uint32_t to_nic = b.join(upper, nic, LinkKind::pcie, 30);

    Switched() { b.device(cpu).model = "Intel Xeon"; }
};

TEST(TopologyPath, AccessControlTakesPeersToTheHostBridge) {
    Switched m;
    EXPECT_EQ(m.b.build().path(m.gpu0, m.gpu1)->links, (Links{m.to0, m.to1}));
    EXPECT_FALSE(m.b.build().pair(m.gpu0, m.gpu1).redirected);

    m.b.device(m.lower).acs_redirect = true;
    const Topology machine = m.b.build();
    const auto path = machine.path(m.gpu0, m.gpu1);
    ASSERT_TRUE(path);
    EXPECT_TRUE(path->redirected());
    EXPECT_EQ(path->links, (Links{m.to0, m.middle, m.middle, m.to1}))
        << "the upper switch may turn it around";
    EXPECT_DOUBLE_EQ(path->latency_us, 4);
    EXPECT_EQ(machine.path(m.gpu0, m.cpu)->links, (Links{m.to0, m.middle, m.up, m.top})) << "upwards as ever";
    EXPECT_EQ(machine.path(m.cpu, m.gpu0)->links, (Links{m.top, m.up, m.middle, m.to0}));
    EXPECT_EQ(machine.path(m.gpu0, m.nic)->links, (Links{m.to0, m.middle, m.to_nic}));

    m.b.device(m.upper).acs_redirect = true;
    const Topology both = m.b.build();
    EXPECT_EQ(both.path(m.gpu0, m.gpu1)->links, (Links{m.to0, m.middle, m.up, m.up, m.middle, m.to1}));
    EXPECT_EQ(both.pair_class(m.gpu0, m.gpu1).kind, PathClass::pix) << "the letters do not see it";
    const Pair pair = both.pair(m.gpu0, m.gpu1);
    EXPECT_TRUE(pair.redirected);
    EXPECT_NEAR(pair.gb_per_s, 60 * (55.5 / 63.015) * 5 / 6, 1e-9) << "through an Intel host bridge";
    EXPECT_NE(pair.words.find("turned around at the host bridge by ACS"), std::string::npos);
}

TEST(TopologyPair, NamesTheWorstLink) {
    Switched m;
    const Topology machine = m.b.build();
    const Pair pair = machine.pair(m.gpu0, m.nic);
    EXPECT_EQ(pair.pair, (PairClass{PathClass::pxb, 0}));
    EXPECT_EQ(pair.narrowest, m.to_nic);
    EXPECT_NEAR(pair.gb_per_s, 30 * 55.5 / 63.015, 1e-9);
    EXPECT_DOUBLE_EQ(pair.latency_us, 3);
    EXPECT_FALSE(machine.pair(m.gpu0, m.gpu0).narrowest);
    EXPECT_EQ(machine.pair(m.gpu0, m.gpu0).pair.kind, PathClass::self);
}

TEST(TopologyParents, FollowTheTree) {
    Switched m;
    const Topology machine = m.b.build();
    EXPECT_EQ(machine.parent(m.gpu0), m.lower);
    EXPECT_EQ(machine.parent(m.lower), m.upper);
    EXPECT_EQ(machine.parent(m.bridge), m.cpu);
    EXPECT_FALSE(machine.parent(m.cpu));
    EXPECT_FALSE(machine.parent(999));
    EXPECT_EQ(machine.cpu_of(m.nic), m.cpu);

    // Nothing leads to the cpu: its NUMA node does, or else the first.
    Builder b;
    const DeviceId first = b.add(DeviceKind::cpu);
    const DeviceId second = b.add(DeviceKind::cpu);
    const DeviceId lone = b.add(DeviceKind::gpu);
    b.device(first).numa_node = 0;
    b.device(second).numa_node = 1;
    EXPECT_EQ(b.build().cpu_of(lone), first);
    b.device(lone).numa_node = 1;
    EXPECT_EQ(b.build().cpu_of(lone), second);
}

TEST(TopologyPeers, OverPcieUpToAClassAndWithoutAtomics) {
    Switched m;
    EXPECT_FALSE(m.b.build().peer_access(0, 1).allowed);
    m.b.parts().pcie_peers = PathClass::pix;
    EXPECT_TRUE(m.b.build().peer_access(0, 1).allowed);
    EXPECT_FALSE(m.b.build().peer_access(0, 1).atomics);
    const DeviceId far = m.b.add(DeviceKind::gpu);
    m.b.join(m.upper, far, LinkKind::pcie, 60);
    const PeerAccess access = m.b.build().peer_access(0, 2);
    EXPECT_FALSE(access.allowed);
    EXPECT_NE(access.reason.find("joined by PXB"), std::string::npos) << access.reason;
    EXPECT_NE(access.reason.find("up to PIX only"), std::string::npos) << access.reason;
    m.b.join(m.gpu0, far, LinkKind::nvlink, 50);
    EXPECT_TRUE(m.b.build().peer_access(0, 2).atomics);
}

// Two machines with a GPU and a card each, and one switch between them.
TEST(TopologyPath, LeavesAMachineThroughItsCardOnly) {
    Builder b;
    DeviceId gpu[2];
    DeviceId nic[2];
    std::uint32_t to_gpu[2];
    std::uint32_t to_nic[2];
    std::uint32_t wire[2];
    const DeviceId leaf = b.add(DeviceKind::net_switch);
    b.device(leaf).node = -1;
    for (int node = 0; node < 2; ++node) {
        const DeviceId bridge = b.add(DeviceKind::host_bridge);
        gpu[node] = b.add(DeviceKind::gpu);
        nic[node] = b.add(DeviceKind::nic);
        for (const DeviceId id : {bridge, gpu[node], nic[node]}) b.device(id).node = node;
        to_gpu[node] = b.join(bridge, gpu[node], LinkKind::pcie, 60);
        to_nic[node] = b.join(bridge, nic[node], LinkKind::pcie, 60);
        wire[node] = b.join(nic[node], leaf, LinkKind::network, 50);
    }
    const Topology machine = b.build();
    EXPECT_EQ(machine.pair_class(gpu[0], gpu[1]).kind, PathClass::net);
    EXPECT_EQ(to_string(machine.pair_class(gpu[0], gpu[1])), "NET");
    EXPECT_EQ(machine.path(gpu[0], gpu[1])->links,
              (Links{to_gpu[0], to_nic[0], wire[0], wire[1], to_nic[1], to_gpu[1]}));
    EXPECT_EQ(machine.pair(gpu[0], gpu[1]).narrowest, wire[0]);
    EXPECT_NEAR(machine.pair(gpu[0], gpu[1]).gb_per_s, 48.5, 1e-9);
    EXPECT_FALSE(machine.path(gpu[0], gpu[1], Fabric::pcie));
    EXPECT_EQ(machine.path(gpu[0], nic[0])->links, (Links{to_gpu[0], to_nic[0]}));
    EXPECT_EQ(machine.path(nic[0], gpu[1])->links, (Links{wire[0], wire[1], to_nic[1], to_gpu[1]}));
    EXPECT_FALSE(machine.peer_access(0, 1).allowed);
    EXPECT_NE(machine.peer_access(0, 1).reason.find("different machines"), std::string::npos);

    // A second card of the first machine is no way around.
    const DeviceId lone = b.add(DeviceKind::gpu);
    const DeviceId other = b.add(DeviceKind::nic);
    b.join(lone, other, LinkKind::pcie, 60);
    b.join(other, leaf, LinkKind::network, 50);
    EXPECT_FALSE(b.build().path(gpu[0], lone));
}

// A card with two ports joins two networks no more than it joins two GPUs.
TEST(TopologyPath, ACardForwardsNothingBetweenItsPorts) {
    Builder b;
    const DeviceId leaf[2] = {b.add(DeviceKind::net_switch), b.add(DeviceKind::net_switch)};
    for (const DeviceId id : leaf) b.device(id).node = -1;
    const DeviceId from = b.add(DeviceKind::gpu);
    const DeviceId near_card = b.add(DeviceKind::nic);
    const DeviceId two_ports = b.add(DeviceKind::nic);
    const DeviceId far_card = b.add(DeviceKind::nic);
    const DeviceId to = b.add(DeviceKind::gpu);
    for (const DeviceId id : {two_ports, far_card, to}) b.device(id).node = 1;
    b.join(from, near_card, LinkKind::pcie, 60);
    b.join(near_card, leaf[0], LinkKind::network, 50);
    b.join(two_ports, leaf[0], LinkKind::network, 50);
    b.join(two_ports, leaf[1], LinkKind::network, 50);
    b.join(far_card, leaf[1], LinkKind::network, 50);
    b.join(far_card, to, LinkKind::pcie, 60);
    EXPECT_FALSE(b.build().path(from, to));
    b.join(leaf[0], leaf[1], LinkKind::network, 50);
    EXPECT_EQ(b.build().path(from, to)->links.size(), 5U);
}

// No table of pairs: a search in a machine of 100,000 GPUs takes as much memory as its links.
TEST(TopologyPath, WorksInAHundredThousandGpus) {
    Builder b;
    const DeviceId root = b.add(DeviceKind::host_bridge);
    DeviceId first = 0;
    DeviceId last = 0;
    for (int rack = 0; rack < 1000; ++rack) {
        const DeviceId pcie_switch = b.add(DeviceKind::pcie_switch);
        b.join(pcie_switch, root, LinkKind::pcie, 63);
        for (int i = 0; i < 100; ++i) {
            last = b.add(DeviceKind::gpu);
            if (first == 0) first = last;
            b.join(last, pcie_switch, LinkKind::pcie, 63);
        }
    }
    const Topology machine = b.build();
    EXPECT_EQ(machine.gpu_count(), 100000);
    const auto path = machine.path(first, last);
    ASSERT_TRUE(path);
    EXPECT_EQ(path->links.size(), 4U);
    EXPECT_FALSE(machine.peer_access(0, 99999).allowed);
    EXPECT_NE(machine.to_text().find("matrix is left out above 64 devices"), std::string::npos);
}

TEST(TopologyDescribe, NamesWhatAPathCrosses) {
    Builder b;
    const DeviceId a = b.add(DeviceKind::gpu);
    const DeviceId c = b.add(DeviceKind::gpu);
    const DeviceId cpu = b.add(DeviceKind::cpu);
    const DeviceId far = b.add(DeviceKind::cpu);
    b.join(a, cpu, LinkKind::pcie, 63.015, 0.4, 16);
    b.join(c, far, LinkKind::pcie, 15.754, 0.4, 16);
    b.join(cpu, far, LinkKind::socket, 64);
    Topology machine = b.build();
    EXPECT_EQ(machine.describe(*machine.path(a, cpu)), "PCIe gen5 x16");
    EXPECT_EQ(machine.describe(*machine.path(a, c)), "PCIe gen3 x16 + socket link")
        << "the narrowest link of a kind";
    b.join(a, c, LinkKind::nvlink, 25, 0.1, 1);
    machine = b.build();
    EXPECT_EQ(machine.describe(*machine.path(a, c)), "NVLink (1 link)");
    b.join(a, cpu, LinkKind::c2c, 450, 0.1, 1);
    machine = b.build();
    EXPECT_EQ(machine.describe(*machine.path(a, cpu)), "NVLink-C2C");
    const DeviceId odd = b.add(DeviceKind::nic);
    b.join(odd, cpu, LinkKind::pcie, 7, 0.4, 3);
    machine = b.build();
    EXPECT_EQ(machine.describe(*machine.path(odd, cpu)), "PCIe x3 (7.00 GB/s)");
}

}  // namespace
}  // namespace sidestep
