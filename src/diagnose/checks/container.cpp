// What containers and virtual machines keep from programs: the words. What looks for each cause is in
// container_limits.cpp and hidden_topology.cpp.
#include "diagnose/checks/looks.hpp"

namespace sidestep::diagnose {

namespace {

constexpr Check shm_small = {"shm-small",
                             CheckGroup::container,
                             "/dev/shm is small",
                             "`Bus error`, `unable to open shared memory object`, or NCCL's `Error while "
                             "creating shared memory segment`, as soon as "
                             "several processes work together.",
                             "The size of the file system at /dev/shm in /proc/self/mountinfo; without one "
                             "it is half of the memory. Below 1 GiB is small: "
                             "containers get 64 MiB where nothing is said.",
                             "Nothing while it lasts; a process that needs more dies.",
                             "Start the container with more shared memory, or with that of the host "
                             "(--ipc=host); in Kubernetes mount an emptyDir of medium "
                             "Memory there.",
                             "docker run --shm-size=16g IMAGE",
                             true,
                             "NVIDIA/nccl#290, #342; vllm-project/vllm#1710; pytorch/torchtitan#853; Linux, "
                             "Documentation/filesystems/tmpfs.rst.",
                             look_shm};

constexpr Check namespaces = {
    "namespaces",
    CheckGroup::container,
    "Processes of one job cannot see each other or each other's GPUs",
    "cudaIpcOpenMemHandle fails, NCCL uses the network between GPUs of one machine, UCX has no cuda_ipc.",
    "The IPC and PID namespaces of this process against the first ones of the machine, and the GPUs in the "
    "PCI tree, those "
    "that NVML gives, and those that CUDA shows. A container of its own with all GPUs in it is well; one "
    "with some of the GPUs is "
    "cut off from the others.",
    "Peer access between the processes: PCIe or network rates instead of NVLink.",
    "Run a job in one container with all of its GPUs, or let the containers share namespaces.",
    "docker run --gpus all --ipc=host --pid=host IMAGE",
    false,
    "NVIDIA/nccl#360, #155, #1647; pytorch/tensorpipe#266; openucx/ucx#4137; Linux, enum init_ns_ino.",
    look_namespaces};

constexpr Check pidfd_refused = {
    "pidfd-refused",
    CheckGroup::container,
    "Processes may not take file descriptors from each other",
    "PyTorch's symmetric memory fails with `pidfd_getfd: Operation not permitted`; other libraries that "
    "share GPU memory by file "
    "descriptors fall back to something slower.",
    "CAP_SYS_PTRACE among the effective capabilities, kernel.yama.ptrace_scope, and whether a system call "
    "filter is at work in a "
    "container (Docker's refuses pidfd_getfd without the capability). What a program allows by itself is not "
    "seen.",
    "Libraries that need it: kernels that read peer memory directly.",
    "Give the container the capability.",
    "docker run --cap-add SYS_PTRACE IMAGE",
    true,
    "pytorch/pytorch#130890; moby/moby#45622; Linux, Documentation/admin-guide/LSM/Yama.rst; pidfd_getfd(2).",
    look_pidfd};

constexpr Check vm_hides_switches = {
    "vm-hides-switches",
    CheckGroup::container,
    "The virtual machine hides the PCIe switches",
    "`nvidia-smi topo -m` shows PHB or SYS for everything that NVLink does not join; NCCL chooses far "
    "network cards and leaves "
    "GPUDirect RDMA off.",
    "The hypervisor's mark in the processor's flags, and a PCI tree without switches above the GPUs; "
    "numa_node is often -1 too. Or a switch whose link is slower than all below it: QEMU's x3130 and "
    "VMware's "
    "make it up. A topology file that is given to NCCL makes up for it.",
    "Nothing between GPUs that NVLink joins. Network traffic of several GPUs over far cards: 3 to 58 of 489 "
    "GB/s were reported for "
    "jobs on such machines.",
    "Describe the real machine to NCCL with a topology file, named in NCCL_TOPO_FILE. Cloud vendors ship one "
    "with their images; "
    "otherwise write what is visible and put the devices that share a switch of the host below one `<pci>` "
    "element each. "
    "`sidestep topo --machine ./topology.xml --as MODEL` shows the file with the NVLinks of MODEL, a "
    "built-in machine (docs/machines.md) that is wired "
    "like the host; Sidestep's routes take it with the same option --machine.",
    "sidestep topo --format xml --output topology.xml && export NCCL_TOPO_FILE=$PWD/topology.xml",
    false,
    "NVIDIA/nccl-tests#256, #380; NVIDIA/nccl#1674, #1843, #1464.",
    look_hidden_switches};

constexpr Check nccl_topo_file = {
    "nccl-topo-file",
    CheckGroup::container,
    "NCCL's topology file does not fit",
    "NCCL warns and goes on without the file, stops with `too many XML nodes`, or chooses cards that are far "
    "away.",
    "NCCL_TOPO_FILE in the environment or NCCL's files of settings, else "
    "/var/run/nvidia-topologyd/virtualTopology.xml: whether the file is "
    "there, can be read, has at most 256 elements, and names the GPUs of this machine.",
    "The routes that the file was meant to show.",
    "Write the file anew from this machine, or take the variable away.",
    "sidestep topo --format xml --output topology.xml && export NCCL_TOPO_FILE=$PWD/topology.xml",
    false,
    "aws/aws-ofi-nccl, pull request 1226; NVIDIA/nccl#1182; NCCL user guide, NCCL_TOPO_FILE; NCCL, "
    "src/graph/topo.h.",
    look_topology_file};

}  // namespace

std::vector<Check> container_checks() {
    return {shm_small, namespaces, pidfd_refused, vm_hides_switches, nccl_topo_file};
}

}  // namespace sidestep::diagnose
