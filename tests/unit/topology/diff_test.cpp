#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <sidestep/topology_diff.hpp>

namespace sidestep {
namespace {

Topology::Parts dgx() {
    return Topology::model("dgx-h100")->parts();
}

DeviceId id_of(const Topology::Parts& parts, const std::string& name) {
    for (DeviceId id = 0; id < parts.devices.size(); ++id)
        if (parts.devices[id].name == name) return id;
    ADD_FAILURE() << "there is no " << name;
    return 0;
}

Link& link_of(Topology::Parts& parts, const std::string& a, const std::string& b) {
    for (Link& link : parts.links) {
        const std::string from = parts.devices[link.a].name;
        const std::string to = parts.devices[link.b].name;
        if ((from == a && to == b) || (from == b && to == a)) return link;
    }
    ADD_FAILURE() << "there is no link from " << a << " to " << b;
    return parts.links.front();
}

// Takes a device and its links out.
void remove(Topology::Parts& parts, const std::string& name) {
    const DeviceId gone = id_of(parts, name);
    std::erase_if(parts.links, [&](const Link& link) { return link.a == gone || link.b == gone; });
    for (Link& link : parts.links) {
        link.a -= link.a > gone ? 1 : 0;
        link.b -= link.b > gone ? 1 : 0;
    }
    parts.devices.erase(parts.devices.begin() + gone);
}

std::vector<Difference> compare(const Topology::Parts& before, const Topology::Parts& after) {
    const auto a = Topology::create(before);
    const auto b = Topology::create(after);
    EXPECT_TRUE(a.ok());
    EXPECT_TRUE(b.ok()) << b.error().to_string();
    return diff(*a, *b);
}

std::vector<Difference> of_kind(const std::vector<Difference>& all, DifferenceKind kind) {
    std::vector<Difference> found;
    for (const Difference& difference : all)
        if (difference.kind == kind) found.push_back(difference);
    return found;
}

std::string words(const std::vector<Difference>& all) {
    std::string text;
    for (const Difference& difference : all) text += to_string(difference) + "\n";
    return text;
}

TEST(Diff, TheSameIsTheSame) {
    for (const std::string& name : Topology::model_names()) {
        const auto machine = Topology::model(name);
        EXPECT_EQ(diff(*machine, *machine), std::vector<Difference>()) << name;
        EXPECT_EQ(words(diff(*machine, *Topology::from_json(machine->to_json(), ""))), "") << name;
    }
    Topology::Parts other = dgx();
    other.name = "another";
    other.notes = {"a note"};
    std::reverse(other.links.begin(), other.links.end());
    EXPECT_EQ(words(compare(dgx(), other)), "");
}

TEST(Diff, ADeviceThatIsGoneAndOneThatIsNew) {
    Topology::Parts less = dgx();
    remove(less, "gpu:3");
    const auto gone = compare(dgx(), less);
    ASSERT_EQ(gone.size(), 1U) << words(gone) << "its links and pairs are not told again";
    EXPECT_EQ(gone[0], (Difference{DifferenceKind::device_gone, "gpu:3", "",
                                   "NVIDIA H100 80GB HBM3, 0000:61:00.0", "", true}));
    EXPECT_EQ(to_string(gone[0]), "gpu:3 is gone (NVIDIA H100 80GB HBM3, 0000:61:00.0)");
    const auto fresh = compare(less, dgx());
    ASSERT_EQ(fresh.size(), 1U) << words(fresh);
    EXPECT_EQ(fresh[0].kind, DifferenceKind::device_new);
    EXPECT_EQ(to_string(fresh[0]), "gpu:3 is new (NVIDIA H100 80GB HBM3, 0000:61:00.0)");
}

TEST(Diff, GpusThatWereRenumberedAreFoundByTheirBusIds) {
    Topology::Parts after = dgx();
    remove(after, "gpu:3");
    for (Device& device : after.devices) {
        if (device.kind != DeviceKind::gpu || device.index < 3) continue;
        --device.index;
        device.name = "gpu:" + std::to_string(device.index);
    }
    const auto all = compare(dgx(), after);
    EXPECT_EQ(of_kind(all, DifferenceKind::device_gone).size(), 1U) << words(all);
    EXPECT_EQ(of_kind(all, DifferenceKind::device_changed).size(), 4U) << words(all);
    EXPECT_EQ(all.size(), 5U) << words(all);
    EXPECT_NE(words(all).find("gpu:7: name gpu:7 -> gpu:6\n"), std::string::npos) << words(all);
}

TEST(Diff, ACardThatMovedKeepsItsName) {
    Topology::Parts after = dgx();
    after.devices[id_of(after, "nic:mlx5_0")].bus_id = "0000:aa:00.1";
    const auto all = compare(dgx(), after);
    ASSERT_EQ(all.size(), 1U) << words(all);
    EXPECT_EQ(to_string(all[0]), "nic:mlx5_0: bus_id 0000:18:00.0 -> 0000:aa:00.1");
    // And one that was renamed is found by its bus id.
    after = dgx();
    after.devices[id_of(after, "nic:mlx5_0")].name = "nic:ibp24s0";
    EXPECT_EQ(words(compare(dgx(), after)), "nic:mlx5_0: name nic:mlx5_0 -> nic:ibp24s0\n");
}

TEST(Diff, WhatADeviceSaysOfItself) {
    Topology::Parts after = dgx();
    Device& gpu = after.devices[id_of(after, "gpu:0")];
    gpu.model = "NVIDIA H200";
    gpu.memory -= 1;
    gpu.numa_node = 1;
    for (Device& device : after.devices)
        if (device.name == "pcie_switch:0") device.acs_redirect = true;
    const auto all = of_kind(compare(dgx(), after), DifferenceKind::device_changed);
    ASSERT_EQ(all.size(), 4U) << words(all);
    for (const Difference& difference : all) {
        const bool worse = difference.aspect == "memory" || difference.aspect == "acs_redirect";
        EXPECT_EQ(difference.worse, worse) << to_string(difference);
    }
    EXPECT_NE(words(all).find("gpu:0: model NVIDIA H100 80GB HBM3 -> NVIDIA H200\n"), std::string::npos);
    EXPECT_NE(words(all).find("pcie_switch:0: acs_redirect no -> yes, worse\n"), std::string::npos);
}

TEST(Diff, LinksThatAreSlowerGoneOrNew) {
    Topology::Parts after = dgx();
    Link& nvlink = link_of(after, "gpu:2", "nvswitch:1");
    nvlink.width = 4;
    nvlink.gb_per_s *= 4.0 / 5;
    const auto slower = compare(dgx(), after);
    const auto links = of_kind(slower, DifferenceKind::link_changed);
    ASSERT_EQ(links.size(), 2U) << words(slower);
    EXPECT_EQ(to_string(links[0]), "gpu:2 - nvswitch:1: width 5 -> 4, worse");
    EXPECT_EQ(to_string(links[1]), "gpu:2 - nvswitch:1: gb_per_s 132.812 -> 106.25, worse");
    // Seven pairs have a link less.
    const auto classes = of_kind(slower, DifferenceKind::class_changed);
    ASSERT_EQ(classes.size(), 7U) << words(slower);
    EXPECT_EQ(to_string(classes[0]), "gpu:0 - gpu:2: NV18 -> NV17, worse");
    for (const Difference& difference : of_kind(compare(after, dgx()), DifferenceKind::link_changed))
        EXPECT_FALSE(difference.worse) << to_string(difference);

    after = dgx();
    const DeviceId cpu0 = id_of(after, "cpu:0");
    const DeviceId cpu1 = id_of(after, "cpu:1");
    std::erase_if(after.links, [&](const Link& link) {
        return (link.a == cpu0 && link.b == cpu1) || (link.a == cpu1 && link.b == cpu0);
    });
    EXPECT_EQ(words(compare(dgx(), after)), "cpu:0 - cpu:1: the link is gone (socket link, 128 GB/s)\n");
    EXPECT_EQ(words(compare(after, dgx())), "cpu:0 - cpu:1: the link is new (socket link, 128 GB/s)\n");
}

TEST(Diff, AGpuThatLostItsNvlinks) {
    Topology::Parts after = dgx();
    const DeviceId gpu = id_of(after, "gpu:0");
    std::erase_if(after.links, [&](const Link& link) {
        return link.kind == LinkKind::nvlink && (link.a == gpu || link.b == gpu);
    });
    const auto all = compare(dgx(), after);
    EXPECT_NE(words(all).find("gpu:0 - gpu:1: NV18 -> NODE, worse\n"), std::string::npos) << words(all);
    EXPECT_NE(words(all).find("gpu:0 - gpu:7: NV18 -> SYS, worse\n"), std::string::npos) << words(all);
    EXPECT_NE(words(all).find("gpu:0 -> gpu:7: peer access allowed yes -> no, worse\n"), std::string::npos);
    EXPECT_EQ(words(compare(after, dgx())).find("worse"), std::string::npos);
}

TEST(Diff, ABundleListedAsSeveralLinksIsOne) {
    Topology::Parts after = dgx();
    Link& whole = link_of(after, "gpu:2", "nvswitch:1");
    Link part = whole;
    part.width = 2;
    part.gb_per_s = whole.gb_per_s * 2 / 5;
    whole.width = 3;
    whole.gb_per_s *= 3.0 / 5;
    after.links.push_back(part);
    EXPECT_EQ(words(compare(dgx(), after)), "");
}

TEST(Diff, PeerAccessThatWasTakenAway) {
    Topology::Parts after = dgx();
    after.peers.push_back({0, 1, {false, false, "MIG is on", "nvidia-smi -mig 0"}});
    const auto all = compare(dgx(), after);
    EXPECT_EQ(words(all),
              "gpu:0 -> gpu:1: peer access allowed yes -> no, worse\n"
              "gpu:0 -> gpu:1: peer access atomics yes -> no, worse\n");
    Topology::Parts other = after;
    other.peers[0].access.reason = "another reason";
    EXPECT_EQ(words(compare(after, other)),
              "gpu:0 -> gpu:1: peer access reason MIG is on -> another reason\n");
    EXPECT_FALSE(compare(after, dgx())[0].worse);
}

TEST(Diff, Properties) {
    Topology::Parts before = dgx();
    Topology::Parts after = dgx();
    Properties& old = before.devices[id_of(before, "gpu:0")].properties;
    Properties& now = after.devices[id_of(after, "gpu:0")].properties;
    old["pcie_now"] = "gen5 x16";
    now["pcie_now"] = "gen5 x8";
    old["nvlinks"] = "18 of 18";
    now["nvlinks"] = "17 of 18";
    old["driver"] = "nvidia";
    now["zone"] = "b";
    before.properties["kernel"] = "6.1";
    after.properties["kernel"] = "6.8";
    EXPECT_EQ(words(compare(before, after)),
              "gpu:0: driver nvidia -> nothing\n"
              "gpu:0: nvlinks 18 of 18 -> 17 of 18, worse\n"
              "gpu:0: pcie_now gen5 x16 -> gen5 x8, worse\n"
              "gpu:0: zone nothing -> b\n"
              "machine: kernel 6.1 -> 6.8\n");
    now = old;
    now["pcie_now"] = "gen1 x16";
    after.properties = before.properties;
    EXPECT_EQ(words(compare(before, after)), "gpu:0: pcie_now gen5 x16 -> gen1 x16\n") << "idle, no fault";
}

TEST(Diff, TwoMachinesOfAnotherKind) {
    const auto all = diff(*Topology::model("dgx-h100"), *Topology::model("laptop"));
    EXPECT_FALSE(all.empty());
    EXPECT_GE(of_kind(all, DifferenceKind::device_gone).size(), 20U);
    for (const Difference& difference : all) EXPECT_FALSE(to_string(difference).empty());
    for (const DifferenceKind kind : {DifferenceKind::device_gone, DifferenceKind::property_changed})
        EXPECT_FALSE(to_string(kind).empty());
}

TEST(Diff, OneLinkInABigCluster) {
    const auto cluster = Topology::model("dgx-h100*64");
    Topology::Parts after = cluster->parts();
    link_of(after, "node40/gpu:3", "node40/nvswitch:2").width = 3;
    const auto all = diff(*cluster, *Topology::create(after));
    EXPECT_EQ(of_kind(all, DifferenceKind::link_changed).size(), 1U) << words(all);
    EXPECT_EQ(of_kind(all, DifferenceKind::class_changed).size(), 7U) << words(all);
    EXPECT_EQ(all.size(), 8U) << words(all);
}

}  // namespace
}  // namespace sidestep
