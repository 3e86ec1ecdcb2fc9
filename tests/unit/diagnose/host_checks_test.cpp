// The host: IOMMU, BAR1, NUMA and PCIe links.
#include "tests/unit/diagnose/other_machines.hpp"

namespace sidestep::diagnose {
namespace {

// An RDMA card beside a GPU.
std::string add_rdma(H200Machine& machine, int gpu = 0) {
    const std::string at = H200Machine::beside(gpu);
    machine.tree.pci(at, {topology::nic_class, "0x15b3", "0x1021", std::to_string(H200Machine::socket(gpu))});
    machine.tree.folder(Machine::folder(at) + "/infiniband/mlx5_0");
    machine.link_to("/sys/class/infiniband/mlx5_0", Machine::folder(at) + "/infiniband/mlx5_0");
    machine.iommu_group(at, 10 * (gpu + 1), "identity");
    return at;
}

TEST(IommuCheck, TranslatedGpusWarn) {
    H200Machine machine;
    no_nvlinks(machine);
    EXPECT_EQ(look("iommu-translating", machine.evidence()).verdict, Verdict::pass);
    for (const char* type : {"DMA", "DMA-FQ"}) {
        machine.iommu_group(H200Machine::gpu_walk(2), 30, type);
        const Outcome outcome = look("iommu-translating", machine.evidence());
        EXPECT_EQ(outcome.verdict, Verdict::warn) << type;
        EXPECT_NE(outcome.summary.find("gpu:2"), std::string::npos) << outcome.summary;
        EXPECT_EQ(outcome.summary.find("gpu:1"), std::string::npos) << outcome.summary;
        EXPECT_TRUE(saw(outcome, "/sys/kernel/iommu_groups/30/type", type));
    }
}

TEST(IommuCheck, TranslationOfOthersIsNoAlarm) {
    H200Machine machine;
    no_nvlinks(machine);
    machine.tree.write("/sys/kernel/iommu_groups/77/type", "DMA");  // a USB controller
    EXPECT_EQ(look("iommu-translating", machine.evidence()).verdict, Verdict::pass);
}

TEST(IommuCheck, OffPasses) {
    H200Machine machine;
    no_nvlinks(machine);
    machine.remove("/sys/kernel/iommu_groups");
    machine.tree.folder("/sys/kernel/iommu_groups");
    EXPECT_EQ(look("iommu-translating", machine.evidence()).verdict, Verdict::pass);
}

TEST(IommuCheck, NvlinkAloneDoesNotDependOnIt) {
    H200Machine machine;
    machine.iommu_group(H200Machine::gpu_walk(0), 10, "DMA");
    EXPECT_FALSE(look("iommu-translating", machine.evidence()).applies);
    const std::string card = add_rdma(machine);
    machine.iommu_group(card, 10, "DMA");
    const Outcome outcome = look("iommu-translating", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_NE(outcome.summary.find("nic:mlx5_0"), std::string::npos) << outcome.summary;
}

TEST(IommuCheck, HiddenGroupsAreUnknownUnlessTheKernelWasTold) {
    Sandbox machine;
    no_nvlinks(machine);
    EXPECT_EQ(look("iommu-translating", machine.evidence()).verdict, Verdict::unknown);
    machine.tree.write("/proc/cmdline", "ro iommu=pt");
    const Outcome outcome = look("iommu-translating", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::pass);
    EXPECT_TRUE(saw(outcome, "/proc/cmdline", "iommu=pt"));
}

TEST(Bar1Check, SmallWindowsWarn) {
    H200Machine machine;
    EXPECT_EQ(look("bar1-small", machine.evidence()).verdict, Verdict::pass);
    machine.nvml.gpus[1].facts.bar1 = Bytes{256} << 20;
    machine.tree.write(Machine::folder(H200Machine::gpu_walk(1)) + "/resource1_resize", "0x000000000003ff00");
    const Outcome outcome = look("bar1-small", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_NE(outcome.summary.find("gpu:1"), std::string::npos);
    EXPECT_TRUE(saw(outcome, "nvmlDeviceGetBAR1MemoryInfo(gpu:1)", "256 MiB"));
    EXPECT_TRUE(saw(outcome, "resource1_resize", "128 GiB"));
}

TEST(Bar1Check, ReadFromTheResourceFileWithoutNvml) {
    H200Machine machine;
    machine.has_nvml = false;
    EXPECT_EQ(look("bar1-small", machine.evidence()).verdict, Verdict::unknown)
        << "the memory is not known, and the window is not small for sure";
    machine.tree.write(Machine::folder(H200Machine::gpu_walk(0)) + "/resource",
                       "0x00000000a0000000 0x00000000a0ffffff 0x0000000000040200\n"
                       "0x0000380000000000 0x000038000fffffff 0x000000000014220c");
    const Outcome outcome = look("bar1-small", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_TRUE(saw(outcome, "/sys/bus/pci/devices/0000:1c:00.0/resource", "256 MiB"));
}

TEST(Bar1Check, UnseenIsUnknown) {
    H200Machine machine;
    machine.nvml.gpus[3].facts.bar1 = 0;
    machine.remove(Machine::folder(H200Machine::gpu_walk(3)) + "/resource");
    const Outcome outcome = look("bar1-small", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::unknown);
    EXPECT_NE(outcome.summary.find("gpu:3"), std::string::npos);
}

TEST(NumaCheck, BoundAwayWarns) {
    H200Machine machine;
    EXPECT_EQ(look("numa-binding", machine.evidence()).verdict, Verdict::pass);
    machine.raw("/proc/self/status", "Cpus_allowed_list:\t0-31\nMems_allowed_list:\t0-1\n");
    const Outcome outcome = look("numa-binding", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_NE(outcome.summary.find("far from gpu:2, gpu:3"), std::string::npos) << outcome.summary;
    EXPECT_TRUE(saw(outcome, "Cpus_allowed_list", "0-31"));
    EXPECT_TRUE(saw(outcome, "node1/cpulist", "64-127"));
    EXPECT_EQ(outcome.command, "numactl --cpunodebind=1 --membind=1 PROGRAM");
}

TEST(NumaCheck, MemoryNodesCountToo) {
    H200Machine machine;
    machine.raw("/proc/self/status", "Cpus_allowed_list:\t0-127\nMems_allowed_list:\t1\n");
    const Outcome outcome = look("numa-binding", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_NE(outcome.summary.find("memory near gpu:0, gpu:1"), std::string::npos) << outcome.summary;
}

TEST(NumaCheck, OnlyVisibleGpusMatter) {
    H200Machine machine;
    machine.raw("/proc/self/status", "Cpus_allowed_list:\t64-70\nMems_allowed_list:\t1\n");
    EXPECT_EQ(look("numa-binding", machine.evidence()).verdict, Verdict::warn);
    machine.cuda.gpus.erase(machine.cuda.gpus.begin(), machine.cuda.gpus.begin() + 2);
    EXPECT_EQ(look("numa-binding", machine.evidence()).verdict, Verdict::pass) << "gpu:2 and gpu:3 are near";
}

TEST(NumaCheck, UnknownWhereNodesOrProcessAreHidden) {
    H200Machine machine;
    machine.remove("/proc/self/status");
    EXPECT_EQ(look("numa-binding", machine.evidence()).verdict, Verdict::unknown);
    H200Guest guest;
    EXPECT_FALSE(look("numa-binding", guest.evidence()).applies) << "one node";
    guest.tree.node(1, 1 << 20);
    guest.tree.write("/sys/devices/system/node/node1/cpulist", "64-127");
    const Outcome outcome = look("numa-binding", guest.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::unknown);
    EXPECT_TRUE(saw(outcome, "numa_node", "-1"));
}

TEST(NumaCheck, NodesOfGpuMemoryHaveNoCpus) {
    H200Guest guest;
    guest.tree.node(1, 96 << 20);
    guest.tree.write("/sys/devices/system/node/node1/cpulist", "");
    EXPECT_FALSE(look("numa-binding", guest.evidence()).applies);
}

TEST(PcieCheck, FewerLanesAlwaysWarn) {
    H200Machine machine;
    const Outcome well = look("pcie-trained-down", machine.evidence());
    EXPECT_EQ(well.verdict, Verdict::pass);
    EXPECT_TRUE(saw(well, "PCIe links", "8")) << "four of GPUs and four of switches";
    machine.tree.write(Machine::folder(H200Machine::gpu_walk(2)) + "/current_link_width", "8");
    machine.nvml.gpus[2].facts.pcie_replays = 1234;
    const Outcome outcome = look("pcie-trained-down", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_NE(outcome.summary.find("gpu:2"), std::string::npos);
    EXPECT_TRUE(saw(outcome, H200Machine::bus_id(2), "gen5 x8 now, both ends can do gen5 x16"));
    EXPECT_TRUE(saw(outcome, "ReplayCounter(gpu:2)", "1234"));
    EXPECT_NEAR(outcome.cost_gb_per_s.value_or(0), 55.5 / 2, 0.1);
}

TEST(PcieCheck, EveryLinkUpward) {
    H200Machine machine;
    const std::string uplink = Machine::folder(H200Machine::upstream(1));
    machine.tree.write(uplink + "/current_link_speed", "8.0 GT/s PCIe");
    const Outcome outcome = look("pcie-trained-down", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::warn) << "switches do not idle at gen3";
    EXPECT_NE(outcome.summary.find("above gpu:1"), std::string::npos) << outcome.summary;
    EXPECT_TRUE(saw(outcome, "", "gen3 x16 now, both ends can do gen5 x16"));
    EXPECT_NEAR(outcome.cost_gb_per_s.value_or(0), 55.5 - 12.15, 0.1)
        << "what copies reach on each generation";
}

TEST(PcieCheck, IdleGpusAreNoAlarm) {
    H200Machine machine;
    for (int gpu = 0; gpu < 4; ++gpu)
        machine.tree.write(Machine::folder(H200Machine::gpu_walk(gpu)) + "/current_link_speed",
                           "2.5 GT/s PCIe");
    const Outcome idle = look("pcie-trained-down", machine.evidence());
    EXPECT_EQ(idle.verdict, Verdict::unknown);
    EXPECT_NE(idle.remedy.find("under load"), std::string::npos);
    machine.tree.write(Machine::folder(H200Machine::gpu_walk(0)) + "/current_link_width", "4");
    const Outcome narrow = look("pcie-trained-down", machine.evidence());
    EXPECT_EQ(narrow.verdict, Verdict::warn) << "idle links keep their lanes";
    EXPECT_NEAR(narrow.cost_gb_per_s.value_or(0), 55.5 * 3 / 4, 0.1) << "of the speed it has awake";
}

TEST(PcieCheck, OtherDevicesDoNotIdle) {
    H200Machine machine;
    const std::string card = add_rdma(machine);
    machine.tree.write(Machine::folder(card) + "/current_link_speed", "16.0 GT/s PCIe");
    const Outcome outcome = look("pcie-trained-down", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_NE(outcome.summary.find("nic:mlx5_0"), std::string::npos);
}

TEST(PcieCheck, TheSlotLimitsTheCard) {
    H200Machine machine;
    for (const std::string& walk : {H200Machine::downstream(3), H200Machine::gpu_walk(3)}) {
        machine.tree.write(Machine::folder(walk) + "/current_link_width", "8");
        machine.tree.write(Machine::folder(walk) + "/current_link_speed", "16.0 GT/s PCIe");
    }
    machine.tree.write(Machine::folder(H200Machine::downstream(3)) + "/max_link_width", "8");
    machine.tree.write(Machine::folder(H200Machine::downstream(3)) + "/max_link_speed", "16.0 GT/s PCIe");
    const Outcome outcome = look("pcie-trained-down", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::pass);
    EXPECT_TRUE(saw(outcome, "", "the card has 16 lanes, its slot 8"));
}

TEST(PcieCheck, MadeUpPortsAreNotBelieved) {
    Machine machine;
    machine.tree.node(0, 1 << 20);
    topology::PciFiles port{topology::bridge_class, "0x1b36", "0x000c"};
    port.max_speed = "16.0 GT/s PCIe";
    port.max_width = "1";
    port.now_speed = "2.5 GT/s PCIe";
    port.now_width = "1";
    machine.tree.pci("pci0000:00/0000:00:03.0", port);
    machine.tree.pci("pci0000:00/0000:00:03.0/0000:01:00.0", {topology::gpu_class});
    EXPECT_EQ(look("pcie-trained-down", machine.evidence()).verdict, Verdict::pass);
    machine.tree.write("/sys/devices/pci0000:00/0000:00:03.0/0000:01:00.0/current_link_width", "8");
    machine.tree.write("/sys/devices/pci0000:00/0000:00:03.0/max_link_width", "8");
    machine.tree.write("/sys/devices/pci0000:00/0000:00:03.0/max_link_speed", "32.0 GT/s PCIe");
    EXPECT_EQ(look("pcie-trained-down", machine.evidence()).verdict, Verdict::warn);
}

TEST(PcieCheck, NvmlSpeaksWhereSysIsHidden) {
    Sandbox machine;
    EXPECT_EQ(look("pcie-trained-down", machine.evidence()).verdict, Verdict::pass);
    machine.nvml.gpus[0].facts.pcie_width_now = 8;
    const Outcome outcome = look("pcie-trained-down", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_TRUE(saw(outcome, "nvmlDeviceGetCurrPcieLinkWidth(gpu:0)", "x8 now"));
    for (auto& gpu : machine.nvml.gpus) gpu.facts.pcie_width_now = 0;
    EXPECT_EQ(look("pcie-trained-down", machine.evidence()).verdict, Verdict::unknown);
}

TEST(PcieCheck, SleepingDevicesTellNothing) {
    H200Machine machine;
    machine.has_nvml = false;
    for (const auto& [width, speed] : {std::pair("63", "Unknown"), std::pair("63", "32.0 GT/s PCIe"),
                                       std::pair("255", "32.0 GT/s PCIe"), std::pair("16", "Unknown")}) {
        for (int gpu = 0; gpu < 4; ++gpu) {
            for (const std::string& walk : {H200Machine::gpu_walk(gpu), H200Machine::upstream(gpu)}) {
                machine.tree.write(Machine::folder(walk) + "/current_link_width", width);
                machine.tree.write(Machine::folder(walk) + "/current_link_speed", speed);
            }
        }
        EXPECT_EQ(look("pcie-trained-down", machine.evidence()).verdict, Verdict::unknown) << width << speed;
    }
}

}  // namespace
}  // namespace sidestep::diagnose
