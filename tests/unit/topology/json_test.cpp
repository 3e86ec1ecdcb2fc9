#include <gtest/gtest.h>

#include <stdlib.h>
#include <sys/stat.h>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include <sidestep/topology.hpp>

namespace sidestep {
namespace {

// A file with every kind of element, to be broken in one place by each test.
const std::string good = R"({
  "format": "sidestep-topology", "version": 1, "name": "two",
  "devices": [
    {"name": "cpu:0", "kind": "cpu", "index": 0, "numa_node": 0, "memory": 1099511627776},
    {"name": "gpu:0", "kind": "gpu", "index": 0, "model": "NVIDIA H200", "bus_id": "0000:1b:00.0"},
    {"name": "gpu:1", "kind": "gpu", "index": 1}
  ],
  "links": [
    {"a": "gpu:0", "b": "cpu:0", "kind": "pcie", "width": 16, "gb_per_s": 63, "latency_us": 0.4},
    {"a": "gpu:1", "b": "cpu:0", "kind": "pcie", "gb_per_s": 63}
  ],
  "peers": [{"from": "gpu:0", "to": "gpu:1", "allowed": false, "reason": "chipset"}],
  "notes": ["one"]
})";

std::string with(const std::string& part, const std::string& instead) {
    std::string text = good;
    const auto at = text.find(part);
    EXPECT_NE(at, std::string::npos) << part;
    return text.replace(at, part.size(), instead);
}

struct Bad {
    std::string text;
    std::string where;    // the element, after the file's name
    std::string message;  // a part of it
};

void expect_refusal(const Bad& bad) {
    const auto topology = Topology::from_json(bad.text, "m.json");
    ASSERT_FALSE(topology.ok()) << bad.text;
    EXPECT_EQ(topology.error().code, ErrorCode::invalid_argument) << bad.text;
    EXPECT_EQ(topology.error().where, bad.where.empty() ? "m.json" : "m.json: " + bad.where) << bad.text;
    EXPECT_NE(topology.error().message.find(bad.message), std::string::npos) << topology.error().to_string();
}

TEST(TopologyJson, ReadsEveryMember) {
    const auto topology = Topology::from_json(good, "m.json");
    ASSERT_TRUE(topology.ok()) << topology.error().to_string();
    const Topology::Parts& parts = topology->parts();
    EXPECT_EQ(parts.name, "two");
    EXPECT_TRUE(parts.emulated);
    ASSERT_EQ(parts.devices.size(), 3U);
    EXPECT_EQ(parts.devices[0], (Device{DeviceKind::cpu, 0, "cpu:0", "", "", 0, Bytes{1} << 40}));
    EXPECT_EQ(parts.devices[1], (Device{DeviceKind::gpu, 0, "gpu:0", "NVIDIA H200", "0000:1b:00.0", -1, 0}));
    ASSERT_EQ(parts.links.size(), 2U);
    EXPECT_EQ(parts.links[0], (Link{1, 0, LinkKind::pcie, 16, 63, 0.4}));
    EXPECT_EQ(parts.links[1], (Link{2, 0, LinkKind::pcie, 1, 63, 0}));
    ASSERT_EQ(parts.peers.size(), 1U);
    EXPECT_EQ(parts.peers[0], (Topology::Parts::Peer{0, 1, {false, false, "chipset", ""}}));
    EXPECT_EQ(parts.notes, std::vector<std::string>{"one"});
}

TEST(TopologyJson, RoundTripIsExact) {
    auto model = Topology::model("dgx-h100");
    ASSERT_TRUE(model.ok());
    auto again = Topology::from_json(model->to_json(), "");
    ASSERT_TRUE(again.ok()) << again.error().to_string();
    EXPECT_EQ(again->parts(), model->parts());

    // Figures and words that are easy to lose.
    Topology::Parts parts = model->parts();
    parts.name = "a \"name\" with \\ and \xc3\xa4";
    parts.devices[0].memory = std::numeric_limits<Bytes>::max();
    parts.links[0].gb_per_s = 0.1 + 0.2;
    parts.links[1].gb_per_s = 1.0 / 3;
    parts.links[2].latency_us = std::numeric_limits<double>::denorm_min();
    parts.peers = {{0, 7, {false, false, "why", "what to do"}}, {7, 0, {true, true, "", ""}}};
    parts.notes = {"", "/ \\ \""};
    auto odd = Topology::create(parts);
    ASSERT_TRUE(odd.ok()) << odd.error().to_string();
    again = Topology::from_json(odd->to_json(), "");
    ASSERT_TRUE(again.ok()) << again.error().to_string();
    EXPECT_EQ(again->parts(), parts);
    EXPECT_EQ(again->to_json(), odd->to_json());
}

