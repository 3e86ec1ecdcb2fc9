// What keeps two GPUs from exchanging bytes directly and at full speed: the words. What looks for each cause
// is in access_control.cpp, peer_refusals.cpp, peer_trials.cpp, nvlink_fabric.cpp and
// environment_switches.cpp.
#include "diagnose/checks/looks.hpp"

namespace sidestep::diagnose {

namespace {

constexpr Check acs_redirect = {
    "acs-redirect",
    CheckGroup::gpu_gpu,
    "PCIe access control sends peer traffic up to the host bridge",
    "Copies between two GPUs, or between a GPU and a network card or drive, below one PCIe switch hang, or "
    "run at half the speed as soon as both directions or several devices are busy.",
    "With root: the ACS control register (extended capability 0x000d) of the two ports at which the ways to "
    "the devices part; request redirect, completion redirect and upstream forwarding count. Without root "
    "those bytes are hidden, and the IOMMU groups speak instead: a device in another group than the port "
    "above it is isolated by access control. One group for all of them, or an IOMMU that is off, says "
    "nothing. Pairs that NVLink joins do not matter and are left out.",
    "Traffic that the switch could turn around shares the link to the host, once up and once down: half of "
    "the rate where both directions are busy, less with more devices below the switch.",
    "Switch the redirection off at the ports that the evidence names. The setting is lost with a reboot: to "
    "keep it, switch ACS off in the BIOS, or give the kernel `pci=disable_acs_redir=PORT;PORT`. Do not do "
    "so on a host whose virtual machines must be kept apart: isolation needs it.",
    "setpci -s PORT ECAP_ACS+0x6.w=0000",
    true,
    "NVIDIA/nccl#304, #606, #523, #629, #2079; NVIDIA/nccl-tests#252; NCCL user guide, troubleshooting (PCI "
    "access control services); PCI Express base specification, access control services.",
    look_acs_redirect,
    true,
};

constexpr Check geforce = {
    "geforce-no-p2p",
    CheckGroup::gpu_gpu,
    "The driver gives these products no peer access",
    "cudaDeviceCanAccessPeer answers 0, `nvidia-smi topo -p2p r` shows GNS or CNS; some programs hang at "
    "start.",
    "nvmlDeviceGetP2PStatus of every pair, both ways, and the names of the GPUs: status 2 (GPU not "
    "supported), or 1 (chipset not supported) between GeForce cards.",
    "Copies take two steps through host memory: the PCIe rate at best, and less where several pairs do so "
    "at once.",
    "No setting changes that. Copy through pinned host memory, which Sidestep does by itself; where NCCL "
    "hangs, keep it from trying. Two GPUs of one data centre or workstation product have peer access.",
    "export NCCL_P2P_DISABLE=1",
    false,
    "NVIDIA/nccl#1127, #1637; OpenRLHF/OpenRLHF#1064; huggingface/accelerate#2328; p2p_caps.c of NVIDIA's "
    "open GPU kernel modules 595.45.04.",
    look_geforce,
    true,
};

constexpr Check chipset = {
    "p2p-chipset",
    CheckGroup::gpu_gpu,
    "The chipset between two GPUs is not trusted with peer traffic",
    "cudaDeviceCanAccessPeer answers 0 for GPUs at different sockets or root complexes; `nvidia-smi topo "
    "-p2p r` shows CNS or TNS.",
    "nvmlDeviceGetP2PStatus of every pair, both ways: status 1 (chipset not supported), or 3 (the GPUs sit "
    "below different root ports of an Intel I/O hub).",
    "Copies take two steps through host memory: the PCIe rate at best, and less where several pairs do so "
    "at once.",
    "Move both GPUs below one PCIe switch, or to slots of one socket and root complex; let the GPUs that "
    "exchange most be neighbours. Otherwise copy through pinned host memory, which Sidestep does by itself. "
    "In a virtual machine the made-up chipset can be the reason: ask for a machine type with PCIe ports.",
    "nvidia-smi topo -m",
    false,
    "NVIDIA/nccl#175, #1358; NVIDIA/cuda-samples#284; p2p_caps.c of NVIDIA's open GPU kernel modules "
    "595.45.04.",
    look_chipset,
    true,
};

constexpr Check peers_refused = {
    "p2p-refused",
    CheckGroup::gpu_gpu,
    "The driver refuses peer access for another reason",
    "cudaDeviceCanAccessPeer answers 0; `nvidia-smi topo -p2p r` shows DR, NS or U.",
    "nvmlDeviceGetP2PStatus of every pair, both ways: status 4 (disabled by a registry key of the driver), "
    "5 (not supported) or 6 (unknown). Pairs that mig-on, confidential-computing or fabric-manager explain "
    "do not count here.",
    "Copies take two steps through host memory, also where NVLink joins the GPUs.",
    "Look at what `nvidia-smi topo -p2p` says for reads, writes and NVLink; at the log of the driver since "
    "the machine was started; and, in a virtual machine, at how its host joins the GPUs.",
    "nvidia-smi topo -p2p r; nvidia-smi topo -p2p n; journalctl -k -g NVRM",
    false,
    "NVML's reference (nvmlGpuP2PStatus_t); p2p_caps.c of NVIDIA's open GPU kernel modules 595.45.04.",
    look_refused,
    true,
};

constexpr Check wrong_data = {
    "p2p-wrong-data",
    CheckGroup::gpu_gpu,
    "Peer access is allowed, and the bytes that arrive are wrong",
    "Results that are not numbers or differ from run to run, with more than one GPU only; no error "
    "anywhere.",
    "A trial: `sidestep doctor --probe` writes a pattern over every direct pair, each way, by each engine, "
    "and compares every byte. Without it the check does not know.",
    "The direct path cannot be used at all until this is cured.",
    "Switch off what stands between the GPUs, then probe again: the IOMMU (`iommu=pt`), access control "
    "(acs-redirect), or in the BIOS both; with a patched driver that forces peer access, go back to the "
    "unpatched one. Until then keep programs off the direct path: a saved probe does so for Sidestep, "
    "NCCL_P2P_DISABLE=1 for NCCL.",
    "sidestep doctor --probe --save FILE; export SIDESTEP_PROBE_FILE=FILE NCCL_P2P_DISABLE=1",
    false,
    "NVIDIA/open-gpu-kernel-modules#1257; JuliaGPU/CUDA.jl#3112; FIDESlib#28; unslothai/unsloth#10613; "
    "aikitoria/open-gpu-kernel-modules#34.",
    look_wrong_data,
    true,
};

constexpr Check slow_peers = {
    "p2p-slow",
    CheckGroup::gpu_gpu,
    "The direct path is slower than it should be, or than host memory",
    "Peer access is on, and copies between GPUs are slow.",
    "A trial: `sidestep doctor --probe` times every direct pair, each way, by each engine, and the way "
    "through host memory. Slower than host memory fails, below 80 % of what the topology lets expect is a "
    "warning. Copies of less than 32 MiB are not judged.",
    "The difference between the rates in the evidence.",
    "Look at acs-redirect, iommu-translating and pcie-trained-down: these make a direct path slow. Until it "
    "is cured let programs go through host memory: a saved probe does so for Sidestep, NCCL_P2P_LEVEL for "
    "NCCL.",
    "sidestep doctor --probe --save FILE; export SIDESTEP_PROBE_FILE=FILE",
    false,
    "NVIDIA/nccl#814; stas00/ml-engineering#1; tinygrad/open-gpu-kernel-modules#17.",
    look_slow_peers,
    true,
};

constexpr Check fabric_manager = {
    "fabric-manager",
    CheckGroup::gpu_gpu,
    "The NVSwitches are not ready: Fabric Manager does not run",
    "CUDA fails with error 802 (system not yet initialized), or sees no peer access although NVSwitches "
    "join the GPUs.",
    "What cuInit returns; nvmlDeviceGetGpuFabricInfoV of every GPU: its state, the result of its "
    "registration, and its health. GPUs before Hopper tell no state, so cuInit speaks for them. Without "
    "NVSwitches no Fabric Manager is needed.",
    "All of NVLink; on most of these machines CUDA does not start at all.",
    "Install and start the Fabric Manager of exactly the driver's version (and nvlsm, the subnet manager, "
    "with the NVSwitches of Blackwell). In a virtual machine it is the host, or a service machine of it, "
    "that runs it and has to join the guest's GPUs into one partition.",
    "systemctl enable --now nvidia-fabricmanager",
    true,
    "pytorch/pytorch#35710; gpustack/gpustack#4154; NVIDIA/gpu-operator#1043, #610; Fabric Manager user "
    "guide; nvml.h (nvmlGpuFabricInfo_v2_t).",
    look_fabric,
    true,
};

constexpr Check nvlinks_inactive = {
    "nvlinks-inactive",
    CheckGroup::gpu_gpu,
    "NVLinks that this product has are down",
    "`nvidia-smi topo -m` shows a smaller NV number than this product has, or PHB; collectives run at half "
    "speed or less.",
    "The state of every NVLink by NVML, against the published number of the product: 18 for H100, H200, "
    "H20, B200 and GB200, 12 for A100, 8 for A800 and H800, 6 for V100. PCIe cards without a bridge are as "
    "they were bought; of products that are not in the list only a part that is down counts. In a virtual "
    "machine some links of a V100 may lead to other guests. With a single GPU, MIG or confidential "
    "computing nothing is expected.",
    "The rate of every link that is down: 25 GB/s a direction up to H200, 50 GB/s with Blackwell.",
    "See the driver's log for Xid 74 (NVLink error). Reset the GPU, which stops what runs there; seat it "
    "again or fit the bridges properly; links that stay down are a case for the vendor. With NVSwitches see "
    "fabric-manager first.",
    "nvidia-smi nvlink -s; nvidia-smi nvlink -e; journalctl -k -g 'Xid.*74|NVLink'",
    false,
    "Azure/azhpc-diagnostics#73; Azure/azurehpc-health-checks#162; NVIDIA/nccl#2329, #557; NVIDIA/DCGM#198; "
    "data sheets of the products; deepseek-ai/DeepSeek-V3#479 (H800).",
    look_nvlinks,
    true,
};

constexpr Check imex_missing = {
    "imex-missing",
    CheckGroup::gpu_gpu,
    "No IMEX channel: NVLink to other machines cannot be used",
    "Importing a fabric handle of another machine fails, and NCCL falls back from multi-node NVLink to the "
    "network.",
    "Whether NVML names a cluster for the GPUs' fabric; then the devices "
    "/dev/nvidia-caps-imex-channels/channel*, and whether this process may open one; and whether the GPUs "
    "of this machine are in one clique. Whether the IMEX services of all machines see each other is not "
    "looked at: `nvidia-imex-ctl -N` tells.",
    "NVLink between machines: what is left is the network.",
    "Start nvidia-imex on every machine of the fabric, with the addresses of all of them in "
    "/etc/nvidia-imex/nodes_config.cfg, and let the driver make a channel (NVreg_CreateImexChannel0=1).",
    "echo 'options nvidia NVreg_CreateImexChannel0=1' > /etc/modprobe.d/nvidia-imex.conf && systemctl "
    "enable --now nvidia-imex && nvidia-imex-ctl -N",
    true,
    "NVIDIA/nvbandwidth#39, #46; microsoft/mscclpp#467; NVIDIA/nccl#1483, #1632; "
    "NVIDIA/k8s-dra-driver-gpu#294; IMEX service guide.",
    look_imex,
};

constexpr Check vmm_ipc = {
    "vmm-ipc",
    CheckGroup::gpu_gpu,
    "The allocator gives memory that other processes cannot open",
    "cudaIpcGetMemHandle fails with an invalid value, or libraries fall back silently: 0.3 instead of 200 "
    "GB/s between processes.",
    "PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF of this process: expandable segments and the "
    "asynchronous backend make memory by virtual memory management or from pools, which old IPC handles "
    "cannot name. What a program sets itself is not seen.",
    "Between processes everything may go through host memory, or worse.",
    "Take the option out for programs that share GPU memory between processes, or let them share by file "
    "descriptors or fabric handles; PyTorch can switch expandable segments off for a single pool.",
    "unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF",
    false,
    "ai-dynamo/nixl#1754 (0.3 instead of 200 GB/s); openucx/ucx#11548; vllm-project/vllm#42609; "
    "pytorch/pytorch#165685.",
    look_vmm_ipc,
};

constexpr Check mig_on = {
    "mig-on",
    CheckGroup::gpu_gpu,
    "MIG is on: no peer access, no NVLink",
    "Instances of a GPU see no peer; cudaDeviceCanAccessPeer answers 0, NCCL refuses or goes through host "
    "memory.",
    "nvmlDeviceGetMigMode of every GPU.",
    "All of NVLink and peer access of these GPUs; each instance has a share of the copy engines only.",
    "Switch MIG off on GPUs that are to work together. That destroys the instances, so stop what runs there "
    "first.",
    "nvidia-smi -i GPU -mig 0",
    true,
    "NVIDIA/nccl#1716, #431; NVIDIA/k8s-device-plugin#296; MIG user guide; p2p_caps.c of NVIDIA's open GPU "
    "kernel modules 595.45.04.",
    look_mig,
    true,
};

constexpr Check confidential_computing = {
    "confidential-computing",
    CheckGroup::gpu_gpu,
    "Confidential computing takes peer access away",
    "No peer access, slow copies from and to the host.",
    "nvmlSystemGetConfComputeState.",
    "Peer access between GPUs; and copies from and to the host are encrypted through buffers of their own.",
    "This is how the mode works: on Hopper there is no way around it, except that the protected PCIe mode "
    "covers all eight GPUs of a board with their NVSwitches. Switch the mode off where secrecy from the "
    "host is not needed.",
    "nvidia-smi conf-compute -f",
    false,
    "NVIDIA/nvtrust#22, #24, #109.",
    look_confidential,
    true,
};

}  // namespace

std::vector<Check> gpu_gpu_checks() {
    return {acs_redirect, geforce,    chipset,        peers_refused,
            wrong_data,   slow_peers, fabric_manager, nvlinks_inactive,
            imex_missing, vmm_ipc,    mig_on,         confidential_computing};
}

}  // namespace sidestep::diagnose
