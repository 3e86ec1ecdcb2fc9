// What the host does to every path: the words. What looks for each cause is in host_devices.cpp,
// pcie_links.cpp, process_limits.cpp and environment_switches.cpp.
#include "diagnose/checks/looks.hpp"

namespace sidestep::diagnose {

namespace {

constexpr Check iommu_translating = {
    "iommu-translating",
    CheckGroup::host,
    "The IOMMU translates the DMA of GPUs",
    "Copies between devices hang, arrive wrong or are slow; NCCL stops at its first collective.",
    "/sys/kernel/iommu_groups/*/type, for the groups of the GPUs, RDMA cards and NVMe drives: DMA and "
    "DMA-FQ translate, identity passes through. Where /sys does not show groups, the kernel's command line. "
    "Inside a virtual machine the host's IOMMU is not seen. Where GPUs reach each other over NVLink alone "
    "and there is no RDMA card and no NVMe drive, nothing depends on it.",
    "Every peer transfer goes through the host bridge and its translation tables.",
    "Let the IOMMU pass DMA through (`iommu=pt`), or switch it off in the BIOS, then start the machine "
    "again. The command is for Debian and Ubuntu; on Red Hat and its kin: grubby --update-kernel=ALL "
    "--args=iommu=pt.",
    "echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX iommu=pt\"' > /etc/default/grub.d/iommu-pt.cfg && "
    "update-grub",
    true,
    "NVIDIA/nccl#257, #489; ROCm/rccl#1129; tinygrad/open-gpu-kernel-modules#18; NCCL user guide, "
    "troubleshooting.",
    look_iommu,
};

constexpr Check bar1_small = {
    "bar1-small",
    CheckGroup::host,
    "The PCIe window into GPU memory (BAR1) is smaller than the memory",
    "Registering GPU memory for RDMA fails with ENOMEM, gdrcopy cannot map, cuFile falls back to copies "
    "through the host.",
    "BAR1 by NVML, or line 2 of the GPU's `resource` file, against the GPU's memory; `resource1_resize` for "
    "what could be had. How much of it is in use is not looked at.",
    "Direct transfers of network cards and drives beyond the window.",
    "Switch on Above 4G Decoding and Resizable BAR in the BIOS, where the product offers it "
    "(`resource1_resize`); otherwise register smaller pieces. Workstation cards may have a display mode "
    "that shrinks the window: NVIDIA's displaymodeselector changes it.",
    "nvidia-smi -q -d MEMORY",
    false,
    "Mellanox/nv_peer_memory#101 (T4: 256 MiB); NVIDIA/gdrcopy#301, #193; kvcache-ai/Mooncake#983.",
    look_bar1,
    true,
};

constexpr Check memlock = {
    "memlock",
    CheckGroup::host,
    "This process may lock too little memory for RDMA",
    "ibv_reg_mr and ibv_create_cq fail with ENOMEM.",
    "Max locked memory in /proc/self/limits, and CAP_IPC_LOCK in /proc/self/status, which lifts the limit. "
    "Only where there is an RDMA card.",
    "RDMA, for all buffers beyond the limit.",
    "Lift the limit: for logins as in the command; for services with LimitMEMLOCK=infinity in the unit; for "
    "containers with docker run --ulimit memlock=-1; under Slurm with "
    "PropagateResourceLimitsExcept=MEMLOCK.",
    "printf '* soft memlock unlimited\\n* hard memlock unlimited\\n' > /etc/security/limits.d/rdma.conf",
    true,
    "NVIDIA/nccl-tests#206; kvcache-ai/Mooncake#1382.",
    look_memlock,
};

constexpr Check numa_binding = {
    "numa-binding",
    CheckGroup::host,
    "This process is bound away from its GPUs",
    "Copies from and to the host run at a third to a half of the usual rate; small copies take longer.",
    "Cpus_allowed_list and Mems_allowed_list in /proc/self/status against the CPUs of each GPU's NUMA node, "
    "for the GPUs that CUDA_VISIBLE_DEVICES leaves. A process that is not bound passes: its threads may go "
    "anywhere.",
    "What the link between the sockets has less than the GPU's own, and more when several GPUs share it.",
    "Bind each process to the node of its GPU. In containers this needs --cap-add SYS_NICE, and a "
    "--cpuset-cpus that holds the right CPUs.",
    "numactl --cpunodebind=NODE --membind=NODE PROGRAM",
    false,
    "mpicbg-scicomp/gearshifft#82; NVIDIA/nccl#1435.",
    look_numa,
};

constexpr Check pcie_trained_down = {
    "pcie-trained-down",
    CheckGroup::host,
    "A PCIe link runs below what both of its ends can do",
    "Copies from and to the host, or to a network card or drive, run at a half or a quarter of the usual "
    "rate.",
    "current_link_width and current_link_speed against max_link_width and max_link_speed of both ends, for "
    "every link from a GPU, RDMA card or NVMe drive up to the host bridge; NVML where /sys hides them. Too "
    "few lanes always count. GPUs slow their links down while they idle, so a low speed of theirs alone is "
    "left open. A card with more lanes than its slot is no fault, and mentioned.",
    "The difference between the two rates, for everything that takes this link.",
    "Seat the card again, try it without riser or in another slot, and look in the BIOS for a fixed "
    "generation or split lanes of that slot. A replay counter that rises speaks for a bad contact.",
    "lspci -vv | grep -E '^[0-9a-f]|LnkCap:|LnkSta:'",
    true,
    "Syllo/nvtop#6; tinygrad/open-gpu-kernel-modules#6; open-mpi/hwloc#653 (idle GPUs).",
    look_pcie_links,
    true,
};

constexpr Check environment_switch = {
    "environment-switch",
    CheckGroup::host,
    "A variable switches a fast path off",
    "Slow everywhere, on a machine that has nothing wrong; or slow in one shell and fast in another.",
    "The variables this process was started with (/proc/self/environ), and NCCL's files of settings (the one "
    "that NCCL_CONF_FILE names or else ~/.nccl.conf, and /etc/nccl.conf): those of NCCL, UCX, NVSHMEM, "
    "cuFile, CUDA and PyTorch that take a path away. Those that choose among paths are "
    "mentioned as notes. What switches off a path that this machine does not have, such as RDMA without a "
    "card or peer access that the driver refuses, does not count; nor does peer access switched off where a "
    "probe found wrong data.",
    "The path that is switched off.",
    "Unset them; look for where they come from: the shell's start files, the launcher, the container's "
    "image, the scheduler's prolog. A setting that was once needed to get around a defect may not be needed "
    "any more.",
    "unset NAME",
    false,
    "NVIDIA/nccl-tests#228 (NCCL_P2P_LEVEL=LOC); NVIDIA/nccl#277; the lists of environment variables of "
    "NCCL, UCX, NVSHMEM, cuFile, CUDA and PyTorch.",
    look_environment,
};

constexpr Check ipc_limits = {
    "ipc-limits",
    CheckGroup::host,
    "Limits and rules take shared memory, files or stacks away from running programs",
    "Programs lose their shared memory when somebody logs out, fail with `Too many open files`, or crash "
    "while they set up communication.",
    "RemoveIPC in systemd-logind's configuration, for users that log in; the limits of open files (fewer "
    "than 1,024) and of the stack (unlimited, which makes glibc give threads 2 MiB) in /proc/self/limits. "
    "Where RemoveIPC is not set, distributions differ in what holds; that is mentioned and no alarm.",
    "Nothing while it works; then the whole program.",
    "Set RemoveIPC=no in /etc/systemd/logind.conf; raise the limit of open files; limit the stack to 8 MiB.",
    "mkdir -p /etc/systemd/logind.conf.d && printf '[Login]\\nRemoveIPC=no\\n' > "
    "/etc/systemd/logind.conf.d/ipc.conf && systemctl restart systemd-logind",
    true,
    "NCCL user guide, troubleshooting (systemd, stack size); logind.conf(5).",
    look_ipc_limits,
};

}  // namespace

std::vector<Check> host_checks() {
    return {iommu_translating, bar1_small,         memlock,   numa_binding,
            pcie_trained_down, environment_switch, ipc_limits};
}

}  // namespace sidestep::diagnose