TEST(TopologyJson, BytesThatAreNoTextDoNotThrow) {
    auto parts = Topology::model("dgx-h100")->parts();
    parts.devices[0].model = "\xff\xfe broken";
    auto topology = Topology::create(parts);
    ASSERT_TRUE(topology.ok());
    auto again = Topology::from_json(topology->to_json(), "");
    ASSERT_TRUE(again.ok()) << again.error().to_string();
    EXPECT_EQ(again->device(0).model, "\xef\xbf\xbd\xef\xbf\xbd broken");
}

TEST(TopologyJson, IgnoresUnknownMembersAndTakesDefaults) {
    EXPECT_TRUE(
        Topology::from_json(with("\"version\": 1", "\"version\": 1, \"later\": {\"a\": [1, {}]}"), "").ok());
    EXPECT_TRUE(Topology::from_json(with("\"index\": 1", "\"index\": 1, \"color\": null"), "").ok());
    EXPECT_TRUE(Topology::from_json(R"({"format": "sidestep-topology", "version": 1})", "").ok());
}

TEST(TopologyJson, RefusesWhatIsNoJson) {
    expect_refusal({"", "byte 1", "no JSON"});
    expect_refusal({"{", "byte 2", "no JSON"});
    expect_refusal({good.substr(0, good.size() - 1), "byte " + std::to_string(good.size()), "no JSON"});
    expect_refusal({good + "x", "byte " + std::to_string(good.size() + 1), "no JSON"});
    expect_refusal({with("63,", "1e999,"), "", "cannot be read"});
    EXPECT_FALSE(Topology::from_json(std::string("\0\0", 2), "").ok());
    EXPECT_FALSE(Topology::from_json(with("63,", "NaN,"), "").ok());
    EXPECT_FALSE(Topology::from_json(with("two", "\xff"), "").ok());
}

TEST(TopologyJson, RefusesWhatIsNoTopology) {
    expect_refusal({"[]", "", "array, where an object is expected"});
    expect_refusal({"null", "", "null, where an object"});
    expect_refusal({"{}", "format", "missing"});
    expect_refusal({with("sidestep-topology", "other"), "format", "\"other\""});
    expect_refusal({with("\"version\": 1", "\"version\": 2"), "version", "is 2, and this program reads 1"});
    expect_refusal({with("\"version\": 1", "\"version\": \"1\""), "version", "string, where a whole number"});
    expect_refusal({with("\"version\": 1,", ""), "version", "missing"});
    expect_refusal({with("\"name\": \"two\"", "\"name\": 2"), "name", "2, where a string"});
    expect_refusal({with("\"notes\": [\"one\"]", "\"notes\": [\"one\", 2]"), "notes[1]", "not a string"});
    expect_refusal({with("\"notes\": [\"one\"]", "\"notes\": {}"), "notes", "object, where a list"});
}

TEST(TopologyJson, RefusesDevices) {
    expect_refusal(
        {with("{\"name\": \"gpu:1\", \"kind\": \"gpu\", \"index\": 1}", "7"), "devices[2]", "number"});
    expect_refusal({with("\"name\": \"gpu:1\", ", ""), "devices[2].name", "missing"});
    expect_refusal({with("\"kind\": \"cpu\"", "\"kind\": \"tpu\""), "devices[0].kind", "tpu"});
    expect_refusal({with("\"index\": 1", "\"index\": 1.5"), "devices[2].index", "1.5"});
    expect_refusal({with("\"index\": 1", "\"index\": -1"), "devices[2].index", "-1"});
    expect_refusal({with("\"index\": 1", "\"index\": 4294967297"), "devices[2].index", "out of range"});
    expect_refusal(
        {with("\"index\": 1", "\"index\": 18446744073709551615"), "devices[2].index", "out of range"});
    expect_refusal(
        {with("\"index\": 1", "\"index\": -9223372036854775808"), "devices[2].index", "out of range"});
    expect_refusal({with("1099511627776", "-5"), "devices[0].memory", "-5"});
    expect_refusal({with("\"numa_node\": 0", "\"numa_node\": true"), "devices[0].numa_node", "true"});
    expect_refusal(
        {with("\"name\": \"gpu:1\"", "\"name\": \"gpu:0\""), "devices[2].name", "taken by devices[1]"});
    expect_refusal({with("\"bus_id\": \"0000:1b:00.0\"", "\"bus_id\": []"), "devices[1].bus_id", "array"});
}

