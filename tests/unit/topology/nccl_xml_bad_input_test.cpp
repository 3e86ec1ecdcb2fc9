// Files that are no topology of NCCL: an error with line and element, never a crash, never unbounded memory.
#include "tests/unit/topology/nccl_xml_files.hpp"

namespace sidestep {
namespace {

using testing::gpu;
using testing::machine;

struct Bad {
    std::string text;
    std::string where;    // after the file's name
    std::string message;  // a part of it
};

void expect_refusal(const Bad& bad) {
    const auto topology = read_nccl_xml(bad.text, "f.xml");
    ASSERT_FALSE(topology.ok()) << bad.text.substr(0, 2000);
    EXPECT_EQ(topology.error().code, ErrorCode::invalid_argument) << topology.error().to_string();
    EXPECT_EQ(topology.error().where, bad.where.empty() ? "f.xml" : "f.xml: " + bad.where)
        << bad.text.substr(0, 2000);
    EXPECT_NE(topology.error().message.find(bad.message), std::string::npos) << topology.error().to_string();
}

void expect_refusals(const std::vector<Bad>& all) {
    for (const Bad& bad : all) expect_refusal(bad);
}

TEST(NcclXmlBadInput, NoXml) {
    expect_refusals({
        {"", "line 1", "no element found"},
        {"\n\n  ", "line 3", "no element found"},
        {"{\"format\": \"sidestep-topology\"}", "line 1", "no XML"},
        {"<system version=\"1\">\n<cpu numaid=\"0\">\n</system>", "line 3", "mismatched tag"},
        {"<system version=\"1\">\n<cpu numaid=\"0\"/>\n", "line 3", "no element found"},
        {"<system version=\"1\" version=\"1\"/>", "line 1", "duplicate attribute"},
        {"<system version=\"1\"/>\n<system version=\"1\"/>", "line 2", "junk after document element"},
        {std::string("<system version=\"1\">\0</system>", 31), "line 1", "not well-formed"},
        {"<system version=\"1\" name=\"\xff\"/>", "line 1", "not well-formed"},
        {"<system version=\"1\" name=\"&lt;&unknown;\"/>", "line 1", "undefined entity"},
    });
}

TEST(NcclXmlBadInput, DocumentTypesAreRefused) {
    const std::string laughs =
        "<?xml version=\"1.0\"?>\n<!DOCTYPE system [\n<!ENTITY a \"ha\">\n<!ENTITY b \"&a;&a;&a;&a;\">\n]>\n"
        "<system version=\"1\" name=\"&b;\"/>";
    expect_refusal({laughs, "line 2: <!DOCTYPE>", "document type"});
    expect_refusal({"<!DOCTYPE system SYSTEM \"file:///etc/passwd\">\n<system version=\"1\"/>",
                    "line 1: <!DOCTYPE>", "document type"});
}

TEST(NcclXmlBadInput, AnotherFormatOrVersion) {
    expect_refusals({
        {"<graphs version=\"1\"/>", "line 1: <graphs>", "graphs, not a topology"},
        {"<topology/>", "line 1: <topology>", "not a topology file of NCCL"},
        {"<!-- x -->\n<system/>", "line 2: <system>", "version is missing"},
        {"<system version=\"3\"/>", "line 1: <system version=\"3\">", "another version"},
        {"<system version=\"\"/>", "line 1: <system version=\"\">", "another version"},
        {"<system version=\"one\"/>", "line 1: <system version=\"one\">", "another version"},
    });
}

TEST(NcclXmlBadInput, Processors) {
    const auto system = [](const std::string& inside) {
        return "<system version=\"1\">\n" + inside + "\n</system>";
    };
    expect_refusals({
        {system("<cpu/>"), "line 2: <cpu numaid=\"\">", "numaid is missing"},
        {system("<cpu numaid=\"-2\"/>"), "line 2: <cpu numaid=\"-2\">", "numaid is -2"},
        {system("<cpu numaid=\"zero\"/>"), "line 2: <cpu numaid=\"zero\">", "not a whole number"},
        {system("<cpu numaid=\"9999999999999999999999\"/>"),
         "line 2: <cpu numaid=\"9999999999999999999999\">", "not a whole number"},
        {system("<cpu numaid=\"1\"/>\n<cpu numaid=\"0x1\"/>"), "line 3: <cpu numaid=\"0x1\">",
         "NUMA node 1 was there before"},
    });
    std::string many;
    for (int i = 0; i < 300; ++i) many += fmt::format("<cpu numaid=\"{}\"/>\n", i);
    expect_refusal({system(many), "line 258: <cpu numaid=\"256\">", "more than 256 <cpu>"});
}

TEST(NcclXmlBadInput, PciDevices) {
    const std::string class_of_gpu = " class=\"0x030200\"";
    expect_refusals({
        {machine("<pci/>"), "line 3: <pci>", "busid is missing"},
        {machine("<pci busid=\"\"/>"), "line 3: <pci busid=\"\">", "no PCI address"},
        {machine("<pci busid=\"1b:00.0\"/>"), "line 3: <pci busid=\"1b:00.0\">", "no PCI address"},
        {machine("<pci busid=\"0000:1b:00.0x\"/>"), "line 3: <pci busid=\"0000:1b:00.0x\">",
         "no PCI address"},
        {machine("<pci busid=\"0000:01:00.0\" link_width=\"-16\"/>"), "line 3: <pci busid=\"0000:01:00.0\">",
         "link_width is -16"},
        {machine("<pci busid=\"0000:01:00.0\" link_width=\"99999999\"/>"),
         "line 3: <pci busid=\"0000:01:00.0\">", "link_width is 99999999"},
        {machine("<pci busid=\"0000:01:00.0\" link_width=\"x16\"/>"), "line 3: <pci busid=\"0000:01:00.0\">",
         "link_width is \"x16\""},
        {machine("<pci busid=\"0000:01:00.0\" sidestep_bridge=\"-1\"/>"),
         "line 3: <pci busid=\"0000:01:00.0\">", "sidestep_bridge is -1"},
        {machine("<pci busid=\"0000:01:00.0\"" + class_of_gpu +
                 ">\n<gpu/><pci busid=\"0000:02:00.0\"/></pci>"),
         "line 3: <pci busid=\"0000:01:00.0\">", "holds more than one"},
        {machine("<pci busid=\"0000:01:00.0\"><gpu/><nic/></pci>"), "line 3: <pci busid=\"0000:01:00.0\">",
         "holds more than one"},
        {machine("<pci busid=\"0000:01:00.0\"" + class_of_gpu +
                 "/>\n\n<pci busid=\"0000:01:00.0\" class=\"0x020000\"/>"),
         "line 5: <pci busid=\"0000:01:00.0\">", "line 3 has a device of the same busid"},
        {machine("<pci busid=\"0000:01:00.0\"" + class_of_gpu + "/>\n<pci busid=\"00000000:01:00.0\"" +
                 class_of_gpu + "/>"),
         "line 4: <pci busid=\"0000:01:00.0\">", "line 3 has a device of the same busid"},
    });
}

// A tree of elements has no cycles; what closes one is a device that lies in itself, or links to itself.
TEST(NcclXmlBadInput, Cycles) {
    expect_refusals({
        {machine("<pci busid=\"0000:01:00.0\" class=\"0x060400\">\n<pci busid=\"0000:02:00.0\" "
                 "class=\"0x060400\">\n"
                 "<pcilink target=\"0000:02:00.0\"/></pci></pci>"),
         "line 5: <pcilink target=\"0000:02:00.0\">", "joined to itself"},
        {machine(gpu(1, 0) + "<pci busid=\"0000:05:00.0\" class=\"0x060400\">" + gpu(1, 1) + "</pci>"),
         "line 4: <pci busid=\"0000:01:00.0\">", "same busid"},
    });
    // Switches that are linked all around are no mistake.
    std::string ring;
    for (int i = 0; i < 4; ++i) {
        ring += fmt::format(
            "<pci busid=\"0000:0{}:00.0\" class=\"0x060400\"><pcilink target=\"0000:0{}:00.0\"/>{}</pci>",
            i + 1, (i + 1) % 4 + 1, gpu(0x10 + i, i));
    }
    const Topology around = testing::read(machine(ring));
    EXPECT_EQ(testing::between(around, "gpu:0", "gpu:2"), "PHB");
    EXPECT_TRUE(around.path(*around.find("gpu:0"), *around.find("gpu:2")));
    // A bridge that is said to lie in itself is two bridges.
    const Topology nested = testing::read(
        machine("<pci busid=\"0000:01:00.0\"><pci busid=\"0000:01:00.0\">" + gpu(2, 0) + "</pci></pci>"));
    EXPECT_EQ(nested.gpu_count(), 1);
}

TEST(NcclXmlBadInput, Links) {
    const auto link = [](const std::string& text) { return machine("\n\n" + gpu(1, 0, text)); };
    expect_refusals({
        {link("<nvlink target=\"0000:09:00.0\" count=\"4\" tclass=\"0x030200\"/>"),
         "line 5: <nvlink target=\"0000:09:00.0\">", "leads to a GPU that is not in the file"},
        {link("<xgmi target=\"0000:09:00.0\" count=\"1\" tclass=\"0x120000\"/>"),
         "line 5: <xgmi target=\"0000:09:00.0\">", "leads to a GPU that is not in the file"},
        {link("<nvlink target=\"there\" count=\"4\"/>"), "line 5: <nvlink target=\"there\">",
         "no PCI address"},
        {link("<nvlink target=\"fffffff:ffff:ff\"/>"), "line 5: <nvlink target=\"fffffff:ffff:ff\">",
         "count is missing"},
        {link("<nvlink target=\"fffffff:ffff:ff\" count=\"-1\"/>"),
         "line 5: <nvlink target=\"fffffff:ffff:ff\">", "count is -1"},
        {link("<nvlink target=\"fffffff:ffff:ff\" count=\"1000000\"/>"),
         "line 5: <nvlink target=\"fffffff:ffff:ff\">", "count is 1000000"},
        {link("<nvlink target=\"fffffff:ffff:ff\" count=\"4000\"/><nvlink target=\"fffffff:ffff:ff\" "
              "count=\"4000\"/>"),
         "line 5: <nvlink target=\"\">", "makes 8000 links"},
        {link("<nvlink count=\"4000\" tclass=\"0x068001\"/><nvlink count=\"4000\" tclass=\"0x068001\"/>"),
         "line 5: <nvlink target=\"\">", "more than 4096 links"},
        {link("<c2c bw=\"0\" count=\"5\"/>"), "line 5: <c2c>", "bw is 0"},
        {link("<c2c bw=\"44712\"/>"), "line 5: <c2c>", "count is missing"},
        {link("<c2c bw=\"44712\" count=\"5\"/><nvlink count=\"3\" tclass=\"0x068001\"/>"),
         "line 5: <gpu dev=\"0\">", "both C2C and NVLinks"},
        {machine("<pci busid=\"0000:01:00.0\"><pcilink/></pci>"), "line 3: <pcilink target=\"\">",
         "no PCI address"},
    });
}

TEST(NcclXmlBadInput, NumbersOfDevices) {
    expect_refusals({
        {machine("<pci busid=\"0000:01:00.0\"><gpu dev=\"70000\"/></pci>"), "line 3: <gpu dev=\"70000\">",
         "dev is 70000"},
        {machine("<pci busid=\"0000:01:00.0\"><gpu dev=\"0\" sm=\"9.0\"/></pci>"), "line 3: <gpu dev=\"0\">",
         "sm is \"9.0\""},
        {machine("<nic>\n<net name=\"a\nb\" dev=\"-7\"/></nic>"), "line 4: <net name=\"a b\">", "dev is -7"},
    });
}

// Long texts of a file do not end up whole in a message.
TEST(NcclXmlBadInput, MessagesStayShort) {
    const std::string longer(4000, 'x');
    for (const std::string& text :
         {machine("<pci busid=\"" + longer + "\"/>"),
          machine("<pci busid=\"0000:01:00.0\" link_width=\"" + longer + "\"/>"), "<" + longer + "/>",
          "<system version=\"" + longer + "\"/>", machine("<cpu numaid=\"" + longer + "\"/>")}) {
        const auto topology = read_nccl_xml(text, "f.xml");
        if (topology.ok()) continue;  // an unknown element
        EXPECT_LT(topology.error().to_string().size(), 400U) << topology.error().to_string();
    }
    const auto cut = read_nccl_xml("<system version=\"" + std::string(47, 'x') + "\xc3\xa4\xc3\xa4\"/>", "f");
    EXPECT_EQ(cut.error().where, "f: line 1: <system version=\"" + std::string(47, 'x') + "...\">");
}

TEST(NcclXmlBadInput, Limits) {
    std::string deep;
    for (int i = 0; i < 70; ++i) deep += fmt::format("<pci busid=\"0000:{:02x}:00.0\">", i);
    expect_refusal({machine(deep), "line 3", "nest more than 64 levels"});

    std::string attributes;
    for (int i = 0; i < 65; ++i) attributes += fmt::format(" a{}=\"\"", i);
    expect_refusal({machine("<x" + attributes + "/>"), "line 3", "more than 64 attributes"});
    expect_refusals({
        {machine("<pci busid=\"" + std::string(254, '0') + "\"/>"), "line 3: <pci>",
         "the attribute busid is longer than 253 bytes"},
        // As it is written: "&gt;" has four bytes.
        {machine("<x a=\"" + std::string(64, '>') + "\"/>"), "line 3: <x>", "the attribute a is longer"},
        {machine("<x " + std::string(300, 'a') + "=\"\"/>"), "line 3: <x>",
         "the attribute " + std::string(48, 'a') + " is longer"},
    });
    testing::read(machine("<x a=\"" + std::string(253, 'b') + "\"/>"));

    std::string elements = "<system version=\"1\">\n";
    for (int i = 0; i < 2'000'000; ++i) elements += "<a/>\n";
    elements += "</system>";
    expect_refusal({elements, "line 2000001", "more than 2000000 elements"});

    const std::string text((std::size_t{256} << 20) + 1, ' ');
    expect_refusal({text, "", "more than 256 MiB"});
}

// The time for this would be hours if it grew with the square.
TEST(NcclXmlBadInput, AHundredThousandDevicesRead) {
    std::string devices;
    std::string links;
    for (int i = 0; i < 50'000; ++i) {
        devices += fmt::format(
            "<pci busid=\"{:04x}:{:02x}:{:02x}.0\" class=\"0x030200\"><gpu sm=\"90\"><nvlink "
            "target=\"{:04x}:{:02x}:{:02x}.0\" count=\"1\" tclass=\"0x068000\"/></gpu></pci>\n",
            i >> 13, (i >> 5) & 255, i & 31, (i >> 13) + 16, (i >> 5) & 255, i & 31);
    }
    const Topology many = testing::read(machine(devices));
    EXPECT_EQ(many.gpu_count(), 50'000);
    EXPECT_EQ(many.devices().size(), 100'002U);
    EXPECT_TRUE(write_nccl_xml(many).ok());
    // Every one of them gives cause for a note; a hundred will do.
    std::string unknown;
    for (int i = 0; i < 1000; ++i)
        unknown += fmt::format("<pci busid=\"0000:{:02x}:{:02x}.0\" class=\"0x0b4000\"/>", i >> 5, i & 31);
    EXPECT_LE(testing::read(machine(unknown)).notes().size(), 102U);
    EXPECT_TRUE(testing::noted(testing::read(machine(unknown)), "and 901 notes like these"));
}

}  // namespace
}  // namespace sidestep
