// Addresses of nodes: what is taken, and what is refused with a hint.
#include "wire/address.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace sidestep::wire {
namespace {

using namespace std::string_literals;

struct AddressCase {
    std::string text;
    std::string host;
    std::uint16_t port;
    std::string printed;
};

TEST(WireAddress, ReadsEveryForm) {
    const std::string label(63, 'a');
    const std::string longest = label + "." + label + "." + label + "." + label.substr(0, 61);
    const std::vector<AddressCase> cases = {
        {"10.0.0.2", "10.0.0.2", 47900, "10.0.0.2:47900"},
        {"10.0.0.2:80", "10.0.0.2", 80, "10.0.0.2:80"},
        {"0.0.0.0:0", "0.0.0.0", 0, "0.0.0.0:0"},
        {"255.255.255.255:65535", "255.255.255.255", 65535, "255.255.255.255:65535"},
        {"node7", "node7", 47900, "node7:47900"},
        {"Node-7.rack_2.example:1", "Node-7.rack_2.example", 1, "Node-7.rack_2.example:1"},
        {"example.", "example.", 47900, "example.:47900"},
        {"1.2.3.4.example", "1.2.3.4.example", 47900, "1.2.3.4.example:47900"},
        {longest, longest, 47900, longest + ":47900"},
        {"::", "::", 47900, "[::]:47900"},
        {"::1", "::1", 47900, "[::1]:47900"},
        {"[::1]", "::1", 47900, "[::1]:47900"},
        {"[::1]:80", "::1", 80, "[::1]:80"},
        {"[fe80::1%eth0]:80", "fe80::1%eth0", 80, "[fe80::1%eth0]:80"},
        {"fe80::1%eth0.7", "fe80::1%eth0.7", 47900, "[fe80::1%eth0.7]:47900"},
        {"1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8", 47900, "[1:2:3:4:5:6:7:8]:47900"},
        {"1:2:3:4:5:6:7::", "1:2:3:4:5:6:7::", 47900, "[1:2:3:4:5:6:7::]:47900"},
        {"::ffff:10.0.0.2", "::ffff:10.0.0.2", 47900, "[::ffff:10.0.0.2]:47900"},
        {"[2001:DB8::a:1]:9", "2001:DB8::a:1", 9, "[2001:DB8::a:1]:9"},
    };
    for (const auto& [text, host, port, printed] : cases) {
        const auto at = parse_host_port(text);
        ASSERT_TRUE(at.ok()) << at.error().to_string();
        EXPECT_EQ(at->host, host) << text;
        EXPECT_EQ(at->port, port) << text;
        EXPECT_EQ(at->to_string(), printed);
        const auto again = parse_host_port(at->to_string());
        ASSERT_TRUE(again.ok()) << again.error().to_string();
        EXPECT_EQ(*again, *at) << "it prints and parses the same";
    }
}

const std::vector<std::string> no_hosts = {"",
                                           " ",
                                           ":",
                                           ":80",
                                           "host:",
                                           "host:x",
                                           "host:+1",
                                           "host:-1",
                                           "host: 1",
                                           "host:1 ",
                                           "host:01",
                                           "host:65536",
                                           "host:4294967297",
                                           "host:1:2",
                                           " host",
                                           "host ",
                                           "ho st",
                                           "-host",
                                           "a..b",
                                           ".a",
                                           ".",
                                           "a,b",
                                           "a=b",
                                           "a/b",
                                           "http://host",
                                           "user@host",
                                           "host%eth0",
                                           "h\xc3\xb8st",
                                           "host\0"s,
                                           "host:1\0"s,
                                           "host\n",
                                           std::string(64, 'a'),
                                           std::string(300, 'a'),
                                           "7",
                                           "47900",
                                           "10.0.0",
                                           "10.0.0.256",
                                           "10.0.0.02",
                                           "10.0.0.2.",
                                           "1.2.3.4.5",
                                           "10..0.2",
                                           "host.5"};
const std::vector<std::string> no_ipv6 = {"[",
                                          "]",
                                          "[]",
                                          "[]:80",
                                          "[::1",
                                          "::1]",
                                          "[::1]80",
                                          "[::1]:",
                                          "[::1]:x",
                                          "[::1]:65536",
                                          "[::1]:80:80",
                                          "[host]:80",
                                          "[10.0.0.2]:80",
                                          "[[::1]]:80",
                                          "::1:47900x",
                                          ":::",
                                          "1::2::3",
                                          "1:2:3:4:5:6:7",
                                          "::12345",
                                          "::g",
                                          "1:2:3:4:5:6:7:8:9",
                                          "1:2:3:4::5:6:7:8",
                                          ":1:2:3:4:5:6:7",
                                          "1:2:3:4:5:6:7:",
                                          "::10.0.0.256",
                                          "10.0.0.2::",
                                          "::1%",
                                          "::1%-x",
                                          "::1%a b",
                                          "::1%abcdefghijklmnop",
                                          "fe80::1%eth0%eth1"};

TEST(WireAddress, RefusesWhatIsNone) {
    std::vector<std::string> bad = no_hosts;
    bad.insert(bad.end(), no_ipv6.begin(), no_ipv6.end());
    for (const auto& text : bad) {
        const auto at = parse_host_port(text);
        ASSERT_FALSE(at.ok()) << "'" << text << "' is " << at->to_string();
        EXPECT_EQ(at.error().code, ErrorCode::invalid_argument) << text;
        EXPECT_NE(at.error().message.find("'" + text + "'"), std::string::npos) << text;
        EXPECT_FALSE(at.error().hint.empty()) << text;
    }
}

TEST(WireAddress, SaysWhatWouldBeRight) {
    EXPECT_NE(parse_host_port("2001:db8:0:0:0:0:0:1:47900").error().hint.find("[IPV6]:PORT"),
              std::string::npos);
    EXPECT_NE(parse_host_port("host:99999").error().hint.find("65535"), std::string::npos);
    EXPECT_NE(parse_host_port("[node7]:80").error().hint.find("[::1]:47900"), std::string::npos);
    EXPECT_NE(parse_host_port("no de").error().hint.find("HOST:PORT"), std::string::npos);
    EXPECT_NE(parse_node("node7").error().hint.find("NAME=HOST:PORT"), std::string::npos);
    EXPECT_NE(parse_node("no de=x").error().hint.find("letters"), std::string::npos);
    EXPECT_NE(parse_node("a=x:0").error().hint.find("port 0"), std::string::npos);
}

TEST(WireAddress, ANodeHasANameAndAnAddress) {
    const std::vector<std::pair<std::string, NodeAddress>> cases = {
        {"node7=10.0.0.2:80", {"node7", {{"10.0.0.2", 80}}}},
        {"a.b-c_D9=host", {"a.b-c_D9", {{"host", 47900}}}},
        {"host=::1", {"host", {{"::1", 47900}}}},
        {"7=[fe80::1%e]:9,host:2", {"7", {{"fe80::1%e", 9}, {"host", 2}}}},
    };
    for (const auto& [text, expected] : cases) {
        const auto node = parse_node(text);
        ASSERT_TRUE(node.ok()) << node.error().to_string();
        EXPECT_EQ(*node, expected) << text;
    }
    for (const char* text : {"", "=", "node7", "=host", "node7=", "node7=:80", "no de=host", "a/b=host",
                             "gpu:0=host", "host:1=host", "file:a=host", "shared:a=host", "a=b=c", "a=host:0",
                             "n\xc3\xb8=host", " a=host", "a =host", "a= host"}) {
        const auto node = parse_node(text);
        ASSERT_FALSE(node.ok()) << text;
        EXPECT_EQ(node.error().code, ErrorCode::invalid_argument) << text;
        EXPECT_FALSE(node.error().hint.empty()) << text;
    }
}

TEST(WireAddress, AListNamesNodesAndTheWaysToThem) {
    const auto nodes = parse_nodes("a=10.0.0.1,b=10.0.0.1,c=[::1]:80,a=10.0.1.1:5,a=10.0.2.1");
    ASSERT_TRUE(nodes.ok()) << nodes.error().to_string();
    const std::vector<NodeAddress> expected = {
        {"a", {{"10.0.0.1", 47900}, {"10.0.1.1", 5}, {"10.0.2.1", 47900}}},
        {"b", {{"10.0.0.1", 47900}}},
        {"c", {{"::1", 80}}}};
    EXPECT_EQ(*nodes, expected);
    ASSERT_TRUE(parse_nodes("").ok());
    EXPECT_TRUE(parse_nodes("")->empty());

    const std::vector<std::pair<std::string, std::string>> bad = {
        {"a=x,", "entry 2"},      {",a=x", "entry 1"},     {"a=x,,b=y", "entry 2"},    {",", "entry 1"},
        {"a=x,b=y,c", "entry 3"}, {"a=x, b=y", "entry 2"}, {"a=x,b=y,a=x", "entry 3"}, {"a=x,a=x", "entry 2"},
        {"a=x,b=y:0", "entry 2"}, {"a=x\nb=y", "entry 1"},
    };
    for (const auto& [text, part] : bad) {
        const auto refused = parse_nodes(text);
        ASSERT_FALSE(refused.ok()) << text;
        EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument) << text;
        EXPECT_TRUE(refused.error().message.starts_with(part + ": ")) << refused.error().to_string();
        EXPECT_FALSE(refused.error().hint.empty()) << text;
    }
    const auto twice = parse_nodes("a=x,a=x:47900").error().message;
    EXPECT_NE(twice.find("x:47900 is there twice"), std::string::npos) << twice;

