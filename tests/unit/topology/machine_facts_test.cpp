#include "topology/machine_facts_reader.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "fake_tree.hpp"
#include "topology/machine_source_reader.hpp"

namespace sidestep::topology {
namespace {

using driver::MachineFiles;

class MachineFacts : public testing::Test {
protected:
    FakeTree tree;
    MachineFiles files() const { return MachineFiles(tree.root()); }
    void raw(const std::string& path, const std::string& bytes) {
        tree.write(path, "");
        std::ofstream(tree.root() + path, std::ios::binary) << bytes;
    }
    void link(const std::string& path, const std::string& target) {
        std::filesystem::create_directories((tree.root() + path).substr(0, (tree.root() + path).rfind('/')));
        std::filesystem::create_symlink(target, tree.root() + path);
    }
    // Two devices below one switch at 0000:01:00.0.
    void switch_with_two() {
        for (const char* walk : {"pci0000:00/0000:00:01.0", "pci0000:00/0000:00:01.0/0000:01:00.0",
                                 "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0",
                                 "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0"})
            tree.pci(walk, {bridge_class});
        tree.pci("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0", {gpu_class});
        tree.pci("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0", {gpu_class});
    }
    void group(const std::string& bus_id, const std::string& number) {
        tree.folder("/sys/kernel/iommu_groups/" + number);
        link("/sys/bus/pci/devices/" + bus_id + "/iommu_group",
             tree.root() + "/sys/kernel/iommu_groups/" + number);
    }
    // Capability 0x0001 first, then access control at 0x148.
    static std::string space(unsigned capability, unsigned control) {
        std::string bytes(4096, '\0');
        bytes[0x100] = 1;
        bytes[0x102] = static_cast<char>(0x81);
        bytes[0x103] = 0x14;
        bytes[0x148] = 0x0d;
        bytes[0x14a] = 1;
        bytes[0x14c] = static_cast<char>(capability);
        bytes[0x14e] = static_cast<char>(control);
        return bytes;
    }
    void config(const std::string& bus_id, const std::string& bytes) {
        std::ofstream(tree.root() + "/sys/bus/pci/devices/" + bus_id + "/config", std::ios::binary) << bytes;
    }
};

TEST_F(MachineFacts, KernelArgumentsAsTheKernelReadsThem) {
    tree.write("/proc/cmdline", "root=/dev/vda iommu=off quiet iommu=pt pci=noacs,nomsi");
    EXPECT_EQ(kernel_argument(files(), "iommu").value, "pt");
    EXPECT_EQ(kernel_argument(files(), "quiet").value, "1");
    EXPECT_EQ(kernel_argument(files(), "pci").value, "noacs,nomsi");
    EXPECT_FALSE(kernel_argument(files(), "intel_iommu").known());
    EXPECT_FALSE(kernel_argument(files(), "iomm").known());
}

TEST_F(MachineFacts, IommuModeByTheTypesOfItsGroups) {
    EXPECT_FALSE(iommu_mode(files()).known()) << "no /sys at all";
    tree.folder("/sys/kernel/iommu_groups");
    EXPECT_EQ(iommu_mode(files()).value, "off");
    tree.write("/sys/kernel/iommu_groups/0/type", "identity");
    EXPECT_EQ(iommu_mode(files()).value, "pass-through");
    tree.write("/sys/kernel/iommu_groups/1/type", "DMA-FQ");
    EXPECT_EQ(iommu_mode(files()).value, "mixed");
    tree.write("/sys/kernel/iommu_groups/0/type", "DMA");
    EXPECT_EQ(iommu_mode(files()).value, "translating");
}

TEST_F(MachineFacts, AccessControlIsReadByRoot) {
    switch_with_two();
    EXPECT_FALSE(acs_of(files(), "0000:02:00.0"));
    config("0000:02:00.0", std::string(64, '\0'));
    EXPECT_FALSE(acs_of(files(), "0000:02:00.0")) << "64 bytes are all that others than root see";
    config("0000:02:00.0", space(0x5f, 0x1d));
    EXPECT_TRUE(acs_of(files(), "0000:02:00.0")->redirects);
    EXPECT_EQ(acs_of(files(), "0000:02:00.0")->control, 0x1dU);
    config("0000:02:00.0", space(0x5f, 0x01));
    EXPECT_FALSE(acs_of(files(), "0000:02:00.0")->redirects) << "source validation redirects nothing";
    config("0000:02:00.0", space(0x01, 0x1d));
    EXPECT_FALSE(acs_of(files(), "0000:02:00.0")->redirects) << "the port cannot do it";
    config("0000:02:00.0", std::string(4096, '\0'));
    ASSERT_TRUE(acs_of(files(), "0000:02:00.0")) << "read, and there is none";
    EXPECT_EQ(acs_of(files(), "0000:02:00.0")->control, 0U);
    EXPECT_FALSE(acs_of(files(), "0000:02:00.0")->redirects);

    config("0000:02:00.0", space(0x5f, 0x1d));
    config("0000:02:01.0", space(0x5f, 0x00));
    const AcsBetween on = acs_between(files(), "0000:03:00.0", "0000:04:00.0");
    EXPECT_EQ(on.state, "on");
    EXPECT_EQ(on.how, "read");
    EXPECT_EQ(on.ports, std::vector<std::string>{"0000:02:00.0"});
    config("0000:02:00.0", space(0x5f, 0x00));
    EXPECT_EQ(acs_between(files(), "0000:03:00.0", "0000:04:00.0").state, "off");
}

TEST_F(MachineFacts, AccessControlIsInferredFromGroups) {
    switch_with_two();
    EXPECT_EQ(acs_between(files(), "0000:03:00.0", "0000:04:00.0").state, "unknown");
    const auto regroup = [&](const char* port_a, const char* a, const char* port_b, const char* b) {
        const char* const ids[] = {"0000:02:00.0", "0000:03:00.0", "0000:02:01.0", "0000:04:00.0"};
        const char* const groups[] = {port_a, a, port_b, b};
        for (int i = 0; i < 4; ++i) {
            std::filesystem::remove(tree.root() + "/sys/bus/pci/devices/" + ids[i] + "/iommu_group");
            group(ids[i], groups[i]);
        }
    };
    regroup("5", "7", "6", "8");
    const AcsBetween on = acs_between(files(), "0000:03:00.0", "0000:04:00.0");
    EXPECT_EQ(on.state, "on");
    EXPECT_EQ(on.how, "inferred");
    EXPECT_EQ(on.seen.front().value, "5");
    regroup("5", "5", "6", "6");
    EXPECT_EQ(acs_between(files(), "0000:03:00.0", "0000:04:00.0").state, "off")
        << "seen with QEMU's switches";
    regroup("5", "5", "5", "5");
    EXPECT_EQ(acs_between(files(), "0000:03:00.0", "0000:04:00.0").state, "unknown");
}

TEST_F(MachineFacts, TheTopologyMarksSwitchesThatRedirect) {
    switch_with_two();
    tree.node(0, 1 << 20);
    const auto before = Topology::live(tree.root());
    ASSERT_TRUE(before.ok()) << before.error().to_string();
    const DeviceId at = *before->find(DeviceKind::pcie_switch, 0);
    EXPECT_FALSE(before->device(at).acs_redirect);
    EXPECT_EQ(before->device(at).properties.at("acs"), "unknown");
    config("0000:02:00.0", space(0x5f, 0x1d));
    const auto after = Topology::live(tree.root());
    EXPECT_TRUE(after->device(at).acs_redirect);
    EXPECT_EQ(after->device(at).properties.at("acs"), "on (read)");
    EXPECT_TRUE(after->path(*after->find(Place::gpu(0)), *after->find(Place::gpu(1)))->redirected());
}

TEST_F(MachineFacts, BarSizes) {
    tree.pci("pci0000:00/0000:00:04.0", {gpu_class});
    raw("/sys/bus/pci/devices/0000:00:04.0/resource",
        "0x00000000a0000000 0x00000000a0ffffff 0x0000000000040200\n"
        "0x0000380000000000 0x0000383fffffffff 0x000000000014220c\n"
        "0x0000000000000000 0x0000000000000000 0x0000000000000000\n");
    EXPECT_EQ(bar_size(files(), "0000:00:04.0", 0), Bytes{16} << 20);
    EXPECT_EQ(bar_size(files(), "0000:00:04.0", 1), Bytes{256} << 30);
    EXPECT_EQ(bar_size(files(), "0000:00:04.0", 2), 0U);
    EXPECT_EQ(bar_size(files(), "0000:00:04.0", 5), 0U);
    tree.write("/sys/bus/pci/devices/0000:00:04.0/resource1_resize", "000000000000ffc0");
    EXPECT_EQ(bar_largest(files(), "0000:00:04.0", 1), Bytes{32} << 30);
    EXPECT_EQ(bar_largest(files(), "0000:00:04.0", 0), 0U);
}

TEST_F(MachineFacts, VirtualMachinesAndContainers) {
    EXPECT_FALSE(hypervisor(files()).known());
    tree.write("/proc/cpuinfo", "processor : 0\nflags : fpu vme sse\n");
    EXPECT_EQ(hypervisor(files()).value, "none");
    tree.write("/proc/cpuinfo", "processor : 0\nflags : fpu vme hypervisor lahf_lm\n");
    EXPECT_EQ(hypervisor(files()).value, "virtual machine");
    tree.write("/sys/class/dmi/id/sys_vendor", "QEMU");
    EXPECT_EQ(hypervisor(files()).value, "kvm");

    tree.write("/proc/self/mountinfo", "22 1 254:1 / / rw - ext4 /dev/root rw");
    EXPECT_EQ(container(files()).value, "none");
    tree.write("/proc/self/mountinfo", "22 1 0:30 / / rw - overlay overlay rw");
    EXPECT_EQ(container(files()).value, "container");
    tree.write("/.dockerenv", "");
    EXPECT_EQ(container(files()).value, "docker");
    // Each service of a cluster adds its variables.
    const std::string many = "A=" + std::string(100'000, 'a') + '\0';
    tree.write("/proc/self/environ", many + "KUBERNETES_SERVICE_HOST=10.0.0.1");
    EXPECT_EQ(container(files()).value, "kubernetes");
}

TEST_F(MachineFacts, DriversAndKernel) {
    EXPECT_FALSE(nvidia_driver(files()).known());
    EXPECT_FALSE(nvidia_driver_kind(files()).known());
    tree.write("/proc/driver/nvidia/version",
               "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build");
    EXPECT_EQ(nvidia_driver(files()).value, "580.159.04");
    EXPECT_EQ(nvidia_driver_kind(files()).value, "open");
    tree.write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.1  Fri");
    EXPECT_EQ(nvidia_driver_kind(files()).value, "closed");

    EXPECT_FALSE(nvidia_peermem(files()).known());
    tree.folder("/sys/module/nv_peer_mem");
    EXPECT_EQ(nvidia_peermem(files()).value, "loaded");
    tree.write("/sys/module/nvidia_peermem/version", "580.1");
    EXPECT_EQ(nvidia_peermem(files()).value, "580.1");

    EXPECT_FALSE(kernel_p2pdma(files()).known());
    tree.write("/proc/kallsyms", "0000 t something");
    EXPECT_EQ(kernel_p2pdma(files()).value, "no");
    tree.write("/proc/kallsyms", "0000 t something\n0000 d p2pdma_pgmap_ops");
    EXPECT_EQ(kernel_p2pdma(files()).value, "yes");
    tree.write("/proc/sys/kernel/osrelease", "6.18.5");
    tree.write("/boot/config-6.18.5", "# CONFIG_PCI_P2PDMA is not set\nCONFIG_PCI=y");
    EXPECT_EQ(kernel_p2pdma(files()).value, "no") << "the configuration says more than the symbols";
    EXPECT_EQ(kernel_option(files(), "CONFIG_PCI").value, "y");
}

TEST_F(MachineFacts, TheListOfSymbolsIsReadWhereThereIsAnNvmeDrive) {
    tree.write("/proc/kallsyms", "0000 d p2pdma_pgmap_ops");
    tree.pci("pci0000:00/0000:00:05.0", {gpu_class});
    const auto told = [&] { return Topology::live(tree.root())->parts().properties.count("kernel_p2pdma"); };
    EXPECT_EQ(told(), 0U);
    tree.pci("pci0000:00/0000:00:06.0", {nvme_class, "0x144d"});
    tree.folder("/sys/devices/pci0000:00/0000:00:06.0/nvme/nvme0");
    EXPECT_EQ(told(), 1U);
}

}  // namespace
}  // namespace sidestep::topology
