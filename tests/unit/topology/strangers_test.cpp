// Records and files that somebody else made: they may hold anything.
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include <gtest/gtest.h>

#include <sidestep/topology.hpp>

#include "base/printable.hpp"
#include "driver/machine_files.hpp"
#include "tests/unit/topology/fake_tree.hpp"
#include "topology/nvml_record_reader.hpp"

namespace sidestep::topology {
namespace {

TEST(Strangers, LinksThatLeadOutOfARecordAreNotFollowed) {
    FakeTree outside;
    outside.write("/secret", "secret");
    FakeTree tree;
    tree.node(0, 1024);
    tree.write("/etc/real", "inside");
    tree.folder("/proc/sys/kernel");
    const auto link = [&](const std::string& to, const std::string& path) {
        std::filesystem::create_symlink(to, tree.root() + path);
    };
    link(outside.root() + "/secret", "/proc/sys/kernel/osrelease");
    link("../../" + outside.root().substr(outside.root().rfind('/') + 1) + "/secret", "/etc/up");
    link(outside.root(), "/etc/folder");
    link("real", "/etc/near");
    const driver::MachineFiles files(tree.root());
    EXPECT_EQ(files.line("/etc/near"), "inside");
    for (const char* path : {"/proc/sys/kernel/osrelease", "/etc/up", "/etc/folder/secret"}) {
        EXPECT_FALSE(files.line(path)) << path;
        EXPECT_FALSE(files.text(path)) << path;
        EXPECT_FALSE(files.exists(path)) << path;
        EXPECT_EQ(files.state(path), driver::FileState::missing) << path;
        EXPECT_EQ(files.real_path(path), "") << path;
    }
    EXPECT_TRUE(files.names("/etc/folder").empty());
    std::filesystem::create_symlink("anything", outside.root() + "/link");
    EXPECT_FALSE(files.link_target("/etc/folder/link"));
    EXPECT_EQ(files.strays(), (std::vector<std::string>{"/etc/folder", "/etc/folder/", "/etc/folder/secret",
                                                        "/etc/up", "/proc/sys/kernel/osrelease"}));

    const auto machine = Topology::live(tree.root());
    ASSERT_TRUE(machine.ok());
    EXPECT_TRUE(
        has_note(machine->notes(), "/proc/sys/kernel/osrelease leads out of the record: it was not read"));
    EXPECT_EQ(machine->to_json().find("secret"), std::string::npos);
}

TEST(Strangers, ARecordThatCountsWhatItDoesNotTellOfIsRefused) {
    const auto record = [](const char* count) {
        return fmt::format(R"({{"format": "sidestep-nvml", "version": 1, "driver_version": "1", "count": {},
            "confidential_computing": false, "gpus": [], "pairs": []}})",
                           count);
    };
    EXPECT_TRUE(nvml_from_json(record("0"), "nvml.json").ok());
    for (const char* count : {"1000000000", "1", "-1", "1e30"}) {
        const auto read = nvml_from_json(record(count), "nvml.json");
        ASSERT_FALSE(read.ok()) << count;
        EXPECT_NE(read.error().message.find("and tells of 0"), std::string::npos) << read.error().message;
    }
}

TEST(Strangers, AMachineHasNoMoreNodesThanLinux) {
    FakeTree tree;
    for (int node = 0; node < 1100; ++node) tree.folder(fmt::format("/sys/devices/system/node/node{}", node));
    const auto machine = Topology::live(tree.root());
    ASSERT_TRUE(machine.ok());
    EXPECT_EQ(machine->devices().size(), 1024U);
    EXPECT_TRUE(has_note(machine->notes(), "shows 1100 NUMA nodes, and Linux has 1024 at most"));
}

TEST(Strangers, WhatATerminalCouldObeyIsReplaced) {
    const std::pair<const char*, const char*> cases[] = {
        {"", ""},
        {"plain, \xc3\xa9 and \xe2\x82\xac", "plain, \xc3\xa9 and \xe2\x82\xac"},
        {"\x1b[31m", "\xef\xbf\xbd[31m"},
        {"two\nlines\t\x7f", "two\xef\xbf\xbdlines \xef\xbf\xbd"},
        {"\xc2\x9b"
         "31m\xc2\xa0\xc2",
         "\xef\xbf\xbd"
         "31m\xc2\xa0\xc2"},
    };
    for (const auto& [text, shown] : cases) {
        std::string made = text;
        base::make_printable(made);
        EXPECT_EQ(made, shown);
    }
}

TEST(Strangers, TextOfATopologyIsPrintable) {
    const char* const esc = "\x1b[2J\n";
    Topology::Parts parts;
    parts.name = esc;
    parts.devices = {{DeviceKind::gpu, 0, "gpu:0", esc, esc}, {DeviceKind::gpu, 1, "gpu:1"}};
    parts.devices[0].properties["cc"] = esc;
    parts.properties["kernel"] = esc;
    parts.properties[esc] = parts.devices[0].properties[esc] = "named by a stranger";
    parts.notes = {esc};
    parts.peers = {{0, 1, {false, false, esc, esc}}};
    const auto machine = Topology::create(parts);
    ASSERT_TRUE(machine.ok());
    const std::string shown = machine->to_text() + machine->to_json();
    EXPECT_EQ(shown.find('\x1b'), std::string::npos);
    EXPECT_EQ(shown.find("\\u001b"), std::string::npos);
    EXPECT_NE(shown.find("\xef\xbf\xbd[2J"), std::string::npos);

    FakeTree tree;
    tree.node(0, 1024);
    tree.write("/proc/sys/kernel/osrelease", esc);
    EXPECT_EQ(driver::MachineFiles(tree.root()).line("/proc/sys/kernel/osrelease"), "\xef\xbf\xbd[2J");
}

}  // namespace
}  // namespace sidestep::topology