    std::string many = "a=x:1";
    for (int port = 2; port <= 16; ++port) many += ",a=x:" + std::to_string(port);
    EXPECT_TRUE(parse_nodes(many).ok());
    EXPECT_FALSE(parse_nodes(many + ",a=x:17").ok());
}

TEST(WireAddress, OneNodeMayHaveSeveral) {
    const auto ways = parse_addresses("10.0.0.1,[::1]:80");
    ASSERT_TRUE(ways.ok()) << ways.error().to_string();
    EXPECT_EQ(*ways, (std::vector<HostPort>{{"10.0.0.1", 47900}, {"::1", 80}}));
    for (const char* text : {"", ",", "x,", ",x", "x,x", "x,y:0", "x, y"})
        EXPECT_FALSE(parse_addresses(text).ok()) << text;
}

class WireNodesFile : public testing::Test {
protected:
    WireNodesFile() {
        std::string name = "/tmp/sidestep-nodes-XXXXXX";
        EXPECT_NE(::mkdtemp(name.data()), nullptr);
        folder = name;
    }
    ~WireNodesFile() override { std::filesystem::remove_all(folder); }

    std::string put(const std::string& text) const {
        std::ofstream(folder + "/nodes", std::ios::binary) << text;
        return folder + "/nodes";
    }

