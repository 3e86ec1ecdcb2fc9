// What keeps GPUs and drives from exchanging bytes directly and at full speed: the words. What looks for each
// cause is in direct_storage.cpp and file_systems.cpp.
#include "diagnose/checks/looks.hpp"

namespace sidestep::diagnose {

namespace {

constexpr Check no_nvme = {
    "no-nvme",
    CheckGroup::gpu_storage,
    "There is no NVMe drive",
    "Files are read at the rate of a network or virtual disk, and GPUDirect Storage has nothing to work "
    "with.",
    "/sys/class/nvme. Virtual machines often have virtio disks only, which are files on the host.",
    "The direct way of files to GPU memory, about 7 GB/s a drive of PCIe gen4 x4 and 14 GB/s of gen5 x4.",
    "For files near the GPUs use a machine type with local NVMe drives, or pass a drive through to the "
    "virtual machine. What is read more than once is quickest from "
    "the page "
    "cache, which Sidestep uses.",
    "lsblk -d -o NAME,TRAN,SIZE,MODEL",
    false,
    "NVIDIA GPUDirect Storage design guide; Linux, Documentation/ABI/testing/sysfs-nvme.",
    look_nvme};

constexpr Check nvidia_fs = {
    "nvidia-fs",
    CheckGroup::gpu_storage,
    "cuFile has no kernel module to work with",
    "GPUDirect Storage runs at the speed of plain reads, without a word: cuFile's calls succeed and copy "
    "through host "
    "memory.",
    "/proc/driver/nvidia-fs (version, modules, stats) and /sys/module/nvidia_fs; the module counts as useful "
    "for NVMe "
    "where its list of modules has a line `nvme`. P2PDMA mode does without the module.",
    "Reads through host memory: two copies instead of one, and processor time for them.",
    "Install and load nvidia-fs and the NVMe driver of MLNX_OFED or DOCA, which works with it; or set up "
    "P2PDMA mode on a "
    "kernel of 6.2 or newer (see p2pdma-mode). Sidestep's own staged reads need neither.",
    "apt-get install nvidia-gds && modprobe nvidia-fs",
    true,
    "NVIDIA/gds-nvidia-fs#31, #78, #72, #87; NVIDIA GPUDirect Storage troubleshooting guide; nvfs-proc.c of "
    "NVIDIA/gds-nvidia-fs.",
    look_nvidia_fs};

constexpr Check p2pdma_mode = {
    "p2pdma-mode",
    CheckGroup::gpu_storage,
    "The kernel's peer-to-peer DMA for NVMe is off or half set up",
    "gdscheck prints `NVMe P2PDMA: Unsupported`; cuFile logs `Failed to get cuda p2p device address`, or "
    "error 5008.",
    "Four conditions: the kernel's symbol p2pdma_pgmap_ops or CONFIG_PCI_P2PDMA, and its version; "
    "nvme_core's parameter multipath; the registry keys RMForceStaticBar1 and RmForceDisableIomapWC of the "
    "NVIDIA driver, "
    "or the peer memory it gave the kernel; use_pci_p2pdma in cufile.json. On Grace the second and third are "
    "not "
    "needed. Not looked at: the open kernel modules (see closed-driver), BAR1 (see bar1-small), protection "
    "information "
    "on the drive. Reports say that kernels from 6.15 need driver 595 or newer.",
    "The direct way between NVMe drives and GPU memory, where nvidia-fs does not offer one.",
    "Meet all four conditions, then read a file with cuFile and look at its statistics. Where nvidia-fs "
    "works, nothing "
    "has to be done.",
    "cat /sys/module/nvme_core/parameters/multipath; grep RegistryDwords /proc/driver/nvidia/params",
    true,
    "NVIDIA/gds-nvidia-fs#75; LMCache/LMCache#2539; heterodb/pg-strom#913; NVIDIA GPUDirect Storage "
    "troubleshooting "
    "guide, section 14 (NVMe P2PDMA).",
    look_p2pdma_mode};

constexpr Check file_system = {
    "file-system",
    CheckGroup::gpu_storage,
    "Files lie where no direct way reaches them",
    "cuFileHandleRegister fails (5030 and others), O_DIRECT fails with `Invalid argument`, or reads are no "
    "faster than "
    "plain ones.",
    "/proc/self/mountinfo and the block devices below each mount on an NVMe drive: ext4 in ordered mode and "
    "XFS, straight on "
    "a drive, or on RAID 0 with nvidia-fs, can take the direct way; RAID otherwise, LVM, encryption, "
    "overlays and tmpfs "
    "cannot. The current folder is named too. Network file systems with a direct way of their own are taken "
    "to be well.",
    "The direct way for the files that lie there.",
    "Keep the files on XFS or ext4 (data=ordered) straight on an NVMe drive; in a container, on a folder of "
    "the host and not "
    "in the container's own layers.",
    "findmnt -o TARGET,SOURCE,FSTYPE,OPTIONS",
    true,
    "NVIDIA/DALI#3972; moby/moby#12170; scylladb/seastar#3518; NVIDIA/gds-nvidia-fs#38; LMCache/LMCache#795; "
    "NVIDIA "
    "GPUDirect Storage release notes, support matrix; Linux, Documentation/admin-guide/ext4.rst.",
    look_file_system};

constexpr Check no_udev = {
    "no-udev",
    CheckGroup::gpu_storage,
    "There is no udev database",
    "cuFileHandleRegister returns 5027, and cufile.log says `udev property not found: ID_FS_USAGE`, also in "
    "compatibility "
    "mode; torch.cuda.gds fails for the same reason.",
    "/run/udev/data, and in it an entry for the block device of every mounted ext4 and XFS file system.",
    "Everything of cuFile: not even its copies through host memory work.",
    "Install and start udev (package udev, or systemd-udevd of systemd), and let it look at the block "
    "devices. Or run the program with `sidestep run -- PROGRAM`, whose cuFile asks udev nothing.",
    "apt-get install udev && systemctl start systemd-udevd && udevadm trigger --subsystem-match=block",
    true,
    "rapidsai/kvikio#11 and KvikIO's documentation (running in containers); rapidsai/cudf#9861; seen with "
    "cuFile 1.15 on "
    "a virtual machine without udev.",
    look_udev};

constexpr Check nvme_far = {
    "nvme-far",
    CheckGroup::gpu_storage,
    "A GPU has no NVMe drive on its side of the machine",
    "GPUDirect Storage is slower than a read through host memory for some GPUs.",
    "The class of each GPU and its nearest NVMe drive in the PCI tree; SYS, across sockets, is far. In a "
    "virtual machine "
    "without PCIe switches the tree says nothing.",
    "Peer traffic between sockets shares their link with everything else and runs at a fraction of the "
    "drive's rate on "
    "many machines.",
    "Keep the files of a GPU on a drive of its socket, or let them go through host memory, which Sidestep's "
    "routes do by "
    "price.",
    "sidestep topo",
    false,
    "NVIDIA/gds-nvidia-fs#70, #30; NVIDIA GPUDirect Storage configuration guide (PCIe device affinity).",
    look_nvme_far};

}  // namespace

std::vector<Check> gpu_storage_checks() {
    return {no_nvme, nvidia_fs, p2pdma_mode, file_system, no_udev, nvme_far};
}

}  // namespace sidestep::diagnose
