// What lies between a file and its drive: file system, RAID, LVM, and udev, from which cuFile learns of them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "diagnose/checks/gpu_direct.hpp"
#include "diagnose/checks/gpu_pairs.hpp"
#include "diagnose/checks/looks.hpp"
#include "diagnose/checks/mounts.hpp"
#include "diagnose/checks/nvme_drives.hpp"
#include "diagnose/checks/p2pdma_mode.hpp"

namespace sidestep::diagnose {

namespace {

// Network and cluster file systems that bring a direct way of their own (GPUDirect Storage release notes,
// support matrix); what they need is not looked at here.
constexpr std::array<std::string_view, 8> with_own_way = {"lustre", "wekafs", "beegfs",   "gpfs",
                                                          "nfs",    "nfs4",   "virtiofs", "scatefs"};

// Why files of a mount take no direct way; empty: they can.
std::string objection(const Mount& mount, const BlockDevice& device, bool nvidia_fs) {
    if (std::find(with_own_way.begin(), with_own_way.end(), std::string_view(mount.type)) !=
        with_own_way.end())
        return {};
    if (mount.type == "overlay") return "an overlay: files that a container writes there take no direct way";
    if (mount.type == "tmpfs" || mount.type == "ramfs") return "memory, no drive";
    if (mount.type != "ext4" && mount.type != "xfs") return "cuFile knows ext4 and XFS only";
    if (!device.on_nvme) return "not on an NVMe drive";
    const std::string data = mount.option("data");
    if (mount.type == "ext4" && !data.empty() && data != "ordered") return "ext4 with data=" + data;
    if (device.raid0 && nvidia_fs) return {};
    if (!device.layer.empty()) return "on " + device.layer;
    return {};
}

bool in_wrong_mode(const Mount& mount) {
    const std::string data = mount.option("data");
    return mount.type == "ext4" && !data.empty() && data != "ordered";
}

std::string words_of(const Mount& mount, const std::string& why_not) {
    return fmt::format("{} at {}{}{}", mount.type, mount.point, why_not.empty() ? "" : ": ", why_not);
}

struct Judged {
    std::vector<std::string> good;        // mount points on NVMe drives
    std::vector<std::string> wrong_mode;  // ext4 that journals data
    std::vector<Seen> seen;
};

// Containers are given single files of the host's drive: /etc/hosts, libraries of the driver.
bool is_file(const driver::MachineFiles& files, const std::string& path) {
    return files.exists(path) && !files.exists(path + "/.");
}

// The mounts on NVMe drives, each device once: containers have the same drive at many places.
Judged judge_drives(const Evidence& evidence, const std::vector<Mount>& all, bool nvidia_fs) {
    Judged judged;
    std::set<std::string> devices;
    for (const Mount& mount : all) {
        const BlockDevice device = block_device(evidence.files, mount);
        if (!device.on_nvme || mount.type == "squashfs" || is_file(evidence.files, mount.point)) continue;
        if (!devices.insert(mount.device).second) continue;
        const std::string why_not = objection(mount, device, nvidia_fs);
        judged.seen.push_back({fmt::format("{}, {}", mounts_path, device.name), words_of(mount, why_not)});
        if (why_not.empty()) judged.good.push_back(mount.point);
        if (in_wrong_mode(mount)) judged.wrong_mode.push_back(mount.point);
    }
    return judged;
}

Outcome verdict_of(const Judged& judged) {
    if (!judged.wrong_mode.empty()) {
        Outcome outcome =
            warn(fmt::format("the ext4 file system at {} is not in ordered mode", listed(judged.wrong_mode)));
        outcome.remedy =
            "Mount it with data=ordered, ext4's own default: take the other mode out of /etc/fstab and of "
            "the "
            "file system's default options, and mount it anew. DEVICE is the drive's partition.";
        outcome.command = "tune2fs -o ^journal_data,^journal_data_writeback DEVICE";
        return outcome;
    }
    if (!judged.good.empty())
        return pass(fmt::format("files at {} can take a direct way", listed(judged.good)));
    if (judged.seen.empty()) {
        Outcome outcome = warn("no NVMe drive is mounted where this process sees it");
        outcome.remedy =
            "Put an XFS or ext4 file system on a drive and mount it; in a container, give the mounted folder "
            "to "
            "it. DRIVE is the block device, FOLDER the place.";
        outcome.command = "mkfs.xfs /dev/DRIVE && mount /dev/DRIVE FOLDER";
        return outcome;
    }
    return warn("no mounted NVMe drive has files that cuFile can read directly");
}

}  // namespace

Outcome look_file_system(const Evidence& evidence) {
    if (const auto reason = no_gpu_direct(evidence)) return does_not_apply(*reason);
    if (nvme_drives(evidence.files).empty())
        return does_not_apply("there is no NVMe drive, so no direct way to block");
    const auto all = mounts(evidence.files);
    if (!all) {
        Outcome outcome = unknown("what is mounted cannot be read");
        outcome.saw(mounts_path, "cannot be read");
        outcome.remedy = "Look at the mounts yourself: XFS or ext4, straight on an NVMe drive.";
        outcome.command = "findmnt -o TARGET,SOURCE,FSTYPE,OPTIONS";
        return outcome;
    }
    const bool nvidia_fs = read_nvidia_fs(evidence).loaded;
    Judged judged = judge_drives(evidence, *all, nvidia_fs);
    Outcome outcome = verdict_of(judged);
    outcome.seen = std::move(judged.seen);
    const std::string here = evidence.files.link_target("/proc/self/cwd").value_or("");
    if (const Mount* mount = here.empty() ? nullptr : mount_of(*all, here)) {
        const std::string why_not = objection(*mount, block_device(evidence.files, *mount), nvidia_fs);
        outcome.saw("the current folder", words_of(*mount, why_not));
        if (outcome.verdict == Verdict::pass && !why_not.empty())
            outcome.summary += fmt::format("; those in the current folder not ({})", why_not);
    }
    return outcome;
}

Outcome look_udev(const Evidence& evidence) {
    if (const auto reason = no_gpu_direct(evidence)) return does_not_apply(*reason);
    if (nvme_drives(evidence.files).empty())
        return does_not_apply("there is no NVMe drive, so cuFile has no direct way to take");
    const std::string folder = "/run/udev/data";
    const bool contained = !container_words(evidence).empty();
    if (!evidence.files.exists(folder)) {
        Outcome outcome = warn("there is no udev database: cuFile takes no file (error 5027)");
        outcome.saw(folder, "does not exist");
        if (contained) {
            outcome.remedy =
                "Give the container the database of the host. Or run the program with `sidestep run -- "
                "PROGRAM`, whose cuFile asks udev nothing.";
            outcome.command = "docker run --gpus all -v /run/udev:/run/udev:ro IMAGE";
        }
        return outcome;
    }
    // Entries of block devices are called after their numbers, as "b259:2". Only the names are looked at: the
    // entries hold serial numbers.
    std::vector<Seen> missing;
    std::set<std::string> devices;
    for (const Mount& mount : mounts(evidence.files).value_or(std::vector<Mount>())) {
        if (mount.type != "ext4" && mount.type != "xfs") continue;
        if (mount.device.starts_with("0:") || !devices.insert(mount.device).second) continue;
        const std::string entry = fmt::format("{}/b{}", folder, mount.device);
        if (!evidence.files.exists(entry))
            missing.push_back({entry, fmt::format("does not exist ({} at {})", mount.type, mount.point)});
    }
    if (missing.empty()) {
        Outcome outcome = pass("udev's database is there");
        outcome.saw(folder, fmt::format("has the {} mounted drives", devices.size()));
        return outcome;
    }
    Outcome outcome = warn("udev knows nothing of a mounted drive: cuFile takes no file there (error 5027)");
    outcome.seen = std::move(missing);
    outcome.remedy = "Have udev look at the block devices again.";
    outcome.command = "udevadm trigger --subsystem-match=block && udevadm settle";
    return outcome;
}

}  // namespace sidestep::diagnose