    std::string folder;
};

TEST_F(WireNodesFile, HasOneNodeALine) {
    const auto nodes =
        read_nodes(put("# the rack\n\n  a=10.0.0.1 # left\r\n\tb=[::1]:80\r\n#c=x\n  \nd=y#\ne=z"));
    ASSERT_TRUE(nodes.ok()) << nodes.error().to_string();
    const std::vector<NodeAddress> expected = {
        {"a", {{"10.0.0.1", 47900}}}, {"b", {{"::1", 80}}}, {"d", {{"y", 47900}}}, {"e", {{"z", 47900}}}};
    EXPECT_EQ(nodes->nodes, expected);
    EXPECT_EQ(nodes->etcd, "");
    for (const char* text : {"", "\n", "# nobody", "\n\n#\n"}) {
        const auto none = read_nodes(put(text));
        ASSERT_TRUE(none.ok()) << none.error().to_string();
        EXPECT_TRUE(none->nodes.empty()) << text;
    }
}

TEST_F(WireNodesFile, MayNameEtcdForTheOthers) {
    const auto file = known_nodes(put("a=x\n  etcd://10.0.0.1,b:1/sidestep/nodes # for the rest\n"));
    ASSERT_TRUE(file.ok()) << file.error().to_string();
    EXPECT_EQ(file->nodes, (std::vector<NodeAddress>{{"a", {{"x", 47900}}}}));
    EXPECT_EQ(file->etcd, "etcd://10.0.0.1,b:1/sidestep/nodes");
    const auto alone = known_nodes("etcd://a/x=y");
    ASSERT_TRUE(alone.ok()) << alone.error().to_string();
    EXPECT_TRUE(alone->nodes.empty());
    EXPECT_EQ(alone->etcd, "etcd://a/x=y");
}

TEST_F(WireNodesFile, SaysWhichLineIsWrong) {
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"a=x\n\nb\n", ":3: "},
        {"a=x,b=y\n", ":1: "},
        {"# a\na=x\nb=y\na=x\n", ":4: "},
        {"a=x\nb=y:0", ":2: "},
        {std::string("a=x\0\n", 5), ":1: "},
        {"etcd://a/n\n\netcd://a/n\n", ":3: "},
    };
    for (const auto& [text, line] : cases) {
        const std::string path = put(text);
        const auto nodes = read_nodes(path);
        ASSERT_FALSE(nodes.ok()) << text;
        EXPECT_EQ(nodes.error().code, ErrorCode::invalid_argument);
        EXPECT_TRUE(nodes.error().message.starts_with(path + line)) << nodes.error().to_string();
    }
}

TEST_F(WireNodesFile, RefusesWhatIsNoFileAndWhatIsTooLarge) {
    ASSERT_EQ(::mkfifo((folder + "/pipe").c_str(), 0600), 0);
    const std::string large = put("a=x\n" + std::string(2'000'000, '#'));
    const std::vector<std::pair<std::string, ErrorCode>> cases = {
        {folder + "/missing", ErrorCode::not_found},
        {folder, ErrorCode::invalid_argument},
        {folder + "/pipe", ErrorCode::invalid_argument},
        {"/dev/zero", ErrorCode::invalid_argument},
        {large, ErrorCode::invalid_argument},
    };
    for (const auto& [path, code] : cases) {
        const auto nodes = read_nodes(path);
        ASSERT_FALSE(nodes.ok()) << path;
        EXPECT_EQ(nodes.error().code, code) << nodes.error().to_string();
        EXPECT_NE(nodes.error().message.find(path), std::string::npos) << nodes.error().to_string();
        EXPECT_FALSE(nodes.error().hint.empty());
    }
    EXPECT_FALSE(read_nodes(put("a=x") + std::string("\0x", 2)).ok());
}

}  // namespace
}  // namespace sidestep::wire