TEST(TopologyJson, RefusesLinks) {
    expect_refusal({with("\"b\": \"cpu:0\", \"kind\": \"pcie\", \"gb_per_s\"",
                         "\"b\": \"cpu:9\", \"kind\": \"pcie\", \"gb_per_s\""),
                    "links[1].b", "\"cpu:9\""});
    expect_refusal({with("\"a\": \"gpu:1\"", "\"a\": 1"), "links[1].a", "1, where a string"});
    expect_refusal({with("\"a\": \"gpu:1\", ", ""), "links[1].a", "missing"});
    expect_refusal({with("\"a\": \"gpu:1\"", "\"a\": \"cpu:0\""), "links[1]", "itself"});
    expect_refusal({with("\"kind\": \"pcie\"", "\"kind\": \"isa\""), "links[0].kind", "isa"});
    expect_refusal({with("\"width\": 16", "\"width\": -16"), "links[0].width", "-16"});
    expect_refusal({with("63,", "-63,"), "links[0].gb_per_s", "-63"});
    expect_refusal({with("63,", "0,"), "links[0].gb_per_s", "0 GB/s"});
    expect_refusal({with("63,", "\"63\","), "links[0].gb_per_s", "string"});
    expect_refusal({with(", \"gb_per_s\": 63}", "}"), "links[1].gb_per_s", "missing"});
    expect_refusal({with("0.4", "-0.4"), "links[0].latency_us", "-0.4"});
}

TEST(TopologyJson, RefusesPeers) {
    expect_refusal({with("\"to\": \"gpu:1\"", "\"to\": \"gpu:5\""), "peers[0].to", "gpu:5"});
    expect_refusal({with("\"to\": \"gpu:1\"", "\"to\": \"cpu:0\""), "peers[0].to", "no gpu"});
    expect_refusal({with("\"to\": \"gpu:1\"", "\"to\": \"gpu:0\""), "peers[0]", "own peer"});
    expect_refusal(
        {with("\"allowed\": false", "\"allowed\": 0"), "peers[0].allowed", "0, where true or false"});
    expect_refusal({with("\"from\": \"gpu:0\", ", ""), "peers[0].from", "missing"});
}

TEST(TopologyJson, DeepNestingIsRefusedAndDoesNotOverflow) {
    expect_refusal({std::string(1000000, '['), "", "levels deep"});
    std::string objects;
    for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
    expect_refusal({objects, "", "levels deep"});
    expect_refusal(
        {with("\"version\": 1", "\"version\": 1, \"x\": " + std::string(100, '[') + std::string(100, ']')),
         "", "levels deep"});
    const std::string brackets = "\"\\\"" + std::string(100, '[') + "\"";
    EXPECT_TRUE(Topology::from_json(with("\"version\": 1", "\"version\": 1, \"x\": " + brackets), "m").ok());
}

// Every prefix of a good file, and every file with one byte changed, ends in an answer.
TEST(TopologyJson, SurvivesDamage) {
    int refused = 0;
    for (std::size_t cut = 0; cut < good.size(); ++cut) {
        EXPECT_FALSE(Topology::from_json(good.substr(0, cut), "m").ok()) << cut;
        for (const char c : {'\0', '"', '}', '[', '-', '9', '\xff'}) {
            std::string text = good;
            text[cut] = c;
            refused += Topology::from_json(text, "m").ok() ? 0 : 1;
        }
    }
    EXPECT_GT(refused, 1000);
}

class TopologyFile : public testing::Test {
protected:
    TopologyFile() {
        std::string folder = (std::filesystem::temp_directory_path() / "sidestep-json-XXXXXX").string();
        folder_ = ::mkdtemp(folder.data());
    }
    ~TopologyFile() override { std::filesystem::remove_all(folder_); }
    std::string folder_;
};

TEST_F(TopologyFile, LoadsAndNamesTheFileInErrors) {
    const std::string path = folder_ + "/m.json";
    std::ofstream(path) << good;
    auto topology = Topology::load(path);
    ASSERT_TRUE(topology.ok()) << topology.error().to_string();
    EXPECT_EQ(topology->gpu_count(), 2);
    EXPECT_TRUE(topology->emulated());

    std::ofstream(path) << with("\"width\": 16", "\"width\": 0");
    topology = Topology::load(path);
    ASSERT_FALSE(topology.ok());
    EXPECT_EQ(topology.error().where, path + ": links[0].width");
}

TEST_F(TopologyFile, SaysWhyAFileCannotBeRead) {
    const auto absent = Topology::load(folder_ + "/none.json");
    ASSERT_FALSE(absent.ok());
    EXPECT_EQ(absent.error().code, ErrorCode::not_found);
    EXPECT_EQ(absent.error().where, folder_ + "/none.json");

    EXPECT_EQ(Topology::load(folder_).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(Topology::load("/dev/zero").error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(Topology::load("").error().code, ErrorCode::not_found);

    // Sparse: the size alone is what is refused.
    const std::string huge = folder_ + "/huge.json";
    std::ofstream(huge) << "{";
    std::filesystem::resize_file(huge, std::uintmax_t{3} << 30);
    EXPECT_NE(Topology::load(huge).error().message.find("3 GiB"), std::string::npos);

    const std::string pipe = folder_ + "/pipe.json";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_EQ(Topology::load(pipe).error().code, ErrorCode::invalid_argument)
        << "and does not wait for a writer";
}

}  // namespace
}  // namespace sidestep
