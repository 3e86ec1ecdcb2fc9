// What is missing on a machine, from its files.
#include <gtest/gtest.h>

#include "backends/cufile/conditions.hpp"
#include "backends/cufile/cufile_backend.hpp"
#include "tests/unit/cufile/machine_tree.hpp"
#include "topology/p2pdma_reader.hpp"

namespace sidestep::backends::cufile {
namespace {

// One GPU with 80 GiB behind a root port of one CPU.
Topology one_gpu() {
    Topology::Parts parts;
    parts.name = "one-gpu";
    parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0});
    parts.devices.push_back({DeviceKind::gpu, 0, "gpu:0", "NVIDIA H100", "0000:1b:00.0", 0, 80_GiB});
    parts.links.push_back({0, 1, LinkKind::pcie, 16, 63.015, 0.4});
    return Topology::create(parts).value();
}

class ConditionsTest : public testing::Test {
protected:
    ConditionsTest() { tree.driver(); }
    Conditions read() const { return read_conditions(driver::MachineFiles(tree.root()), one_gpu()); }
    std::string reason() const { return read().refusal().reason; }
    // Whether exactly this is missing for P2PDMA mode.
    void expect_only(const std::string& what) const {
        const auto missing = read().p2pdma;
        ASSERT_EQ(missing.size(), 1u) << read().refusal().reason;
        EXPECT_NE(missing[0].what.find(what), std::string::npos) << missing[0].what;
        EXPECT_FALSE(missing[0].remedy.empty());
        EXPECT_FALSE(read().met());
        EXPECT_NE(reason().find(what), std::string::npos) << reason();
    }

    fake_cufile::MachineTree tree;
};

TEST_F(ConditionsTest, NvidiaFsIsEnough) {
    tree.nvidia_fs();
    EXPECT_TRUE(read().met()) << reason();
    EXPECT_TRUE(read().nvidia_fs.empty());
    EXPECT_FALSE(read().p2pdma.empty());
}

TEST_F(ConditionsTest, P2pdmaModeIsEnough) {
    tree.p2pdma();
    EXPECT_TRUE(read().met()) << reason();
    EXPECT_FALSE(read().nvidia_fs.empty());
}

TEST_F(ConditionsTest, WithNeitherEverythingMissingIsNamed) {
    const auto refusal = read().refusal();
    EXPECT_FALSE(refusal.usable);
    for (const char* part : {"nvidia-fs is not loaded", "P2PDMA mode is not set up", "registry keys",
                             "use_pci_p2pdma is not switched on in /etc/cufile.json"})
        EXPECT_NE(refusal.reason.find(part), std::string::npos) << refusal.reason;
    EXPECT_NE(refusal.remedy.find("RMForceStaticBar1=1"), std::string::npos) << refusal.remedy;
    EXPECT_NE(refusal.remedy.find("Or: install nvidia-fs"), std::string::npos) << refusal.remedy;
}

TEST_F(ConditionsTest, EachConditionOfP2pdmaMode) {
    tree.p2pdma();
    tree.write("/proc/sys/kernel/osrelease", "5.15.0-60-generic");
    expect_only("the kernel is 5.15.0-60-generic");
    tree.write("/proc/sys/kernel/osrelease", "5.14.0-427.el9_4.x86_64");
    EXPECT_TRUE(read().met()) << reason();
    tree.p2pdma();
    tree.write("/boot/config-6.8.0-60-generic", "# CONFIG_PCI_P2PDMA is not set");
    expect_only("CONFIG_PCI_P2PDMA");
    tree.p2pdma();
    tree.write("/sys/module/nvme_core/parameters/multipath", "Y");
    expect_only("NVMe multipath is on");
    tree.p2pdma();
    tree.write("/proc/driver/nvidia/params", "RegistryDwords: \"RMForceStaticBar1=1;\"");
    expect_only("registry keys");
    tree.write("/sys/bus/pci/devices/0000:1b:00.0/p2pmem/size", "137438953472");
    EXPECT_TRUE(read().met()) << "the driver's peer memory shows that the keys are at work";
    tree.remove("/sys/bus/pci/devices/0000:1b:00.0/p2pmem");
    tree.p2pdma();
    tree.write("/etc/cufile.json", "{\"properties\": {\"use_pci_p2pdma\": false}}");
    expect_only("use_pci_p2pdma");
    tree.p2pdma();
    tree.remove("/sys/class/nvme/nvme0");
    EXPECT_NE(reason().find("there is no NVMe drive"), std::string::npos) << reason();
    tree.driver();
    tree.write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04");
    expect_only("closed");
}

