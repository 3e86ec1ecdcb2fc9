// The mounts this process sees, and the block devices below them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "driver/machine_files.hpp"

namespace sidestep::diagnose {

constexpr const char* mounts_path = "/proc/self/mountinfo";

// One line of /proc/self/mountinfo (proc(5)), with blanks in paths restored.
struct Mount {
    std::string device;         // "259:2"; "0:45" where the file system has a number of its own
    std::string point;          // "/data"
    std::string type;           // "ext4"
    std::string source;         // "/dev/nvme0n1p1"
    std::string options;        // of the mount: "rw,relatime"
    std::string super_options;  // of the file system: "rw,data=ordered"

    // The value of an option of the file system ("data" -> "ordered"); empty where it is not given.
    std::string option(const std::string& name) const;
};

// nullopt where the file cannot be read. The first MiB of it counts.
std::optional<std::vector<Mount>> mounts(const driver::MachineFiles& files);
// The mount that holds a path: of those above it the deepest, of several at one place the last. Null: none.
const Mount* mount_of(const std::vector<Mount>& all, const std::string& path);

// What a file system lies on.
struct BlockDevice {
    std::string name;   // "nvme0n1", "md0"; empty: no block device, or it is not shown
    std::string layer;  // "RAID (raid0)", "device mapper (LVM, encryption, multipath)"; empty: a plain disk
    bool on_nvme = false;  // a disk at the bottom is an NVMe drive
    bool raid0 = false;    // the only layer is striping
};
// By its number; by the name of its device where the file system has a number of its own (btrfs).
BlockDevice block_device(const driver::MachineFiles& files, const Mount& mount);

}  // namespace sidestep::diagnose
