// Versions that do not fit together or are too old: the words. What looks for each cause is in
// driver_versions.cpp and system_versions.cpp.
#include "diagnose/checks/looks.hpp"

namespace sidestep::diagnose {

namespace {

constexpr Check driver_mismatch = {
    "driver-mismatch",
    CheckGroup::versions,
    "The NVIDIA driver's kernel module and libraries do not fit",
    "`Failed to initialize NVML: Driver/library version mismatch`, CUDA error 803, or no GPU at all.",
    "The kernel module's version in /proc/driver/nvidia/version against that of NVML, whether NVML starts, "
    "and what cuInit answers. Where "
    "the PCI tree has an NVIDIA GPU, a driver is expected.",
    "All of the GPUs.",
    "After an upgrade of the driver, load the new kernel module: stop what uses the GPUs and load it again. "
    "A "
    "restart of the machine does the same.",
    "fuser -v /dev/nvidia*; modprobe -r nvidia_drm nvidia_modeset nvidia_uvm nvidia && modprobe nvidia",
    true,
    "NVIDIA driver README, troubleshooting; CUDA driver API, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH.",
    look_driver_mismatch,
    true};

constexpr Check fabric_manager_version = {
    "fabric-manager-version",
    CheckGroup::versions,
    "The fabric manager is not of the driver's version",
    "CUDA error 802 (system not yet initialized); the log of nvidia-fabricmanager speaks of a version "
    "mismatch.",
    "Only on machines whose NVSwitches are theirs. A fabric that is up proves the version, since the fabric "
    "manager refuses another "
    "driver. Otherwise the installed package (Debian's shows its branch) is compared with "
    "/proc/driver/nvidia/version; nothing is run.",
    "All of NVLink, and with it CUDA on these machines.",
    "Install the fabric manager in exactly the driver's version and start it.",
    "systemctl restart nvidia-fabricmanager",
    true,
    "pytorch/pytorch#35710; gpustack/gpustack#4154; NVIDIA/gpu-operator#1043, #610; NVIDIA Fabric Manager "
    "user guide.",
    look_fabric_manager_version};

constexpr Check cuda_driver_old = {
    "cuda-driver-old",
    CheckGroup::versions,
    "The driver is too old for what Sidestep uses",
    "`libcuda.so.1 has no function ...`, or CUDA error 35 (driver older than the runtime).",
    "cuDriverGetVersion: the newest CUDA that the driver speaks.",
    "The GPU backend: GPUs are not used.",
    "Install a driver of CUDA 12.4 or newer (550.54 or newer).",
    "apt-get install nvidia-driver-580-server-open",
    true,
    "CUDA toolkit release notes, table of driver versions; src/driver/cuda.hpp.",
    look_cuda_driver};

constexpr Check closed_driver = {
    "closed-driver",
    CheckGroup::versions,
    "The closed kernel modules are loaded",
    "Attribute DMA_BUF_SUPPORTED is 0, nvidia-fs does not build or load, `NVMe P2PDMA: Unsupported`.",
    "The words `Open Kernel Module` in /proc/driver/nvidia/version. GPUs before Turing work with the closed "
    "ones only, and GPUs without GPUDirect RDMA "
    "(GeForce) lose nothing by them.",
    "dma-buf for network cards, nvidia-fs from 2.17.5, and P2PDMA mode; nvidia-peermem works with both.",
    "Install the package of the open kernel modules of the same version, and reboot. GPUs from Blackwell on "
    "work with the open ones only.",
    "apt-get install nvidia-open",
    true,
    "NVIDIA/open-gpu-kernel-modules, README; NVIDIA GPUDirect Storage release notes; NVIDIA driver README, "
    "open kernel modules.",
    look_driver_kind};

constexpr Check kernel_old = {
    "kernel-old",
    CheckGroup::versions,
    "The kernel is too old for direct ways to GPU memory",
    "ibv_reg_dmabuf_mr fails with `Operation not supported`; gdscheck prints `NVMe P2PDMA: Unsupported`.",
    "/proc/sys/kernel/osrelease against 5.12 (dma-buf in RDMA drivers; only where there are cards and none "
    "was seen to register) "
    "and 6.2 (peer-to-peer DMA for programs; only where there are NVMe drives, no nvidia-fs, and Red Hat "
    "brought nothing back).",
    "GPUDirect RDMA without nvidia-peermem, and GPUDirect Storage without nvidia-fs.",
    "Boot a newer kernel, or use the modules that do the same: nvidia-peermem, nvidia-fs.",
    "apt-get install linux-generic-hwe-$(. /etc/os-release && echo $VERSION_ID)",
    true,
    "Linux 5.12 (RDMA/uverbs: user dma-buf memory regions) and 6.2 (userspace P2PDMA); NVIDIA GPUDirect "
    "Storage troubleshooting guide, "
    "section 14; NVIDIA/nccl#778.",
    look_kernel};

constexpr Check dma_buf_gpu = {
    "dma-buf-gpu",
    CheckGroup::versions,
    "The GPU does not hand its memory out as dma-buf",
    "cuMemGetHandleForAddressRange fails; NCCL and UCX need nvidia-peermem for GPUDirect RDMA.",
    "The CUDA attribute DMA_BUF_SUPPORTED of every GPU. It speaks for the GPU alone: the network card's side "
    "is dma-buf-nic.",
    "GPUDirect RDMA, unless nvidia-peermem is loaded.",
    "Use the open kernel modules and a kernel of 5.12 or newer; or load nvidia-peermem.",
    "apt-get install nvidia-open",
    true,
    "NVIDIA/nccl#778; ofiwg/libfabric#12409, #10445; CUDA driver API, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED.",
    look_dma_buf_gpu};

constexpr Check libibverbs_old = {
    "libibverbs-old",
    CheckGroup::versions,
    "libibverbs is too old for dma-buf",
    "`undefined symbol: ibv_reg_dmabuf_mr`, or programs that silently do without.",
    "Whether the library has the function ibv_reg_dmabuf_mr, which came with rdma-core 34.",
    "GPUDirect RDMA, unless nvidia-peermem is loaded.",
    "Install rdma-core 34 or newer, or the one of MLNX_OFED or DOCA.",
    "apt-get install libibverbs1 ibverbs-providers",
    true,
    "rdma-core, debian/libibverbs1.symbols (IBVERBS_1.12 of version 34); NVIDIA/nccl#778.",
    look_libibverbs};

}  // namespace

std::vector<Check> version_checks() {
    return {driver_mismatch, fabric_manager_version, cuda_driver_old, closed_driver, kernel_old,
            dma_buf_gpu,     libibverbs_old};
}

}  // namespace sidestep::diagnose
