// Each cause between GPUs and drives: found where it is, not found where it is not.
#include "tests/unit/diagnose/whole_machines.hpp"

#include "diagnose/checks/mounts.hpp"

namespace sidestep::diagnose {
namespace {

TEST(NoNvme, TellsDrivesFromDisks) {
    HgxServer server;
    const Outcome drives = see(server, "no-nvme");
    EXPECT_EQ(drives.verdict, Verdict::pass);
    EXPECT_TRUE(saw(drives, "/sys/class/nvme/nvme1", "0000:2e:00.0"));
    CloudGuest guest;
    const Outcome disks = see(guest, "no-nvme");
    EXPECT_FALSE(disks.applies) << "a machine is as it was bought";
    EXPECT_TRUE(saw(disks, "/sys/class/nvme", "does not exist"));
    EXPECT_TRUE(saw(disks, "/sys/block/vda", "virtio"));
    guest.remove("/sys/class");
    EXPECT_EQ(verdict(guest, "no-nvme"), Verdict::unknown);
    EXPECT_FALSE(see(Laptop(), "no-nvme").applies);
}

TEST(NvidiaFs, PassesWhereItServesTheDrives) {
    HgxServer machine;
    const Outcome outcome = see(machine, "nvidia-fs");
    EXPECT_EQ(outcome.verdict, Verdict::pass);
    EXPECT_TRUE(saw(outcome, "/proc/driver/nvidia-fs/modules", "nvme: 1"));
}

TEST(NvidiaFs, WarnsWhereItIsNotLoadedUnlessTheKernelDoesIt) {
    HgxServer machine;
    machine.remove("/proc/driver/nvidia-fs");
    EXPECT_EQ(verdict(machine, "nvidia-fs"), Verdict::pass);  // P2PDMA mode is complete
    machine.remove("/etc/cufile.json");
    const Outcome outcome = see(machine, "nvidia-fs");
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_TRUE(saw(outcome, "nvidia_fs", "does not exist"));
    machine.without_drives();
    EXPECT_FALSE(see(machine, "nvidia-fs").applies);
}

TEST(NvidiaFs, WarnsWhereTheNvmeDriverTakesNoPart) {
    HgxServer machine;
    machine.remove("/etc/cufile.json");
    machine.tree.write("/proc/driver/nvidia-fs/modules", "wekafsio: 1");
    const Outcome outcome = see(machine, "nvidia-fs");
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_TRUE(saw(outcome, "/proc/driver/nvidia-fs/modules", "wekafsio: 1"));
    machine.remove("/proc/driver/nvidia-fs/modules");
    EXPECT_EQ(verdict(machine, "nvidia-fs"), Verdict::unknown);
}

TEST(NvidiaFs, FailsWhereNoMappingEverWorked) {
    HgxServer machine;
    machine.tree.write("/proc/driver/nvidia-fs/stats",
                       "Mmap : n=1 ok=1 err=0\nBar1-map\t\t\t: n=9 ok=0 err=9 free=0");
    const Outcome outcome = see(machine, "nvidia-fs");
    EXPECT_EQ(outcome.verdict, Verdict::fail);
    EXPECT_TRUE(saw(outcome, "/proc/driver/nvidia-fs/stats", "ok=0 err=9"));
    machine.tree.write("/proc/driver/nvidia-fs/stats", "Bar1-map\t\t\t: n=9 ok=8 err=1 free=0");
    EXPECT_EQ(verdict(machine, "nvidia-fs"), Verdict::pass);
}

TEST(NvidiaFs, HasToBeGivenToAContainer) {
    HgxServer machine;
    in_docker(machine);
    const Outcome outcome = see(machine, "nvidia-fs");
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_NE(outcome.command.find("NVIDIA_GDS=enabled"), std::string::npos);
    machine.tree.write("/dev/nvidia-fs0", "");
    EXPECT_EQ(verdict(machine, "nvidia-fs"), Verdict::pass);
}

// Without nvidia-fs, so that P2PDMA mode is what counts.
class P2pdmaMode : public testing::Test {
protected:
    P2pdmaMode() { machine_.remove("/proc/driver/nvidia-fs"); }
    Outcome outcome() { return see(machine_, "p2pdma-mode"); }
    HgxServer machine_;
};

TEST_F(P2pdmaMode, PassesWithAllFourConditions) {
    const Outcome all = outcome();
    EXPECT_EQ(all.verdict, Verdict::pass);
    EXPECT_EQ(all.seen.size(), 4U);
}

TEST_F(P2pdmaMode, WarnsWhereOneIsMissingAndSaysWhich) {
    machine_.tree.write("/sys/module/nvme_core/parameters/multipath", "Y");
    Outcome half = outcome();
    EXPECT_EQ(half.verdict, Verdict::warn);
    EXPECT_EQ(half.summary, "P2PDMA mode is half set up: missing NVMe multipath switched off");
    EXPECT_NE(half.command.find("nvme_core multipath=N"), std::string::npos);
    EXPECT_TRUE(saw(half, "multipath", "Y"));

    machine_.tree.write("/sys/module/nvme_core/parameters/multipath", "N");
    machine_.tree.write("/proc/driver/nvidia/params", "RegistryDwords: \"RMForceStaticBar1=1;\"");
    half = outcome();
    EXPECT_EQ(half.verdict, Verdict::warn);
    EXPECT_NE(half.command.find("NVreg_RegistryDwords"), std::string::npos);

    machine_.tree.write("/proc/driver/nvidia/params",
                        "RegistryDwords: \"rmforcestaticbar1=0x1;RMFORCEDISABLEIOMAPWC=1\"");
    machine_.tree.write("/etc/cufile.json", "{\"properties\": {\"use_pci_p2pdma\": false}}");
    half = outcome();
    EXPECT_EQ(half.verdict, Verdict::warn);
    EXPECT_EQ(half.command, "export CUFILE_USE_PCIP2PDMA=true");
    EXPECT_TRUE(saw(half, "/etc/cufile.json", "use_pci_p2pdma: false"));
}

TEST_F(P2pdmaMode, ReadsCufilesSettingsWhereverTheyAre) {
    machine_.environment({"CUFILE_ENV_PATH_JSON=/opt/cufile.json"});
    EXPECT_EQ(outcome().verdict, Verdict::warn);
    machine_.tree.write("/opt/cufile.json", "{\"block\": {\"nvme\": {\"use_pci_p2pdma\": true}}}");
    EXPECT_EQ(outcome().verdict, Verdict::pass);
    machine_.tree.write("/opt/cufile.json", "{ this is none");
    EXPECT_TRUE(saw(outcome(), "/opt/cufile.json", "is no JSON"));
    machine_.environment({"CUFILE_ENV_PATH_JSON=/opt/cufile.json", "CUFILE_USE_PCIP2PDMA=true"});
    EXPECT_EQ(outcome().verdict, Verdict::pass);
}

TEST_F(P2pdmaMode, TakesThePeerMemoryOfTheGpuForTheKeys) {
    machine_.remove("/proc/driver/nvidia/params");
    EXPECT_EQ(outcome().verdict, Verdict::warn);
    machine_.tree.write(Machine::folder(H200Machine::gpu_walk(0)) + "/p2pmem/size", "274877906944");
    EXPECT_EQ(outcome().verdict, Verdict::pass);
}

TEST_F(P2pdmaMode, WarnsOfAKernelWithoutIt) {
    machine_.tree.write("/proc/kallsyms", "0000000000000000 T start_kernel");
    EXPECT_EQ(outcome().verdict, Verdict::warn);
    EXPECT_TRUE(saw(outcome(), "/proc/kallsyms", "no"));
    machine_.tree.write("/boot/config-5.15.0-100-generic", "CONFIG_PCI_P2PDMA=y");
    machine_.tree.write("/proc/sys/kernel/osrelease", "5.15.0-100-generic");
    EXPECT_EQ(outcome().verdict, Verdict::warn);
    machine_.tree.write("/boot/config-5.14.0-427.13.1.el9_4.x86_64", "CONFIG_PCI_P2PDMA=y");
    machine_.tree.write("/proc/sys/kernel/osrelease", "5.14.0-427.13.1.el9_4.x86_64");
    EXPECT_EQ(outcome().verdict, Verdict::pass);
    machine_.remove("/proc/kallsyms");
    machine_.remove("/boot");
    EXPECT_EQ(outcome().verdict, Verdict::unknown);
}

TEST_F(P2pdmaMode, IsNotNeededBesideNvidiaFs) {
    machine_.tree.write("/proc/driver/nvidia/params", "RegistryDwords: \"\"");
    machine_.tree.write("/etc/cufile.json", "{}");
    EXPECT_EQ(outcome().verdict, Verdict::warn);
    EXPECT_NE(outcome().summary.find("not set up"), std::string::npos);
    machine_.tree.write("/proc/driver/nvidia-fs/version", "version: 2.28");
    machine_.tree.write("/proc/driver/nvidia-fs/modules", "nvme: 1");
    EXPECT_EQ(outcome().verdict, Verdict::pass);
    machine_.tree.write("/etc/cufile.json", "{\"properties\": {\"use_pci_p2pdma\": true}}");
    EXPECT_EQ(outcome().verdict, Verdict::warn);  // begun, and it does not work
}

TEST_F(P2pdmaMode, KnowsTheGpusThatHaveIt) {
    for (auto& gpu : machine_.nvml.gpus) gpu.facts.name = "NVIDIA RTX A6000";
    EXPECT_FALSE(outcome().applies);
    for (auto& gpu : machine_.nvml.gpus) gpu.facts.name = "NVIDIA A100-SXM4-80GB";
    EXPECT_EQ(outcome().verdict, Verdict::pass);
}

constexpr const char* cwd = "/proc/self/cwd";

TEST(FileSystem, PassesWithXfsOnADriveAndNamesTheFolder) {
    HgxServer machine;
    const Outcome away = see(machine, "file-system");
    EXPECT_EQ(away.verdict, Verdict::pass);
    EXPECT_TRUE(saw(away, "nvme0n1", "xfs at /data0"));
    EXPECT_TRUE(saw(away, "the current folder", "ext4 at /: not on an NVMe drive"));
    EXPECT_NE(away.summary.find("those in the current folder not"), std::string::npos);
    machine.link(cwd, "/data2/models");
    const Outcome there = see(machine, "file-system");
    EXPECT_EQ(there.summary.find("current folder"), std::string::npos) << there.summary;
    EXPECT_TRUE(saw(there, "the current folder", "xfs at /data2"));
}

// One mounted drive, of that type and with those options.
Outcome with_mount(HgxServer& machine, const std::string& device, const std::string& type,
                   const std::string& options, const std::string& source = "/dev/x") {
    machine.raw("/proc/self/mountinfo", mount_line("8:1", "/", "ext4", "/dev/sda1", "rw") +
                                            mount_line(device, "/data\\040one", type, source, options));
    return see(machine, "file-system");
}

TEST(FileSystem, WarnsOfExt4ThatIsNotOrdered) {
    HgxServer machine;
    EXPECT_EQ(with_mount(machine, "259:0", "ext4", "rw").verdict, Verdict::pass);
    EXPECT_EQ(with_mount(machine, "259:0", "ext4", "rw,data=ordered").verdict, Verdict::pass);
    for (const char* mode : {"rw,data=journal", "rw,stripe=4,data=writeback"}) {
        const Outcome outcome = with_mount(machine, "259:0", "ext4", mode);
        EXPECT_EQ(outcome.verdict, Verdict::warn) << mode;
        EXPECT_TRUE(saw(outcome, "nvme0n1", "ext4 at /data one: ext4 with data="));
    }
}

TEST(FileSystem, WarnsOfOtherFileSystemsAndOfNoMount) {
    HgxServer machine;
    EXPECT_EQ(with_mount(machine, "259:0", "btrfs", "rw").verdict, Verdict::warn);
    const Outcome outcome = with_mount(machine, "0:77", "overlay", "rw");
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_NE(outcome.summary.find("no NVMe drive is mounted"), std::string::npos);
    machine.link(cwd, "/data one");
    EXPECT_TRUE(saw(with_mount(machine, "0:77", "overlay", "rw"), "the current folder",
                    "overlay at /data one: an overlay"));
    EXPECT_TRUE(saw(with_mount(machine, "0:77", "tmpfs", "rw"), "the current folder", "memory"));
    EXPECT_TRUE(
        saw(with_mount(machine, "0:77", "lustre", "rw"), "the current folder", "lustre at /data one"));
}

TEST(FileSystem, FilesThatAContainerWasGivenAreNoPlaceForOthers) {
    HgxServer machine;
    machine.raw("/etc/hosts", "127.0.0.1 localhost\n");
    const std::string given = mount_line("0:50", "/", "overlay", "overlay", "rw") +
                              mount_line("259:0", "/etc/hosts", "ext4", "/dev/nvme0n1", "rw");
    machine.raw("/proc/self/mountinfo", given);
    const Outcome none = see(machine, "file-system");
    EXPECT_NE(none.summary.find("no NVMe drive is mounted"), std::string::npos) << none.summary;
    machine.tree.folder("/data");
    machine.raw("/proc/self/mountinfo", given + mount_line("259:0", "/data", "ext4", "/dev/nvme0n1", "rw"));
    EXPECT_TRUE(see(machine, "file-system").summary.starts_with("files at /data can"));
}

// A stack of block devices: `name` on the given ones below.
void stack(HgxServer& machine, const std::string& device, const std::string& name, const std::string& kind,
           const std::vector<std::string>& below) {
    const std::string at = "/sys/devices/virtual/block/" + name;
    if (kind == "dm") {
        machine.tree.folder(at + "/dm");
    } else {
        machine.tree.write(at + "/md/level", kind);
    }
    for (const std::string& place : below)
        machine.link_to(at + "/slaves/" + place.substr(place.rfind('/') + 1), place);
    machine.link_to("/sys/dev/block/" + device, at);
}

TEST(FileSystem, SeesThroughRaidAndLvm) {
    HgxServer machine;
    const std::string drive = Machine::folder(HgxServer::drive_walk(0)) + "/nvme/nvme0/nvme0n1";
    const std::string other = Machine::folder(HgxServer::drive_walk(1)) + "/nvme/nvme1/nvme1n1";
    stack(machine, "9:0", "md0", "raid0", {drive, other});
    stack(machine, "9:1", "md1", "raid1", {drive, other});
    stack(machine, "253:0", "dm-0", "dm", {"/sys/devices/virtual/block/md0"});
    EXPECT_EQ(with_mount(machine, "9:0", "xfs", "rw").verdict, Verdict::pass);  // nvidia-fs is loaded
    Outcome outcome = with_mount(machine, "9:1", "xfs", "rw");
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_TRUE(saw(outcome, "md1", "RAID (raid1)"));
    outcome = with_mount(machine, "253:0", "ext4", "rw");
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_TRUE(saw(outcome, "dm-0", "device mapper (LVM, encryption or multipath) on RAID (raid0)"));
    // The number of a btrfs is its own: the drive has to be found by its name.
    machine.link_to("/sys/class/block/nvme0n1", drive);
    machine.link_to("/sys/class/block/dm-0", "/sys/devices/virtual/block/dm-0");
    machine.link_to("/dev/mapper/data", "/dev/dm-0");
    for (const auto& [source, name] :
         {std::pair("/dev/nvme0n1", "nvme0n1"), std::pair("/dev/mapper/data", "dm-0")}) {
        outcome = with_mount(machine, "0:31", "btrfs", "rw,subvol=/home", source);
        EXPECT_EQ(outcome.summary, "no mounted NVMe drive has files that cuFile can read directly");
        EXPECT_TRUE(saw(outcome, name, "btrfs at /data one: cuFile knows ext4 and XFS only"));
    }
    machine.tree.write("/sys/devices/virtual/block/md1/md1p1/partition", "1");
    machine.link_to("/sys/dev/block/259:20", "/sys/devices/virtual/block/md1/md1p1");
    EXPECT_TRUE(saw(with_mount(machine, "259:20", "xfs", "rw"), "md1", "RAID (raid1)"));
    machine.remove("/proc/driver/nvidia-fs");
    EXPECT_EQ(with_mount(machine, "9:0", "xfs", "rw").verdict, Verdict::warn);
}

TEST(FileSystem, PartitionsCountAsTheirDrive) {
    HgxServer machine;
    const std::string part = Machine::folder(HgxServer::drive_walk(0)) + "/nvme/nvme0/nvme0n1/nvme0n1p2";
    machine.tree.write(part + "/partition", "2");
    machine.link_to("/sys/dev/block/259:9", part);
    EXPECT_EQ(with_mount(machine, "259:9", "xfs", "rw").verdict, Verdict::pass);
}

TEST(FileSystem, IsUnknownWithoutMountsAndDoesNotApplyWithoutDrives) {
    HgxServer machine;
    machine.remove("/proc/self/mountinfo");
    EXPECT_EQ(verdict(machine, "file-system"), Verdict::unknown);
    machine.without_drives();
    EXPECT_FALSE(see(machine, "file-system").applies);
}

TEST(Mounts, SurvivesBrokenLines) {
    Machine machine;
    machine.raw("/proc/self/mountinfo", "\n36\n36 25 8:1 / /a rw\n36 25 8:1 / /b\\04 rw - ext4 /dev/a rw\n");
    const auto all = mounts(driver::MachineFiles(machine.tree.root()));
    ASSERT_TRUE(all);
    ASSERT_EQ(all->size(), 1U);
    EXPECT_EQ(all->front().point, "/b\\04");
    EXPECT_EQ(mount_of(*all, "/bb"), nullptr);
}

TEST(NoUdev, WantsAnEntryForEveryMountedDrive) {
    HgxServer machine;
    EXPECT_EQ(verdict(machine, "no-udev"), Verdict::pass);
    machine.remove("/run/udev/data/b259:1");
    const Outcome outcome = see(machine, "no-udev");
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_TRUE(saw(outcome, "/run/udev/data/b259:1", "xfs at /data1"));
    EXPECT_NE(outcome.command.find("udevadm trigger"), std::string::npos);
    machine.remove("/run/udev");
    EXPECT_TRUE(saw(see(machine, "no-udev"), "/run/udev/data", "does not exist"));
    EXPECT_EQ(verdict(machine, "no-udev"), Verdict::warn);
    EXPECT_FALSE(see(Laptop(), "no-udev").applies);
    CloudGuest guest;
    EXPECT_FALSE(see(guest, "no-udev").applies) << "cuFile has nothing to do there";
    EXPECT_FALSE(see(guest, "p2pdma-mode").applies);
}

TEST(NvmeFar, WarnsAcrossSocketsOnly) {
    HgxServer machine;
    EXPECT_EQ(verdict(machine, "nvme-far"), Verdict::pass);
    for (const int drive : {0, 2, 3}) {
        machine.remove("/sys/bus/pci/devices/" + HgxServer::drive_bus_id(drive));
        machine.remove("/sys/class/nvme/nvme" + std::to_string(drive));
    }
    const Outcome outcome = see(machine, "nvme-far");
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_NE(outcome.summary.find("of gpu:2, gpu:3 is as far as SYS"), std::string::npos) << outcome.summary;
    EXPECT_TRUE(saw(outcome, "gpu:0", "NODE"));
    machine.without_drives();
    EXPECT_FALSE(see(machine, "nvme-far").applies);
}

TEST(NvmeFar, IsUnknownInAFlatTree) {
    CloudGuest machine;
    const std::string drive = "pci0000:00/0000:00:0a.0";
    machine.tree.pci(drive, {topology::nvme_class, "0x1d0f", "0xcd00"});
    machine.tree.write(Machine::folder(drive) + "/nvme/nvme0/transport", "pcie");
    machine.link_to(Machine::folder(drive) + "/nvme/nvme0/device", Machine::folder(drive));
    machine.link_to("/sys/class/nvme/nvme0", Machine::folder(drive) + "/nvme/nvme0");
    EXPECT_EQ(verdict(machine, "nvme-far"), Verdict::unknown);
}

}  // namespace
}  // namespace sidestep::diagnose
