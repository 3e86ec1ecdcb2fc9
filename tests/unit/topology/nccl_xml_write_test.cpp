// Written files: that NCCL's parser takes them, and that they hold what they were written from.
#include <set>

#include "tests/unit/topology/nccl_parser.hpp"
#include "tests/unit/topology/nccl_xml_files.hpp"

namespace sidestep {
namespace {

using testing::between;
using testing::gpu;
using testing::machine;
using testing::NcclParser;
using testing::property;
using testing::read;
using testing::recorded;

std::string written(const Topology& topology, int version = 1) {
    auto text = write_nccl_xml(topology, version);
    if (text.ok()) return *text;
    ADD_FAILURE() << text.error().to_string();
    return "";
}

bool is_cluster(const Topology& topology) {
    std::set<int> machines;
    for (const Device& device : topology.devices()) {
        if (device.node >= 0) machines.insert(device.node);
    }
    return machines.size() > 1;
}

// The GPUs and cards of `before` are in `after`, and every two of them are joined as before.
void expect_same_pairs(const Topology& before, const Topology& after, bool rates) {
    std::vector<DeviceId> ends;
    for (DeviceId id = 0; id < before.devices().size(); ++id) {
        const DeviceKind kind = before.device(id).kind;
        if (kind == DeviceKind::gpu || kind == DeviceKind::nic) ends.push_back(id);
    }
    EXPECT_EQ(before.gpu_count(), after.gpu_count());
    for (const DeviceId id : ends) {
        const auto there = after.find(before.device(id).name);
        ASSERT_TRUE(there) << before.device(id).name;
        EXPECT_EQ(after.device(*there).index, before.device(id).index);
        EXPECT_EQ(after.device(*there).numa_node, before.device(id).numa_node);
        if (!before.device(id).bus_id.empty()) {
            EXPECT_EQ(after.device(*there).bus_id, before.device(id).bus_id);
        }
        for (const DeviceId other : ends) {
            const std::string& name = before.device(other).name;
            EXPECT_EQ(between(after, before.device(id).name, name),
                      between(before, before.device(id).name, name))
                << before.device(id).name << " and " << name;
            if (!rates) continue;
            EXPECT_DOUBLE_EQ(after.pair(*there, *after.find(name)).gb_per_s, before.pair(id, other).gb_per_s)
                << before.device(id).name << " and " << name;
        }
    }
}

TEST(NcclXmlWrite, EveryBuiltInMachineComesBack) {
    int machines = 0;
    for (const std::string& name : Topology::model_names()) {
        SCOPED_TRACE(name);
        const Topology before = Topology::model(name).value();
        if (is_cluster(before)) {
            EXPECT_EQ(write_nccl_xml(before).error().code, ErrorCode::unsupported);
            continue;
        }
        ++machines;
        const std::string text = written(before);
        EXPECT_EQ(NcclParser::complaint(text), "");
        const Topology after = read(text);
        EXPECT_EQ(after.name(), name);
        EXPECT_TRUE(after.notes().empty()) << after.notes().front();
        expect_same_pairs(before, after, true);
        EXPECT_EQ(written(after), text);
        for (const Device& device : before.devices()) {
            if (device.kind != DeviceKind::gpu) continue;
            const Device& again = after.device(after.find(device.name).value());
            EXPECT_EQ(property(again, "cc"), property(device, "cc"));
        }
    }
    EXPECT_GE(machines, 1);
}

TEST(NcclXmlWrite, EveryRecordedFileComesBackExactly) {
    for (const auto& file : testing::recorded_files()) {
        SCOPED_TRACE(file);
        const Topology before = read(testing::text_of(file), file.string());
        if (is_cluster(before)) continue;
        const std::string text = written(before);
        const Topology after = read(text, file.string());
        EXPECT_EQ(after.devices(), before.devices());
        EXPECT_EQ(after.links(), before.links());
        EXPECT_EQ(after.parts().properties, before.parts().properties);
        EXPECT_EQ(written(after), text);
        if (file.filename() == "a10gx8-vm-no-class.xml") continue;  // leaves the rest to NCCL
        EXPECT_EQ(NcclParser::complaint(text), "");
    }
}

// What a hand-written file says is said again, and nothing is put in its mouth.
TEST(NcclXmlWrite, WhatAFileLeavesOutStaysOut) {
    const std::string text =
        "<system version=\"1\" name=\"f\">\n"
        "  <cpu numaid=\"0\">\n"
        "    <pci busid=\"0000:01:00.0\" class=\"0x030200\" link_speed=\"16.0 GT/s PCIe\" "
        "link_width=\"16\"/>\n"
        "    <pci busid=\"0000:02:00.0\"/>\n"
        "    <pci busid=\"0000:03:00.0\" class=\"0x030200\" link_speed=\"\" link_width=\"0\">\n"
        "      <gpu>\n"
        "        <nvlink target=\"fffffff:ffff:ff\" count=\"18\" tclass=\"0x068000\"/>\n"
        "      </gpu>\n"
        "    </pci>\n"
        "    <pci busid=\"0000:04:00.0\" class=\"0x020700\" link_speed=\"16.0 GT/s PCIe\" "
        "link_width=\"16\"/>\n"
        "    <pci busid=\"0000:05:00.0\" class=\"0x020000\" link_speed=\"16.0 GT/s PCIe\" "
        "link_width=\"16\">\n"
        "      <nic>\n"
        "        <net name=\"mlx5_0\" speed=\"-1\" latency=\"0.000000\" guid=\"0x1\" coll=\"1\"/>\n"
        "      </nic>\n"
        "    </pci>\n"
        "    <nic>\n"
        "      <net name=\"eth0\" dev=\"0\"/>\n"
        "    </nic>\n"
        "  </cpu>\n"
        "  <cpu numaid=\"-1\" arch=\"arm64\"/>\n"
        "</system>\n";
    EXPECT_EQ(written(read(text)), text);
}

TEST(NcclXmlWrite, HostBridgesAreToldApart) {
    // PHB below one host bridge, NODE below two: NCCL's format does not know the difference.
    Topology::Parts parts;
    parts.devices = {
        {DeviceKind::cpu, 0, "cpu:0", "", "", 0},      {DeviceKind::host_bridge, 0, "host_bridge:0"},
        {DeviceKind::host_bridge, 1, "host_bridge:1"}, {DeviceKind::gpu, 0, "gpu:0", "", "", 0},
        {DeviceKind::gpu, 1, "gpu:1", "", "", 0},      {DeviceKind::gpu, 2, "gpu:2", "", "", 0}};
    parts.links = {{1, 0, LinkKind::pcie, 32, 126, 0.1},
                   {2, 0, LinkKind::pcie, 16, 63, 0.1},
                   {3, 1, LinkKind::pcie, 16, 63, 0.4},
                   {4, 1, LinkKind::pcie, 16, 63, 0.4},
                   {5, 2, LinkKind::pcie, 16, 63, 0.4}};
    const Topology before = Topology::create(parts).value();
    const std::string text = written(before);
    EXPECT_NE(text.find("sidestep_bridge=\"1\""), std::string::npos) << text;
    EXPECT_EQ(NcclParser::complaint(text), "");
    expect_same_pairs(before, read(text), false);
    EXPECT_EQ(between(before, "gpu:0", "gpu:1"), "PHB");
    EXPECT_EQ(between(before, "gpu:0", "gpu:2"), "NODE");
    // Bus ids are made up where there are none, and are all different.
    EXPECT_NE(text.find("busid=\"ffff:ff:00.0\""), std::string::npos);
    EXPECT_NE(text.find("busid=\"ffff:ff:02.0\""), std::string::npos);
}

TEST(NcclXmlWrite, MadeUpBusIdsKeepClearOfTheOthers) {
    Topology::Parts parts;
    parts.devices = {{DeviceKind::gpu, 0, "gpu:0", "", "ffff:ff:00.0"},
                     {DeviceKind::gpu, 1, "gpu:1", "", "no bus id"},
                     {DeviceKind::gpu, 2, "gpu:2", "", "FFFF:FF:00.0"},
                     {DeviceKind::gpu, 3, "gpu:3"}};
    const Topology after = read(written(Topology::create(parts).value()));
    std::set<std::string> ids;
    for (const Device& device : after.devices()) {
        if (device.kind == DeviceKind::gpu) ids.insert(device.bus_id);
    }
    EXPECT_EQ(ids, (std::set<std::string>{"ffff:ff:00.0", "ffff:ff:01.0", "ffff:ff:02.0", "ffff:ff:03.0"}));
    EXPECT_EQ(after.device(after.find("cpu:0").value()).numa_node, -1);
    EXPECT_EQ(between(after, "gpu:0", "gpu:1"), "NODE");  // nothing joined them; never a neighbour
}

TEST(NcclXmlWrite, Versions) {
    const Topology h100 = Topology::model("dgx-h100").value();
    EXPECT_EQ(written(h100).substr(0, 20), "<system version=\"1\" ");
    EXPECT_EQ(written(h100, 2).substr(0, 20), "<system version=\"2\" ");
    // Only RCCL reads files with AMD GPUs.
    EXPECT_EQ(written(read(recorded("mi300x-rccl.xml")), 1).substr(0, 20), "<system version=\"2\" ");
    for (const int version : {0, 3, -1}) {
        const auto refused = write_nccl_xml(h100, version);
        ASSERT_FALSE(refused.ok());
        EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
    }
}

TEST(NcclXmlWrite, ClustersAreRefused) {
    const auto refused = write_nccl_xml(read(recorded("gb300-two-trays.xml")));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
    EXPECT_NE(refused.error().hint.find("one of its machines"), std::string::npos);
}

TEST(NcclXmlWrite, WhatTheFormatCannotHold) {
    Topology::Parts parts;
    parts.devices = {{DeviceKind::gpu, 0, "gpu:0"}, {DeviceKind::gpu, 1, "gpu:1"}};
    parts.links = {{0, 1, LinkKind::nvlink, 5000, 1000, 0}};
    const auto wide = write_nccl_xml(Topology::create(parts).value());
    ASSERT_FALSE(wide.ok());
    EXPECT_EQ(wide.error().code, ErrorCode::unsupported);
    EXPECT_EQ(wide.error().where, "gpu:0");

    parts = {};
    for (int i = 0; i < 100; ++i) {
        parts.devices.push_back({DeviceKind::pcie_switch, i, fmt::format("pcie_switch:{}", i)});
        if (i > 0)
            parts.links.push_back(
                {static_cast<DeviceId>(i), static_cast<DeviceId>(i - 1), LinkKind::pcie, 16, 63, 0});
    }
    const auto deep = write_nccl_xml(Topology::create(parts).value());
    ASSERT_FALSE(deep.ok());
    EXPECT_NE(deep.error().message.find("more than 60 levels"), std::string::npos);

    parts = {};
    for (int i = 0; i < 257; ++i) parts.devices.push_back({DeviceKind::cpu, i, fmt::format("cpu:{}", i)});
    const auto cpus = write_nccl_xml(Topology::create(parts).value());
    ASSERT_FALSE(cpus.ok());
    EXPECT_NE(cpus.error().message.find("257 cpus"), std::string::npos);
}

// NCCL's parser knows neither entities nor long values.
TEST(NcclXmlWrite, TextsThatXmlWouldTrip) {
    Topology::Parts parts;
    parts.name = "a \"b\" <c> & d\n\x01 \xff \xc3\xa4 \xef\xbf\xbf";
    parts.devices = {{DeviceKind::cpu, 0, "cpu:0", "", "", 0}, {DeviceKind::nic, 0, "nic:a&b<\">'"}};
    parts.devices[0].properties = {{"nccl.affinity", std::string(300, 'f')}, {"nccl.arch", "arm64"}};
    parts.devices[1].properties = {{"nccl.guid", "0x1\" evil=\"1"}, {"nccl.gdr", "none"}, {"nccl.port", "1"}};
    parts.links = {{1, 0, LinkKind::pcie, 16, 63, 0}};
    const std::string text = written(Topology::create(parts).value());
    EXPECT_EQ(NcclParser::complaint(text), "");
    EXPECT_EQ(text.find("affinity"), std::string::npos) << text;
    EXPECT_EQ(text.find("gdr"), std::string::npos) << text;
    const Topology after = read(text);
    EXPECT_EQ(after.name(), "a \"b\" <c> & d\xef\xbf\xbd\xef\xbf\xbd ? \xc3\xa4 ???");
    const auto card = after.find("nic:a&b<\">'");
    ASSERT_TRUE(card) << text;
    EXPECT_EQ(property(after.device(*card), "nccl.guid"), "0x1\" evil=\"1");
    EXPECT_EQ(written(after), text);
}

// A GPU whose class was left out came back as a switch.
TEST(NcclXmlWrite, PropertiesTooLongForNcclAreAsIfNotTold) {
    const std::string longer(254, '0');
    Topology::Parts parts;
    parts.name = "m";
    parts.devices = {
        {DeviceKind::gpu, 0, "gpu:0"}, {DeviceKind::gpu, 1, "gpu:1"}, {DeviceKind::nic, 0, "nic:a"}};
    parts.devices[0].properties = {{"nccl.class", "0x0302" + longer}, {"nccl.gpu", "none"}};
    parts.devices[1].properties = {
        {"nccl.class", "0x0302" + longer}, {"nccl.gcn", longer}, {"gfx", "gfx942"}};
    parts.devices[2].properties = {{"nccl.name", std::string(64, '>')}};
    parts.links = {{0, 1, LinkKind::nvlink, 4, 100, 0}};
    const std::string text = written(Topology::create(parts).value());
    EXPECT_EQ(NcclParser::complaint(text), "");
    const Topology after = read(text);
    EXPECT_EQ(after.gpu_count(), 2) << text;
    EXPECT_EQ(property(after.device(after.find("gpu:1").value()), "gfx"), "gfx942");
    EXPECT_EQ(text.find("&gt;"), std::string::npos) << text;
    EXPECT_EQ(written(after), text);
}

// Lines of one GPU come in an order of their own, and links between switches join them to one.
TEST(NcclXmlWrite, TrunksBetweenNvswitches) {
    Topology::Parts parts;
    parts.devices = {{DeviceKind::gpu, 0, "gpu:0", "NVIDIA A100-SXM4-40GB"},
                     {DeviceKind::gpu, 1, "gpu:1", "NVIDIA A100-SXM4-40GB"},
                     {DeviceKind::nvswitch, 0, "nvswitch:0"},
                     {DeviceKind::nvswitch, 1, "nvswitch:1"}};
    parts.links = {{0, 2, LinkKind::nvlink, 6, 150, 0},
                   {1, 3, LinkKind::nvlink, 6, 150, 0},
                   {2, 3, LinkKind::nvlink, 8, 200, 0}};
    const Topology before = Topology::create(parts).value();
    const std::string text = written(before);
    EXPECT_NE(text.find("<nvlink target=\"fffffff:ffff:ff\" count=\"6\" tclass=\"0x068000\"/>"),
              std::string::npos)
        << text;
    EXPECT_EQ(between(before, "gpu:0", "gpu:1"), "NV6");
    EXPECT_EQ(between(read(text), "gpu:0", "gpu:1"), "NV6");
    EXPECT_EQ(read(text).device(read(text).find("gpu:0").value()).model, "NVIDIA A100-SXM4-40GB");
}

TEST(NcclXmlWrite, BigMachinesSayThatNcclHasALimit) {
    std::string gpus;
    for (int i = 0; i < 130; ++i) gpus += gpu(i, i);
    const std::string text = written(read(machine(gpus)));
    EXPECT_EQ(text.find("<!-- 262 elements: NCCL reads up to 256"), 0U) << text.substr(0, 100);
    EXPECT_EQ(NcclParser::complaint(text), "");
    EXPECT_EQ(written(read(text)), text);
}

TEST(NcclXmlWrite, PortsOfOneCardShareAnElement) {
    const std::string text =
        "<system version=\"1\" name=\"f\">\n"
        "  <cpu numaid=\"0\">\n"
        "    <pci busid=\"0000:41:00.0\" class=\"0x020700\" link_speed=\"16.0 GT/s PCIe\" "
        "link_width=\"16\">\n"
        "      <nic>\n"
        "        <net name=\"mlx5_0\" dev=\"0\" port=\"1\"/>\n"
        "        <net name=\"mlx5_1\" dev=\"1\" port=\"2\"/>\n"
        "      </nic>\n"
        "    </pci>\n"
        "  </cpu>\n"
        "</system>\n";
    EXPECT_EQ(written(read(text)), text);
}

TEST(NcclXmlWrite, Processors) {
    const auto line = [](std::vector<Device> cpus) {
        Topology::Parts parts;
        for (int i = 0; i < static_cast<int>(cpus.size()); ++i) {
            Device& cpu = cpus[static_cast<std::size_t>(i)];
            cpu.index = i;
            cpu.name = fmt::format("cpu:{}", i);
            parts.devices.push_back(cpu);
        }
        const std::string text = written(Topology::create(parts).value());
        return text.substr(text.find("<cpu"), text.rfind("</system>") - text.find("<cpu"));
    };
    const auto cpu = [](const char* model, int node) {
        return Device{DeviceKind::cpu, 0, "", model, "", node};
    };
    EXPECT_EQ(line({cpu("Intel(R) Xeon(R) Platinum 8480C", 0)}),
              "<cpu numaid=\"0\" arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"143\"/>\n");
    EXPECT_EQ(
        line({cpu("AuthenticAMD family 143 model 49", 0)}),
        "<cpu numaid=\"0\" arch=\"x86_64\" vendor=\"AuthenticAMD\" familyid=\"143\" modelid=\"49\"/>\n");
    EXPECT_EQ(line({cpu("NVIDIA Grace", -1)}), "<cpu numaid=\"-1\" arch=\"arm64\"/>\n");
    EXPECT_EQ(line({cpu("", 0)}), "<cpu numaid=\"0\"/>\n");
    // A file has every NUMA node once.
    EXPECT_EQ(line({cpu("", 1), cpu("", 1), cpu("", -1), cpu("", -1)}),
              "<cpu numaid=\"1\"/>\n  <cpu numaid=\"0\"/>\n  <cpu numaid=\"-1\"/>\n  <cpu numaid=\"2\"/>\n");
}

// Links that are of no generation's rate are written as the next slower one.
TEST(NcclXmlWrite, RatesThatAreNoGenerations) {
    const auto text = [](double gb_per_s, int width) {
        Topology::Parts parts;
        parts.devices = {{DeviceKind::cpu, 0, "cpu:0"}, {DeviceKind::gpu, 0, "gpu:0"}};
        parts.devices.push_back({DeviceKind::host_bridge, 0, "host_bridge:0"});
        parts.links = {{2, 0, LinkKind::pcie, 16, 63, 0}, {1, 2, LinkKind::pcie, width, gb_per_s, 0}};
        return write_nccl_xml(Topology::create(parts).value());
    };
    EXPECT_NE(text(60, 16)->find("link_speed=\"16.0 GT/s PCIe\" link_width=\"16\""), std::string::npos);
    EXPECT_NE(text(1000, 16)->find("link_speed=\"64.0 GT/s PCIe\""), std::string::npos);
    EXPECT_NE(text(0.1, 16)->find("link_speed=\"2.5 GT/s PCIe\""), std::string::npos);
    EXPECT_EQ(text(63, 5000).error().code, ErrorCode::unsupported);
}

// The checker above has to see what it is there for.
TEST(NcclXmlWrite, TheCheckOfNcclsRulesSeesWhatBreaksThem) {
    const auto complains = [](const std::string& text) { return !NcclParser::complaint(text).empty(); };
    EXPECT_FALSE(complains("<!-- x -->\n<system version=\"1\">\n</system>\n"));
    EXPECT_TRUE(complains("<?xml version=\"1.0\"?>\n<system version=\"1\"/>"));
    EXPECT_TRUE(complains("<system  version=\"1\"/>"));
    EXPECT_TRUE(complains("<system version='1'/>"));
    EXPECT_TRUE(complains("<system version=\"1\" />\t"));
    EXPECT_TRUE(complains("<system/>"));
    EXPECT_TRUE(complains("<system version=\"1\">"));
    EXPECT_TRUE(complains("<system version=\"1\"><gpu/></system>"));
    EXPECT_TRUE(complains("<system version=\"" + std::string(254, '1') + "\"/>"));
    EXPECT_TRUE(
        complains("<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\"/></cpu></system>"));
    EXPECT_TRUE(complains("<system version=\"1\"><cpu numaid=\"0\" arch=\"x86_64\"/></system>"));
}

}  // namespace
}  // namespace sidestep
