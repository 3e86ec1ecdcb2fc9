// Each cause in containers and virtual machines: found where it is, not found where it is not.
#include "tests/unit/diagnose/whole_machines.hpp"

namespace sidestep::diagnose {
namespace {

// /dev/shm with these options of tmpfs.
Outcome shm(Machine& machine, const std::string& options) {
    machine.raw("/proc/self/mountinfo", mount_line("8:1", "/", "ext4", "/dev/sda1", "rw") +
                                            mount_line("0:24", "/dev/shm", "tmpfs", "shm", options));
    return see(machine, "shm-small");
}

TEST(ShmSmall, ReadsTheSize) {
    CloudGuest machine;
    const Outcome docker = shm(machine, "rw,nosuid,size=65536k,inode64");
    EXPECT_EQ(docker.verdict, Verdict::warn);
    EXPECT_EQ(docker.summary, "/dev/shm holds 64 MiB only");
    EXPECT_TRUE(saw(docker, "/proc/self/mountinfo", "size=65536k"));
    EXPECT_EQ(shm(machine, "rw,size=1048575k").verdict, Verdict::warn);
    for (const char* enough : {"rw,size=0k", "rw,size=1048576k", "rw,size=16g", "rw,size=2048m",
                               "rw,size=17179869184", "rw,size=25%"})
        EXPECT_EQ(shm(machine, enough).verdict, Verdict::pass) << enough;
}

TEST(ShmSmall, IsHalfOfTheMemoryOtherwise) {
    CloudGuest machine;
    EXPECT_EQ(shm(machine, "rw").verdict, Verdict::pass);
    machine.tree.write("/proc/meminfo", "MemTotal: 1048576 kB");
    EXPECT_EQ(shm(machine, "rw").verdict, Verdict::warn);
    machine.remove("/proc/meminfo");
    EXPECT_EQ(shm(machine, "rw").verdict, Verdict::unknown);
}

TEST(ShmSmall, SaysWhatToTypeWhere) {
    CloudGuest machine;
    EXPECT_EQ(shm(machine, "rw,size=65536k").command, "mount -o remount,size=50% /dev/shm");
    in_docker(machine);
    EXPECT_EQ(shm(machine, "rw,size=65536k").command, "");  // the check's own: docker run --shm-size
    machine.raw("/proc/self/mountinfo", mount_line("0:50", "/", "overlay", "overlay", "rw"));
    EXPECT_EQ(verdict(machine, "shm-small"), Verdict::warn);
    machine.remove("/proc/self/mountinfo");
    EXPECT_EQ(verdict(machine, "shm-small"), Verdict::unknown);
}

TEST(Namespaces, PassInTheFirstOnesAndInAContainerWithAllGpus) {
    HgxServer machine;
    EXPECT_EQ(verdict(machine, "namespaces"), Verdict::pass);
    in_docker(machine);
    const Outcome outcome = see(machine, "namespaces");
    EXPECT_EQ(outcome.verdict, Verdict::pass);
    EXPECT_TRUE(saw(outcome, "/proc/self/ns/ipc", "4026533001"));
}

TEST(Namespaces, WarnWhereAContainerHasSomeOfTheGpus) {
    HgxServer machine;
    machine.nvml.gpus.resize(1);
    machine.cuda.gpus.resize(1);
    EXPECT_EQ(verdict(machine, "namespaces"),
              Verdict::pass);  // others are reached through the host's namespaces
    in_docker(machine);
    const Outcome outcome = see(machine, "namespaces");
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_TRUE(saw(outcome, "GPUs", "4 in the machine, 1 given to this process"));
    machine.link("/proc/self/ns/pid", "pid:[4026531836]");
    EXPECT_EQ(verdict(machine, "namespaces"), Verdict::warn);
}

TEST(Namespaces, WarnWhereCudaShowsOneGpu) {
    HgxServer machine;
    machine.cuda.gpus.resize(1);
    EXPECT_EQ(see(machine, "namespaces").command, "unset CUDA_VISIBLE_DEVICES");
    machine.cuda.loaded = false;
    machine.cuda.gpus.clear();
    EXPECT_EQ(verdict(machine, "namespaces"), Verdict::pass);
}

TEST(Namespaces, AreUnknownWhereProcIsHidden) {
    HgxServer machine;
    machine.remove("/proc/self/ns");
    EXPECT_EQ(verdict(machine, "namespaces"), Verdict::unknown);
}

// Capabilities, filter and ptrace_scope of this process.
Outcome pidfd(Machine& machine, const std::string& capabilities, const std::string& seccomp,
              const std::string& scope) {
    machine.raw("/proc/self/status", "CapEff:\t" + capabilities + "\nSeccomp:\t" + seccomp + "\n");
    machine.tree.write("/proc/sys/kernel/yama/ptrace_scope", scope);
    return see(machine, "pidfd-refused");
}
constexpr const char* no_capability = "0000000000000000";
constexpr const char* ptrace_capability = "0000000000080000";

TEST(PidfdRefused, WantsTheCapabilityOrAFreeKernel) {
    HgxServer machine;
    EXPECT_EQ(pidfd(machine, no_capability, "0", "0").verdict, Verdict::pass);
    EXPECT_EQ(pidfd(machine, no_capability, "0", "1").verdict, Verdict::warn);
    EXPECT_EQ(pidfd(machine, no_capability, "0", "1").command, "sysctl kernel.yama.ptrace_scope=0");
    EXPECT_EQ(pidfd(machine, ptrace_capability, "0", "2").verdict, Verdict::pass);
    EXPECT_EQ(pidfd(machine, ptrace_capability, "0", "3").verdict, Verdict::warn);
    machine.remove("/proc/sys/kernel/yama");
    EXPECT_EQ(verdict(machine, "pidfd-refused"), Verdict::pass);
    machine.remove("/proc/self/status");
    EXPECT_EQ(verdict(machine, "pidfd-refused"), Verdict::unknown);
}

TEST(PidfdRefused, KnowsTheFilterOfContainers) {
    HgxServer machine;
    in_docker(machine);
    const Outcome outcome = pidfd(machine, "00000000a80425fb", "2", "0");
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_TRUE(saw(outcome, "/proc/self/status", "Seccomp 2"));
    EXPECT_EQ(pidfd(machine, "00000000a80425fb", "0", "0").verdict, Verdict::pass);
    EXPECT_EQ(pidfd(machine, ptrace_capability, "2", "1").verdict, Verdict::pass);
}

// A guest whose GPUs have nothing but PCIe.
class GuestWithoutNvlink : public CloudGuest {
public:
    GuestWithoutNvlink() {
        for (auto& gpu : nvml.gpus) gpu.links.clear();
    }
};

TEST(VmHidesSwitches, DoesNotApplyWhereNvlinkJoinsAll) {
    EXPECT_FALSE(see(CloudGuest(), "vm-hides-switches").applies);
}

TEST(VmHidesSwitches, WarnsOfAFlatTree) {
    GuestWithoutNvlink machine;
    const Outcome outcome = see(machine, "vm-hides-switches");
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_TRUE(saw(outcome, "/sys/bus/pci/devices/0000:00:05.0", "numa_node -1"));
    EXPECT_NE(outcome.summary.find("kvm"), std::string::npos);
}

TEST(VmHidesSwitches, DoesNotApplyOnBareMetal) {
    EXPECT_FALSE(see(HgxServer(), "vm-hides-switches").applies);
    HgxServer machine;
    machine.tree.write("/proc/cpuinfo", "flags\t\t: fpu hypervisor");
    const Outcome outcome = see(machine, "vm-hides-switches");
    EXPECT_EQ(outcome.verdict, Verdict::pass);
    EXPECT_TRUE(outcome.applies);
}

TEST(VmHidesSwitches, PassesWithATopologyFileAndNeedsTwoDevices) {
    GuestWithoutNvlink machine;
    machine.tree.write("/etc/nccl.conf", "NCCL_TOPO_FILE=/opt/topo.xml");
    EXPECT_EQ(verdict(machine, "vm-hides-switches"), Verdict::pass);
    machine.remove("/etc/nccl.conf");
    machine.remove("/proc/cpuinfo");
    EXPECT_EQ(verdict(machine, "vm-hides-switches"), Verdict::unknown);
    machine.nvml.gpus.resize(1);
    EXPECT_FALSE(see(machine, "vm-hides-switches").applies);
}

// An NCCL topology file with these GPUs.
std::string xml(const std::vector<std::string>& gpus, int more = 0) {
    std::string text =
        "<!-- <comments> <count> <for> <nothing> -->\n<system version=\"1\">\n<cpu numaid=\"0\" "
        "affinity=\"ff\" "
        "arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"143\">\n";
    int dev = 0;
    for (const std::string& gpu : gpus)
        text += "<pci busid=\"" + gpu +
                "\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"><gpu dev=\"" +
                std::to_string(dev++) + "\" sm=\"90\" rank=\"0\" gdr=\"1\"/></pci>\n";
    for (int i = 0; i < more; ++i)
        text += "<pci busid=\"00ff:" + std::string(1, static_cast<char>('0' + i / 160 % 10)) +
                std::string(1, "0123456789abcdef"[i / 16 % 10]) + ":0" + std::string(1, "0123456789"[i % 8]) +
                "." + std::string(1, "0123456789"[i / 8 % 2]) +
                "\" class=\"0x010802\" link_speed=\"8 GT/s\" link_width=\"4\"/>\n";
    return text + "</cpu>\n</system>\n";
}

class TopologyFile : public testing::Test {
protected:
    Outcome with(const std::string& text) {
        machine_.environment({"NCCL_TOPO_FILE=/opt/topo.xml"});
        machine_.tree.write("/opt/topo.xml", text);
        return see(machine_, "nccl-topo-file");
    }
    static std::vector<std::string> gpus(int first, int last) {
        std::vector<std::string> ids;
        for (int gpu = first; gpu < last; ++gpu) ids.push_back(H200Guest::bus_id(gpu));
        return ids;
    }
    CloudGuest machine_;
};

TEST_F(TopologyFile, DoesNotApplyWhereNoneIsGiven) {
    EXPECT_FALSE(see(machine_, "nccl-topo-file").applies);
}

TEST_F(TopologyFile, PassesWhereItFits) {
    const Outcome outcome = with(xml(gpus(0, 4)));
    EXPECT_EQ(outcome.verdict, Verdict::pass)
        << outcome.summary << (outcome.seen.empty() ? "" : outcome.seen.back().value);
    EXPECT_TRUE(saw(outcome, "/opt/topo.xml", "10 elements, 4 GPUs"));
    EXPECT_TRUE(saw(outcome, "/proc/self/environ", "NCCL_TOPO_FILE=/opt/topo.xml"));
}

TEST_F(TopologyFile, FailsWhereItIsNotThereOrDenied) {
    machine_.environment({"NCCL_TOPO_FILE=topo.xml"});
    machine_.link("/proc/self/cwd", "../../home");
    const std::string path = "/proc/self/cwd/topo.xml";
    const Outcome outcome = see(machine_, "nccl-topo-file");
    EXPECT_EQ(outcome.verdict, Verdict::fail);
    EXPECT_TRUE(saw(outcome, path, "does not exist"));
    machine_.tree.write("/home/topo.xml", xml(gpus(0, 4)));
    EXPECT_EQ(verdict(machine_, "nccl-topo-file"), Verdict::pass);
    machine_.tree.write(driver::MachineFiles::denied_list, path);
    EXPECT_TRUE(saw(see(machine_, "nccl-topo-file"), path, "permission denied"));
}

TEST_F(TopologyFile, FailsWhereItCannotBeUnderstood) {
    const Outcome outcome = with("<system version=\"1\">\n<cpu");
    EXPECT_EQ(outcome.verdict, Verdict::fail);
    EXPECT_TRUE(saw(outcome, "/opt/topo.xml", "")) << outcome.seen.back().source;
}

TEST_F(TopologyFile, FailsAboveTheElementsThatNcclTakes) {
    EXPECT_EQ(with(xml(gpus(0, 4), 246)).verdict, Verdict::pass);
    const Outcome outcome = with(xml(gpus(0, 4), 247));
    EXPECT_EQ(outcome.verdict, Verdict::fail) << outcome.summary;
    EXPECT_EQ(outcome.summary, "NCCL's topology file has 257 elements, and NCCL takes 256");
}

TEST_F(TopologyFile, WarnsOfOtherMachinesGpus) {
    const Outcome more =
        with(xml({"0000:00:04.0", "0000:00:05.0", "0000:00:06.0", "0000:00:07.0", "0000:41:00.0"}));
    EXPECT_EQ(more.verdict, Verdict::warn);
    EXPECT_NE(more.summary.find("0000:41:00.0"), std::string::npos);
    const Outcome fewer = with(xml(gpus(0, 3)));
    EXPECT_EQ(fewer.verdict, Verdict::warn);
    EXPECT_NE(fewer.summary.find("lacks the GPUs 0000:00:07.0"), std::string::npos) << fewer.summary;
}

TEST_F(TopologyFile, LooksAtNcclsUsualPlace) {
    machine_.tree.write("/var/run/nvidia-topologyd/virtualTopology.xml", "<nothing/>");
    EXPECT_EQ(verdict(machine_, "nccl-topo-file"), Verdict::fail);
    for (auto& gpu : machine_.nvml.gpus) gpu.links.clear();
    EXPECT_EQ(verdict(machine_, "vm-hides-switches"), Verdict::pass);
}

}  // namespace
}  // namespace sidestep::diagnose
