// What Topology::to_text() and draw_tree() print.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>

#include <sidestep/drawing.hpp>

#include "topology/outline.hpp"
#include "topology/text_parts.hpp"

namespace sidestep {
namespace {

using topology::Outline;

std::size_t lines_of(const std::string& text) {
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

// The words of the first line that begins with `start`.
std::vector<std::string> row(const std::string& text, const std::string& start) {
    std::istringstream lines(text);
    std::string line;
    while (std::getline(lines, line)) {
        if (line.rfind(start + " ", 0) != 0) continue;
        std::istringstream words(line);
        std::vector<std::string> all;
        std::string word;
        while (words >> word) all.push_back(word);
        return all;
    }
    return {};
}

// Two sockets, a switch with two GPUs, a card and a drive, and a drive at the other socket.
Topology small_machine() {
    Topology::Parts parts;
    parts.name = "small";
    const auto add = [&](DeviceKind kind, int index, std::string name, int numa_node) {
        Device device;
        device.kind = kind;
        device.index = index;
        device.name = std::move(name);
        device.numa_node = numa_node;
        parts.devices.push_back(device);
        return static_cast<DeviceId>(parts.devices.size() - 1);
    };
    const auto join = [&](DeviceId a, DeviceId b, int lanes, double rate) {
        parts.links.push_back({a, b, LinkKind::pcie, lanes, rate, 0.4});
    };
    const DeviceId cpu0 = add(DeviceKind::cpu, 0, "cpu:0", 0);
    const DeviceId cpu1 = add(DeviceKind::cpu, 1, "cpu:1", 1);
    parts.devices[cpu0].properties["cpus"] = "0-15";
    parts.devices[cpu0].memory = Bytes{64} << 30;
    parts.links.push_back({cpu0, cpu1, LinkKind::socket, 1, 64, 0.1});
    const DeviceId bridge0 = add(DeviceKind::host_bridge, 0, "host_bridge:0", 0);
    const DeviceId bridge1 = add(DeviceKind::host_bridge, 1, "host_bridge:1", 1);
    join(bridge0, cpu0, 16, 31.508);
    join(bridge1, cpu1, 4, 7.877);
    const DeviceId pcie_switch = add(DeviceKind::pcie_switch, 0, "pcie_switch:0", 0);
    parts.devices[pcie_switch].acs_redirect = true;
    join(pcie_switch, bridge0, 16, 31.508);
    for (int i = 0; i < 2; ++i) {
        const DeviceId gpu = add(DeviceKind::gpu, i, "gpu:" + std::to_string(i), 0);
        parts.devices[gpu].model = "NVIDIA A30";
        parts.devices[gpu].bus_id = "0000:0" + std::to_string(i + 1) + ":00.0";
        join(gpu, pcie_switch, 16, 31.508);
    }
    parts.devices.back().properties = {
        {"pcie_now", "gen4 x8"}, {"pcie_max", "gen4 x16"}, {"bar1", "34359738368"}, {"secret", "x"}};
    join(add(DeviceKind::nic, 0, "nic:mlx5_0", 0), pcie_switch, 16, 31.508);
    join(add(DeviceKind::drive, 0, "drive:nvme0", 1), bridge1, 4, 7.877);
    parts.peers.push_back({0, 1, {false, false, "chipset not supported", "put them elsewhere"}});
    parts.peers.push_back({1, 0, {false, false, "chipset not supported", "put them elsewhere"}});
    parts.properties["kernel"] = "6.1.0";
    parts.notes = {"a note"};
    return *Topology::create(parts);
}

TEST(PairsText, TellsRateAndWorstLink) {
    const auto dgx = Topology::model("dgx-h100");
    ASSERT_TRUE(dgx.ok());
    const std::string text = list_pairs(*dgx);
    const auto line = [&](const std::string& from, const std::string& to) {
        for (std::size_t at = 0; at < text.size();) {
            const std::size_t end = text.find('\n', at);
            const std::string found = text.substr(at, end - at);
            if (found.starts_with(from + " ") && found.find(" " + to + " ") != std::string::npos)
                return found;
            at = end + 1;
        }
        return std::string();
    };
    EXPECT_NE(line("gpu:0", "gpu:7").find("NV18   396"), std::string::npos) << line("gpu:0", "gpu:7");
    EXPECT_NE(line("gpu:0", "gpu:7").find("18 links through NVSwitch"), std::string::npos);
    EXPECT_NE(line("gpu:0", "nic:mlx5_0").find("PXB    55.5"), std::string::npos)
        << line("gpu:0", "nic:mlx5_0");
    EXPECT_TRUE(line("nic:mlx5_0", "nic:mlx5_3").empty()) << "pairs without a GPU are left out";
    EXPECT_EQ(text.find("node0 alone"), std::string::npos);
    EXPECT_NE(list_pairs(*Topology::model("dgx-h100*2")).find("node0 alone"), std::string::npos);
}

TEST(MatrixText, HasGpusThenCardsThenDrives) {
    const std::string text = small_machine().to_text();
    EXPECT_EQ(text.substr(0, text.find("\n\nGPUs\n")),
              "machine small: 2 GPUs\n"
              "\n"
              "        gpu:0  gpu:1  mlx5_0  nvme0  CPUs  NUMA\n"
              "gpu:0   X      PIX    PIX     SYS    0-15  0\n"
              "gpu:1   PIX    X      PIX     SYS    0-15  0\n"
              "mlx5_0  PIX    PIX    X       SYS    0-15  0\n"
              "nvme0   SYS    SYS    SYS     X      -     1\n"
              "\n"
              "  X    the same device\n"
              "  PIX  PCIe, at most one switch between them\n"
              "  SYS  across NUMA nodes (UPI, Infinity Fabric), or by nothing that is known");
}

TEST(MatrixText, ThenDevicesRefusalsFactsAndNotes) {
    const std::string text = small_machine().to_text();
    EXPECT_NE(
        text.find("  gpu:1  0000:02:00.0  NVIDIA A30  -  numa 0  PCIe gen4 x16, 31.5 GB/s; now gen4 x8 of "
                  "gen4 x16\n"),
        std::string::npos)
        << text;
    EXPECT_NE(text.find("peer access that is refused\n"
                        "  chipset not supported; put them elsewhere\n"
                        "    gpu:0 -> gpu:1, gpu:1 -> gpu:0\n"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("\nmachine\n  kernel  6.1.0\n"), std::string::npos) << text;
    EXPECT_NE(text.find("\nnotes\n  a note\n"), std::string::npos) << text;
    EXPECT_NE(text.find("PIX to gpu:0, gpu:1\n"), std::string::npos) << text;
}

TEST(MatrixText, EveryModelHasTheClassesThatPairsHave) {
    for (const std::string& name : Topology::model_names()) {
        const auto machine = Topology::model(name);
        const Outline outline(*machine);
        if (outline.nodes().size() > 1) continue;
        const std::string text = machine->to_text();
        const auto ids = topology::matrix_devices(outline, -1);
        ASSERT_LE(ids.size(), topology::max_matrix_devices) << name;
        for (const DeviceId from : ids) {
            const auto words = row(text, topology::short_name(machine->device(from), false));
            ASSERT_GE(words.size(), ids.size() + 2) << name << " " << machine->device(from).name;
            for (std::size_t i = 0; i < ids.size(); ++i)
                EXPECT_EQ(words[i + 1], to_string(machine->pair_class(from, ids[i]))) << name;
        }
    }
}

TEST(MatrixText, SixtyFourDevicesAreWholeAndMoreAreNot) {
    const auto with = [](int gpus, int drives) {
        Topology::Parts parts;
        parts.name = "wide";
        for (int i = 0; i < gpus + drives; ++i) {
            Device device;
            device.kind = i < gpus ? DeviceKind::gpu : DeviceKind::drive;
            device.index = i < gpus ? i : i - gpus;
            device.name = (i < gpus ? "gpu:" : "drive:") + std::to_string(device.index);
            parts.devices.push_back(device);
        }
        return Topology::create(parts)->to_text();
    };
    EXPECT_EQ(row(with(60, 4), "gpu:59").size(), 66U);
    EXPECT_EQ(with(60, 4).find("left out"), std::string::npos);
    // The GPUs alone, where those fit.
    EXPECT_EQ(row(with(60, 5), "gpu:59").size(), 62U);
    EXPECT_NE(with(60, 5).find("network cards and drives are left out of the matrix"), std::string::npos);
    EXPECT_NE(with(65, 0).find("the matrix is left out above 64 devices"), std::string::npos);
}

TEST(ClusterText, OneMachineStandsForAllThatAreAlike) {
    const auto cluster = Topology::model("dgx-h100*128");
    const std::string text = cluster->to_text();
    EXPECT_EQ(Topology::create({"box", true}).value().to_text().rfind("machine box (recorded): 0 GPUs\n", 0),
              0U);
    EXPECT_EQ(text.rfind("machine dgx-h100*128 (emulated): 1024 GPUs in 128 machines\n", 0), 0U) << text;
    EXPECT_NE(text.find("  node0 to node127  128 alike, each 8 GPUs, 10 network cards"), std::string::npos)
        << text;
    EXPECT_NE(text.find("8 rails"), std::string::npos) << text;
    EXPECT_NE(text.find("32 leaf switches, 16 spines\n"), std::string::npos) << text;
    EXPECT_EQ(row(text, "gpu:7").size(), 8U + 10 + 2) << "the matrix of one machine";
    EXPECT_LT(lines_of(text), 100U);
}

TEST(ClusterText, AMachineThatDiffersIsTold) {
    Topology::Parts parts = Topology::model("dgx-h100*16")->parts();
    // The order of links is no difference.
    for (std::size_t i = 0; i < parts.links.size(); ++i) {
        if (parts.devices[parts.links[i].a].name != "node3/gpu:0") continue;
        std::rotate(parts.links.begin() + static_cast<std::ptrdiff_t>(i),
                    parts.links.begin() + static_cast<std::ptrdiff_t>(i) + 1, parts.links.end());
        break;
    }
    for (Link& link : parts.links) {
        if (parts.devices[link.a].name == "node7/gpu:3" || parts.devices[link.b].name == "node7/gpu:3") {
            link.width = 1;
            break;
        }
    }
    const Topology cluster = *Topology::create(parts);
    const auto groups = topology::alike_machines(Outline(cluster));
    ASSERT_EQ(groups.size(), 2U);
    EXPECT_EQ(groups[0].size(), 15U);
    EXPECT_EQ(groups[1], (std::vector<int>{7}));
    const std::string text = cluster.to_text();
    EXPECT_NE(text.find("  node0 to node6, node8 to node15  15 alike"), std::string::npos) << text;
    EXPECT_NE(text.find("  node7  "), std::string::npos) << text;
}

TEST(ClusterText, ASmallClusterIsWhole) {
    const std::string text = Topology::model("pcie-2s*2")->to_text();
    const auto words = row(text, "node0/gpu:0");
    ASSERT_FALSE(words.empty()) << text;
    EXPECT_EQ(std::count(words.begin(), words.end(), "NET"), 4 + 2 + 2) << text;
}

TEST(ClusterText, ARackSharesItsNvswitches) {
    const std::string text = Topology::model("gb200-nvl72")->to_text();
    EXPECT_NE(text.find("72 GPUs of 18 machines share 18 NVSwitches"), std::string::npos) << text;
    EXPECT_NE(text.find("node0 to node17  18 alike"), std::string::npos) << text;
    const std::string racks = Topology::model("gb200-nvl72*4")->to_text();
    EXPECT_NE(racks.find("4 NVLink domains: in each 72 GPUs of 18 machines share 18 NVSwitches"),
              std::string::npos)
        << racks;
}

TEST(NodeWords, Ranges) {
    EXPECT_EQ(topology::node_words({0}), "node0");
    EXPECT_EQ(topology::node_words({0, 1, 3, 5, 6, 7}), "node0, node1, node3, node5 to node7");
    std::vector<int> odd;
    for (int i = 1; i < 100; i += 2) odd.push_back(i);
    EXPECT_EQ(topology::node_words(odd),
              "node1, node3, node5, node7, node9, node11, node13, node15 and 42 more");
}

TEST(Tree, ShowsWhatIsBehindWhat) {
    EXPECT_EQ(
        draw_tree(small_machine()),
        "small: 2 GPUs\n"
        "├─ cpu:0  64 GiB\n"
        "│  │    socket link to cpu:1; 64.0 GB/s\n"
        "│  └─ host_bridge:0  [31.5 GB/s]\n"
        "│     └─ pcie_switch:0  [PCIe gen4 x16, 31.5 GB/s]\n"
        "│        │    access control (ACS) redirects to the host bridge\n"
        "│        ├─ gpu:0  0000:01:00.0  NVIDIA A30  [PCIe gen4 x16, 31.5 GB/s]\n"
        "│        ├─ gpu:1  0000:02:00.0  NVIDIA A30  [PCIe now gen4 x8, 15.8 GB/s; possible gen4 x16, 31.5 "
        "GB/s]\n"
        "│        │       bar1 32 GiB\n"
        "│        └─ nic:mlx5_0  [PCIe gen4 x16, 31.5 GB/s]\n"
        "└─ cpu:1\n"
        "   │    socket link to cpu:0; 64.0 GB/s\n"
        "   └─ host_bridge:1  [7.88 GB/s]\n"
        "      └─ drive:nvme0  [PCIe gen4 x4, 7.88 GB/s]\n");
}

TEST(Tree, HasEveryDeviceOfEveryModel) {
    for (const std::string& name : Topology::model_names()) {
        const auto machine = Topology::model(name);
        const std::string text = draw_tree(*machine);
        const bool several = Outline(*machine).nodes().size() > 1;
        for (const Device& device : machine->devices()) {
            if (several && device.node != 0) continue;
            EXPECT_NE(text.find("─ " + std::string(topology::local_name(device))), std::string::npos)
                << name << " " << device.name;
        }
    }
    const std::string mesh = draw_tree(*Topology::model("dgx-1v"));
    EXPECT_NE(mesh.find("NVLink x2 each: gpu:3, gpu:4; 103 GB/s together\n"), std::string::npos) << mesh;
}

TEST(Tree, OfAClusterShowsOneMachine) {
    const std::string text = draw_tree(*Topology::model("dgx-h100*1250"));
    EXPECT_NE(text.find("├─ node0, and like it node1 to node1249\n"), std::string::npos);
    EXPECT_NE(text.find("network between machines: 8 rails"), std::string::npos);
    EXPECT_LT(lines_of(text), 200U);
}

TEST(Words, OfLinksAndProperties) {
    EXPECT_EQ(topology::link_words({0, 1, LinkKind::pcie, 16, 63.015, 0}), "PCIe gen5 x16");
    EXPECT_EQ(topology::link_words({0, 1, LinkKind::pcie, 80, 268, 0}), "PCIe x80");
    EXPECT_EQ(topology::link_words({0, 1, LinkKind::network, 1, 50, 0}), "network 400 Gb/s");
    EXPECT_NEAR(topology::rate_of_pcie_words("gen5 x16").value_or(0), 63.015, 0.01);
    for (const char* none : {"", "gen5", "gen5 x", "gen9 x16", "x16", "fast", "gen4 x-1"})
        EXPECT_FALSE(topology::rate_of_pcie_words(none)) << none;
}

}  // namespace
}  // namespace sidestep
