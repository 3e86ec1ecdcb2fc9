// What keeps GPUs and network cards from exchanging bytes directly and at full speed: the words. What looks
// for each cause is in rdma_devices.cpp, gpu_registration.cpp and rdma_networks.cpp.
#include "diagnose/checks/looks.hpp"

namespace sidestep::diagnose {

namespace {

constexpr Check no_rdma_card = {
    "no-rdma-card",
    CheckGroup::gpu_nic,
    "There is no RDMA card, or its driver is not loaded",
    "NCCL logs `NET/Socket`, UCX uses tcp; transfers between machines stay at a few GB/s and keep processors "
    "busy.",
    "/sys/class/infiniband lists the cards that a driver has taken; PCI classes 0x0207 (InfiniBand) and "
    "0x0200 of "
    "Mellanox show cards that wait for one. In a container the card may only be hidden. A sandbox without "
    "/sys/class shows neither.",
    "Everything that goes to other machines: an RDMA card for each GPU carries about 48 GB/s a GPU at 400 "
    "Gb/s, while bytes for sockets are copied by processors on both sides.",
    "To reach other machines at the rate of the GPUs, use a machine "
    "type with "
    "RDMA cards (one for each GPU or pair of GPUs), or pass one through to the virtual machine.",
    "lspci -d 15b3:",
    true,
    "NVIDIA/nccl#451, #925; NVIDIA DGX H100 user guide (network cards); Linux, "
    "Documentation/ABI/stable/sysfs-class-infiniband.",
    look_rdma_card,
    true};

constexpr Check nic_down = {
    "nic-down",
    CheckGroup::gpu_nic,
    "A port of an RDMA card is not up",
    "Programs use fewer cards than there are, fall back to sockets, or fail with `port not active`.",
    "`state` and `phys_state` of every port below /sys/class/infiniband: 4 is active; 2 and 3 with the link "
    "up mean that "
    "an InfiniBand network has no subnet manager.",
    "The rate of the port: 48 GB/s at 400 Gb/s, 24 GB/s at 200 Gb/s.",
    "Plug the cable in, or bring the network device up; a port that is not used on purpose may stay down, "
    "tell NCCL then "
    "which cards to use (NCCL_IB_HCA). NETDEV is the card's network device, which `rdma link` shows.",
    "ip link set NETDEV up",
    true,
    "NVIDIA/nccl#451, #1925; Linux, Documentation/ABI/stable/sysfs-class-infiniband.",
    look_nic_ports,
    true};

constexpr Check no_uverbs = {
    "no-uverbs",
    CheckGroup::gpu_nic,
    "Programs cannot open the RDMA cards",
    "`ibv_devinfo` lists nothing, NCCL logs `No device found`, UCX has no rc transport; everything goes "
    "through sockets.",
    "The device file of each card (/sys/class/infiniband_verbs names it) is looked for in /dev/infiniband; "
    "then "
    "libibverbs lists and opens every card, and nothing is sent.",
    "All of RDMA: see no-rdma-card.",
    "Load the module that makes the device files.",
    "modprobe ib_uverbs",
    true,
    "NVIDIA/nccl#925; Mellanox/network-operator#249; rdma-core, Documentation/libibverbs.md.",
    look_uverbs};

constexpr Check peermem_missing = {
    "peermem-missing",
    CheckGroup::gpu_nic,
    "nvidia-peermem is not loaded",
    "NCCL logs `GDR 0`; `ib_write_bw --use_cuda` fails with `Bad address` in ibv_reg_mr; GPU memory crosses "
    "the network in "
    "two copies.",
    "/sys/module/nvidia_peermem, /sys/module/nv_peer_mem and /sys/kernel/mm/memory_peers. Where CUDA "
    "(DMA_BUF_SUPPORTED) and every card (a trial registration) have dma-buf, the module is not needed.",
    "GPUDirect RDMA: every byte crosses host memory and the GPU's PCIe link in a copy of its own, and all "
    "cards of a socket share its memory bandwidth.",
    "Load the module, which comes with the NVIDIA driver; it needs the RDMA drivers of MLNX_OFED or DOCA to "
    "be "
    "loaded first. With the kernel's own RDMA drivers use dma-buf: the open kernel modules, kernel 5.12 and "
    "rdma-core 34 "
    "or newer.",
    "modprobe nvidia-peermem",
    true,
    "NVIDIA/nccl#1537, #1939; linux-rdma/perftest#126, #269; Mellanox/nv_peer_memory#115; NVIDIA driver "
    "README, "
    "GPUDirect RDMA peer memory client.",
    look_peermem};

constexpr Check dma_buf_nic = {
    "dma-buf-nic",
    CheckGroup::gpu_nic,
    "The network card's driver registers no dma-buf memory",
    "ibv_reg_dmabuf_mr fails with `Operation not supported`; NCCL and UCX fall back to nvidia-peermem, or to "
    "host memory.",
    "Each card is opened and asked to register a dma-buf that is none (file descriptor -1): EBADF means that "
    "it would take "
    "a real one, EOPNOTSUPP and EPROTONOSUPPORT that it never does. NCCL asks in the same way.",
    "GPUDirect RDMA, unless nvidia-peermem is loaded.",
    "Use a kernel (5.12 or newer for mlx5) or a driver package (MLNX_OFED 5.8, DOCA) whose card driver has "
    "the operation; "
    "or load nvidia-peermem.",
    "modprobe nvidia-peermem",
    true,
    "NVIDIA/nccl#778; microsoft/mscclpp#657; openucx/ucx#11002; ofiwg/libfabric#10445; rdma-core, "
    "libibverbs/man/ibv_reg_mr.3.",
    look_dma_buf_nic};

constexpr Check relaxed_ordering = {
    "relaxed-ordering",
    CheckGroup::gpu_nic,
    "The network card may not write in relaxed order",
    "One direction is slow: 16 of 50 GB/s into GPU memory, or 150 of 200 Gb/s, most of all on AMD EPYC.",
    "Variables that switch it off (NCCL_IB_PCI_RELAXED_ORDERING, UCX_IB_PCI_RELAXED_ORDERING), and bit 4 of "
    "the PCI "
    "Express device control register of each card. The register lies beyond the 64 bytes of configuration "
    "space that are "
    "shown to everybody; virtual functions and virtual machines do not show the real one. The card's own "
    "setting "
    "(PCI_WR_ORDERING) is not looked at.",
    "Up to two thirds of the card's rate towards memory.",
    "Switch it on in the card's device control register, and in the BIOS (PCIe relaxed ordering) to keep it. "
    "Programs "
    "that do not ask for it themselves are helped by the card's own setting: `mlxconfig -d BDF set "
    "PCI_WR_ORDERING=1`, "
    "then a reboot; BDF is the card's bus id.",
    "setpci -s BDF CAP_EXP+8.w=0010:0010",
    true,
    "NVIDIA/nccl#1205, #531; openucx/ucx#10955, #8062; kvcache-ai/Mooncake#3205; PCI Express base "
    "specification, device "
    "control register.",
    look_relaxed_ordering};

constexpr Check gid_index = {
    "gid-index",
    CheckGroup::gpu_nic,
    "RoCE would use the wrong address",
    "Connections time out or fail with error 12 between machines, although each card works by itself.",
    "The table of addresses (GIDs) of each active RoCE port with their types, and NCCL_IB_GID_INDEX and "
    "UCX_IB_GID_INDEX. "
    "RoCE v1 does not pass routers, and link-local addresses do not leave the network segment.",
    "All of RDMA to machines that the address does not reach.",
    "Use an address of type RoCE v2 that belongs to an IP address.",
    "show_gids",
    false,
    "NVIDIA/nccl#426, #769, #1131; openucx/ucx#2501; NCCL user guide, NCCL_IB_GID_INDEX.",
    look_gid_index};

constexpr Check rail_layout = {
    "rail-layout",
    CheckGroup::gpu_nic,
    "Network cards of different rails may not reach each other",
    "NCCL hangs at the start, or error 12 follows, as soon as a ring goes from a card of one rail to a card "
    "of another.",
    "The IP network of each RoCE port and the gateways in the main routing table (/proc/net/route; other "
    "tables are not "
    "looked at), and NCCL_CROSS_NIC. What switches and routers outside do cannot be seen.",
    "A job that hangs.",
    "Keep NCCL to the rails, or route between them.",
    "export NCCL_CROSS_NIC=0",
    false,
    "NVIDIA/nccl#2013; NCCL user guide, NCCL_CROSS_NIC.",
    look_rail_layout};

constexpr Check roce_lossy = {
    "roce-lossy",
    CheckGroup::gpu_nic,
    "The Ethernet network loses RoCE packets",
    "RDMA runs at a part of its rate, with pauses; jobs die with error 12 (retries exceeded) under load.",
    "hw_counters/out_of_sequence, packet_seq_err, local_ack_timeout_err and rnr_nak_retry_err of each active "
    "RoCE port, "
    "against the packets received: ten or more, and over one in 100,000, are too many. They count "
    "since the driver was loaded: a look under load, twice, says more.",
    "The card sends everything after a lost packet again, and waits where the last packets of a message are "
    "lost.",
    "Let the switches and the cards treat RoCE as lossless: priority flow control for its priority, and ECN "
    "with DCQCN, "
    "the same on both sides. NETDEV is the network device of the port; the priorities are those of your "
    "network.",
    "mlnx_qos -i NETDEV --trust=dscp --pfc=0,0,0,1,0,0,0,0",
    true,
    "NVIDIA/nccl#378, #306, #173; openucx/ucx#6000; NVIDIA, Understanding mlx5 Linux counters.",
    look_roce_losses};

constexpr Check gpu_nic_far = {
    "gpu-nic-far",
    CheckGroup::gpu_nic,
    "A GPU has no network card near it",
    "GPUDirect RDMA of that GPU is slower than a copy through host memory; NCCL logs PHB, NODE or SYS for it "
    "and leaves "
    "GPUDirect RDMA off.",
    "The class of each GPU and its nearest RDMA card in the PCI tree: PIX and PXB are near. GPUs joined to "
    "their CPU by "
    "NVLink-C2C reach every card of that CPU. In a virtual machine without PCIe switches the tree says "
    "nothing.",
    "Peer traffic through a host bridge or between sockets runs at a fraction of the link's rate on many "
    "processors; where the narrowest link of the path is known to be slower than both devices, the "
    "difference is given.",
    "Put a card below the PCIe switch of the GPU. Otherwise let bytes of this GPU go over NVLink to a GPU "
    "with a near card "
    "(NCCL does so by PXN), or through host memory of the card's NUMA node, which Sidestep's routes do.",
    "sidestep topo",
    false,
    "linux-rdma/perftest#241; openucx/ucx#11121; kvcache-ai/Mooncake#1459; NCCL user guide, "
    "NCCL_NET_GDR_LEVEL.",
    look_gpu_nic_far,
    true};

}  // namespace

std::vector<Check> gpu_nic_checks() {
    return {no_rdma_card,     nic_down,  no_uverbs,   peermem_missing, dma_buf_nic,
            relaxed_ordering, gid_index, rail_layout, roce_lossy,      gpu_nic_far};
}

}  // namespace sidestep::diagnose
