// Files without NVLink lines, as cloud vendors ship them, borrow them from a built-in machine.
#include "tests/unit/topology/nccl_xml_files.hpp"
#include "topology/nccl_xml/draft.hpp"

namespace sidestep {
namespace {

using testing::between;
using testing::gpu;
using testing::machine;
using testing::property;
using testing::read;
using testing::recorded;

std::string eight_flat_gpus() {
    std::string text;
    for (int i = 7; i >= 0; --i) {
        text += fmt::format(
            "<pci busid=\"000{}:00:00.0\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" "
            "link_width=\"16\"/>\n",
            i);
    }
    return machine(text);
}

TEST(NcclXmlOverlay, LendsNvlinksNamesAndMemory) {
    const Topology alone = read(eight_flat_gpus());
    EXPECT_EQ(between(alone, "gpu:0", "gpu:1"), "PHB");
    const Topology h100 = read(eight_flat_gpus(), "f.xml", "dgx-h100");
    const Topology model = Topology::model("dgx-h100").value();
    EXPECT_EQ(h100.name(), "f");
    EXPECT_EQ(between(h100, "gpu:0", "gpu:7"), "NV18");
    for (int i = 0; i < 8; ++i) {
        const Device& here = h100.device(h100.find(DeviceKind::gpu, i).value());
        const Device& there = model.device(model.find(DeviceKind::gpu, i).value());
        EXPECT_EQ(here.model, there.model);
        EXPECT_EQ(here.memory, there.memory);
        EXPECT_EQ(here.bus_id, fmt::format("000{}:00:00.0", i));
        EXPECT_EQ(property(here, "cc"), property(there, "cc"));
    }
    EXPECT_TRUE(testing::noted(h100, "are those of dgx-h100"));
    EXPECT_EQ(h100.parts().properties.at("nccl.as"), "dgx-h100");
    EXPECT_DOUBLE_EQ(h100.path(*h100.find("gpu:0"), *h100.find("gpu:7"))->gb_per_s,
                     model.path(*model.find("gpu:0"), *model.find("gpu:7"))->gb_per_s);
    EXPECT_FALSE(h100.find("nic:mlx5_0"));  // lends nothing else
}

// What is written after that is what NCCL needs in a virtual machine: the file with NVLinks.
TEST(NcclXmlOverlay, WritesAFileThatHasThem) {
    const auto text = write_nccl_xml(read(eight_flat_gpus(), "f.xml", "dgx-h100"));
    ASSERT_TRUE(text.ok()) << text.error().to_string();
    const Topology again = read(*text);
    EXPECT_EQ(between(again, "gpu:0", "gpu:7"), "NV18");
    EXPECT_EQ(again.device(again.find("gpu:3").value()).model, "NVIDIA H100 80GB HBM3");
    EXPECT_EQ(*write_nccl_xml(again), *text);
    // NCCL asks NVML for the number, and must not find ours in the way.
    EXPECT_EQ(text->find("dev="), std::string::npos) << *text;
}

TEST(NcclXmlOverlay, AFileWithoutNvlinksNamesWhoLendsThem) {
    const std::string none;
    const std::string all = "dgx-1v, dgx-a100, dgx-h100, dgx-h200, dgx-b200";
    struct Case {
        Topology topology;
        std::string lenders;
    };
    const Case cases[] = {
        {read(eight_flat_gpus()), all},
        {read(eight_flat_gpus(), "f.xml", "dgx-h100"), none},
        {read(machine(gpu(1, 80, "") + gpu(2, 80, ""))), none},  // no machine has two
        {read(recorded("a100x8-vm-flat.xml")), all},
        {read(recorded("hgx-h200.xml")), none},
        {read(recorded("l40sx4-switch-links.xml")), none},
        {read(recorded("mi300x-rccl.xml")), none},
    };
    for (const Case& c : cases) {
        const auto& properties = c.topology.parts().properties;
        const auto told = properties.find("lenders");
        EXPECT_EQ(told == properties.end() ? none : told->second, c.lenders) << c.topology.name();
        EXPECT_EQ(testing::noted(c.topology, "the file tells of no NVLinks"), !c.lenders.empty());
    }
    const PeerAccess peer = cases[0].topology.peer_access(0, 1);
    EXPECT_FALSE(peer.allowed);
    EXPECT_NE(peer.remedy.find("read it --as one of: " + all), std::string::npos) << peer.remedy;
}

TEST(NcclXmlOverlay, AFilesOwnNamesStay) {
    std::string text;
    for (int i = 0; i < 8; ++i) text += gpu(i + 1, i, "", " vendor=\"0x10de\" device=\"0x2335\"");
    const Topology h200 = read(machine(text), "f.xml", "dgx-h100");
    EXPECT_EQ(h200.device(h200.find("gpu:0").value()).model, "NVIDIA H200");
    EXPECT_GT(h200.device(h200.find("gpu:0").value()).memory, 0U);
    EXPECT_EQ(between(h200, "gpu:0", "gpu:7"), "NV18");
}

TEST(NcclXmlOverlay, Refusals) {
    const auto refusal = [](const std::string& text, const char* as) {
        const auto topology = read_nccl_xml(text, "f.xml", as);
        EXPECT_FALSE(topology.ok()) << as;
        return topology.ok() ? Error{} : topology.error();
    };
    const Error fewer = refusal(machine(gpu(1, 0)), "dgx-h100");
    EXPECT_EQ(fewer.code, ErrorCode::invalid_argument);
    EXPECT_EQ(fewer.where, "f.xml: as dgx-h100");
    EXPECT_NE(fewer.message.find("the file has 1 GPUs, dgx-h100 has 8"), std::string::npos) << fewer.message;

    const Error linked = refusal(recorded("hgx-h200.xml"), "dgx-h100");
    EXPECT_EQ(linked.code, ErrorCode::invalid_argument);
    EXPECT_NE(linked.message.find("links of its own"), std::string::npos) << linked.message;

    EXPECT_EQ(refusal(eight_flat_gpus(), "dgx-h1000").code, ErrorCode::not_found);
    EXPECT_NE(refusal(eight_flat_gpus(), "dgx-h1000").hint.find("dgx-h100"), std::string::npos);
    EXPECT_NE(refusal(recorded("gb300-two-trays.xml"), "dgx-h100").message.find("cluster"),
              std::string::npos);
}

// Of any lender: only the fabric, with what it joins.
TEST(NcclXmlOverlay, LendsTheFabricAlone) {
    Topology::Parts lender;
    lender.name = "lender";
    lender.devices = {{DeviceKind::cpu, 0, "cpu:0"},
                      {DeviceKind::nvswitch, 4, "nvswitch:4", "a switch", "0000:07:00.0"},
                      {DeviceKind::gpu, 5, "gpu:5", "second", "", -1, 20},
                      {DeviceKind::gpu, 2, "gpu:2", "first", "", -1, 10}};
    lender.links = {{0, 2, LinkKind::pcie, 16, 63, 0},
                    {2, 3, LinkKind::nvlink, 2, 50, 0.5},
                    {3, 1, LinkKind::nvlink, 3, 75, 0.25}};
    const Topology from = Topology::create(lender).value();
    Topology::Parts parts =
        read(machine("<pci busid=\"0000:09:00.0\" class=\"0x068000\"/>" + gpu(2, 1) + gpu(1, 0))).parts();
    const std::size_t links = parts.links.size();
    ASSERT_TRUE(topology::nccl_xml::overlay(parts, from).ok());
    const Topology both = Topology::create(parts).value();
    EXPECT_EQ(both.links().size(), links + 2);
    EXPECT_EQ(both.device(both.find("gpu:0").value()).model, "first");
    EXPECT_EQ(both.device(both.find("gpu:1").value()).memory, 20U);
    EXPECT_EQ(both.device(both.find("nvswitch:1").value()).model, "a switch");
    EXPECT_EQ(both.device(both.find("nvswitch:1").value()).bus_id, "");
    EXPECT_EQ(between(both, "gpu:0", "gpu:1"), "NV2");
    // Twice is once too often.
    EXPECT_FALSE(topology::nccl_xml::overlay(parts, from).ok());
}

}  // namespace
}  // namespace sidestep