TEST_F(ConditionsTest, Bar1HasToShowAllMemory) {
    tree.p2pdma();
    // Lines of `resource`: BAR0 of 16 MiB, BAR1 of 256 MiB.
    tree.write("/sys/bus/pci/devices/0000:1b:00.0/resource",
               "0x00000000a0000000 0x00000000a0ffffff 0x0000000000040200\n"
               "0x0000004000000000 0x000000400fffffff 0x000000000014220c");
    expect_only("BAR1 of gpu:0 shows 256 MiB of its 80 GiB");
}

TEST_F(ConditionsTest, TheEnvironmentOfTheProcessCounts) {
    tree.p2pdma();
    tree.write("/proc/self/environ", std::string("HOME=/\0CUFILE_USE_PCIP2PDMA=false\0", 35));
    expect_only("CUFILE_USE_PCIP2PDMA");
    tree.write("/proc/self/environ", std::string("CUFILE_ENV_PATH_JSON=/opt/cufile.json\0", 38));
    expect_only("/opt/cufile.json");
    tree.write("/opt/cufile.json", "{\"block\": {\"nvme\": {\"use_pci_p2pdma\": true}}}");
    EXPECT_TRUE(read().met()) << reason();
    tree.write("/proc/self/environ", std::string("CUFILE_FORCE_COMPAT_MODE=true\0", 30));
    EXPECT_NE(reason().find("CUFILE_FORCE_COMPAT_MODE"), std::string::npos) << reason();
    EXPECT_FALSE(read().met());
}

TEST_F(ConditionsTest, WhateverTheWayUdevAndADriverAreNeeded) {
    tree.nvidia_fs();
    tree.remove("/run/udev");
    EXPECT_FALSE(read().met());
    EXPECT_EQ(reason(), "there is no udev database: cuFile takes no file (error 5027)");
    tree.remove("/proc/driver/nvidia");
    EXPECT_NE(reason().find("no NVIDIA driver is loaded"), std::string::npos) << reason();
}

TEST_F(ConditionsTest, ContainersNeedTheDevicesOfNvidiaFs) {
    tree.nvidia_fs();
    tree.remove("/dev/nvidia-fs0");
    EXPECT_FALSE(read().met());
    EXPECT_NE(reason().find("/dev/nvidia-fs0"), std::string::npos) << reason();
}

TEST(Settings, CommentsStringsAndPlacesOfTheKey) {
    using topology::asks_for_p2pdma;
    EXPECT_TRUE(asks_for_p2pdma("{\"use_pci_p2pdma\":true}"));
    EXPECT_TRUE(asks_for_p2pdma("{ /* x */ \"a\": 1, // \"b\n \"use_pci_p2pdma\" /* \" */ : \t true }"));
    EXPECT_FALSE(asks_for_p2pdma("{\"use_pci_p2pdma\": false}"));
    EXPECT_FALSE(asks_for_p2pdma("{ // \"use_pci_p2pdma\": true\n}"));
    EXPECT_FALSE(asks_for_p2pdma("{ /* \"use_pci_p2pdma\": true */ }"));
    EXPECT_FALSE(asks_for_p2pdma("{\"a\": \"\\\"use_pci_p2pdma\\\":true\"}"));
    EXPECT_FALSE(asks_for_p2pdma(""));
    EXPECT_FALSE(asks_for_p2pdma("{\"unfinished"));
}

// Nothing is loaded where the reason is known without it: the library named here would end the process.
TEST(Probe, SaysWhyNotWithoutTheLibrary) {
    const auto reason = [](CufileOptions options, const Topology& topology) {
        options.libraries = {"/nowhere/libcufile.so.0"};
        const auto backend = create(std::move(options));
        const auto support = backend->probe(topology);
        EXPECT_FALSE(support.usable);
        EXPECT_EQ(backend->capabilities().size(), 2u);
        return support.reason;
    };
    fake_cufile::MachineTree tree;
    EXPECT_EQ(reason({.off = true}, one_gpu()), "SIDESTEP_CUFILE=off");
    EXPECT_NE(reason({.root = tree.root()}, one_gpu()).find("no NVIDIA driver"), std::string::npos);
    EXPECT_NE(reason({}, Topology::open("dgx-h100").value()).find("the machine is a model"),
              std::string::npos);
    Topology::Parts parts;
    parts.name = "one-cpu";
    parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0});
    EXPECT_EQ(reason({}, Topology::create(parts).value()), "this machine has no GPU");
    tree.driver();
    tree.nvidia_fs();
    EXPECT_EQ(reason({.root = tree.root()}, one_gpu()), "libcufile.so.0 was not found");
}

}  // namespace
}  // namespace sidestep::backends::cufile
