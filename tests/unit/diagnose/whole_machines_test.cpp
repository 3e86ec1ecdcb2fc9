// What the checks of four groups say of whole machines: what is off, and nothing else.
#include "tests/unit/diagnose/whole_machines.hpp"

#include <set>

namespace sidestep::diagnose {
namespace {

std::vector<Check> checks() {
    std::vector<Check> all;
    for (const auto group : {gpu_nic_checks, gpu_storage_checks, container_checks, version_checks}) {
        const std::vector<Check> more = group();
        all.insert(all.end(), more.begin(), more.end());
    }
    return all;
}

// The ids that come out with a verdict. Whatever is not content says what was seen and what to do.
std::set<std::string> found(const Evidence& evidence, Verdict verdict) {
    std::set<std::string> ids;
    for (const Check& check : checks()) {
        const Outcome outcome = check.look(evidence);
        EXPECT_FALSE(outcome.summary.empty()) << check.id;
        if (outcome.verdict != verdict) continue;
        ids.insert(check.id);
        if (verdict == Verdict::pass) continue;
        EXPECT_TRUE(outcome.applies) << check.id;
        EXPECT_FALSE(outcome.seen.empty()) << check.id << ": " << outcome.summary;
        EXPECT_FALSE(outcome.remedy.empty() && std::string(check.remedy).empty()) << check.id;
        for (const Seen& seen : outcome.seen) {
            EXPECT_FALSE(seen.source.empty()) << check.id;
            EXPECT_FALSE(seen.value.empty()) << check.id << ": " << seen.source;
        }
    }
    return ids;
}

using Ids = std::set<std::string>;

TEST(WholeMachines, AHealthyServerHasNothingWrong) {
    HgxServer machine;
    const Evidence evidence = machine.evidence();
    EXPECT_EQ(found(evidence, Verdict::fail), Ids{});
    EXPECT_EQ(found(evidence, Verdict::warn), Ids{});
    EXPECT_EQ(found(evidence, Verdict::unknown), Ids{});
}

TEST(WholeMachines, AHealthyCloudGuestHasNothingWrong) {
    CloudGuest machine;
    const Evidence evidence = machine.evidence();
    EXPECT_EQ(found(evidence, Verdict::fail), Ids{});
    EXPECT_EQ(found(evidence, Verdict::warn), Ids{});
    EXPECT_EQ(found(evidence, Verdict::unknown), Ids{});
}

// Machines that boot from the image of a container keep its marks; the remedies are those of a host.
TEST(WholeMachines, ABootedImageIsNoContainer) {
    HgxServer machine;
    machine.remove("/run/udev");
    const auto command = [&] { return look("no-udev", machine.evidence()).command; };
    machine.raw("/.dockerenv", "");
    EXPECT_EQ(command(), "");
    const std::string overlay = mount_line("0:30", "/", "overlay", "overlay", "rw,lowerdir=/a");
    machine.raw("/proc/self/mountinfo", overlay);
    EXPECT_NE(command().find("docker"), std::string::npos);  // docker run --pid=host --ipc=host
    machine.remove("/.dockerenv");
    EXPECT_EQ(command(), "");
    machine.link("/proc/self/ns/pid", "pid:[4026533002]");
    EXPECT_NE(command().find("docker"), std::string::npos);
}

TEST(WholeMachines, ALaptopWithoutAGpuIsLeftAlone) {
    Laptop machine;
    const Evidence evidence = machine.evidence();
    for (const Verdict verdict : {Verdict::fail, Verdict::warn, Verdict::unknown})
        EXPECT_EQ(found(evidence, verdict), Ids{});
}

TEST(WholeMachines, GeForceCardsAreNotAskedForWhatTheyLack) {
    GeforceBox machine;
    host_process(machine);
    machine.raw("/proc/self/mountinfo", mount_line("0:20", "/dev/shm", "tmpfs", "tmpfs", "rw"));
    machine.raw("/proc/driver/nvidia/version",
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04\n");
    machine.cuda.version = 13000;
    const Evidence evidence = machine.evidence();
    for (const Verdict verdict : {Verdict::fail, Verdict::warn, Verdict::unknown})
        EXPECT_EQ(found(evidence, verdict), Ids{});
}

TEST(WholeMachines, AContainerIsToldWhatItWasNotGiven) {
    HgxServer machine;
    in_docker(machine);
    machine.raw("/proc/self/status", "Name:\tsidestep\nCapEff:\t00000000a80425fb\nSeccomp:\t2\n");
    machine.raw("/proc/self/mountinfo",
                mount_line("0:50", "/", "overlay", "overlay", "rw,lowerdir=/a,upperdir=/b") +
                    mount_line("0:51", "/dev/shm", "tmpfs", "shm", "rw,size=65536k") +
                    mount_line("259:0", "/data", "xfs", "/dev/nvme0n1", "rw"));
    machine.remove("/run/udev");
    machine.remove("/dev/infiniband");
    for (auto& device : machine.verbs.devices) device.opens = false;
    const Evidence evidence = machine.evidence();
    EXPECT_EQ(found(evidence, Verdict::fail), (Ids{"no-uverbs"}));
    EXPECT_EQ(found(evidence, Verdict::warn), (Ids{"shm-small", "no-udev", "pidfd-refused", "nvidia-fs"}));
    const Outcome udev = look("no-udev", evidence);
    EXPECT_NE(udev.command.find("/run/udev"), std::string::npos);
    const Outcome cards = look("no-uverbs", evidence);
    EXPECT_NE(cards.command.find("--device /dev/infiniband"), std::string::npos);
}

TEST(WholeMachines, ASandboxThatHidesPciIsNotBlamed) {
    Sandbox machine;
    const Evidence evidence = machine.evidence();
    EXPECT_EQ(found(evidence, Verdict::fail), Ids{});
    EXPECT_EQ(found(evidence, Verdict::warn), Ids{});
    EXPECT_EQ(found(evidence, Verdict::unknown), (Ids{"no-rdma-card", "no-nvme", "shm-small", "namespaces",
                                                      "pidfd-refused", "closed-driver", "kernel-old"}));
}

TEST(WholeMachines, AnEmptyMachineHasNothingToComplainOf) {
    Machine machine;
    const Evidence evidence = machine.evidence();
    for (const Verdict verdict : {Verdict::fail, Verdict::warn, Verdict::unknown})
        EXPECT_EQ(found(evidence, verdict), Ids{});
}

}  // namespace
}  // namespace sidestep::diagnose
