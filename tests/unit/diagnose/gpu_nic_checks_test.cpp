// Each cause between GPUs and network cards: found where it is, not found where it is not.
#include "tests/unit/diagnose/whole_machines.hpp"

namespace sidestep::diagnose {
namespace {

TEST(NoRdmaCard, PassesWithCardsAndNamesThem) {
    HgxServer machine;
    const Outcome outcome = see(machine, "no-rdma-card");
    EXPECT_EQ(outcome.verdict, Verdict::pass);
    EXPECT_TRUE(saw(outcome, "/sys/class/infiniband/mlx5_2", "0000:3d:00.0"));
}

TEST(NoRdmaCard, IsNoFaultWithoutAnyAndNamesWhatThereIs) {
    CloudGuest machine;
    const Outcome outcome = see(machine, "no-rdma-card");
    EXPECT_FALSE(outcome.applies);
    EXPECT_TRUE(saw(outcome, "/sys/class/infiniband", "does not exist"));
    EXPECT_TRUE(saw(outcome, "0000:00:02.0", "virtio network"));
}

TEST(NoRdmaCard, SoftwareCardsDoNotCount) {
    CloudGuest machine;
    machine.tree.folder("/sys/class/infiniband/rxe0/ports/1");
    const Outcome outcome = see(machine, "no-rdma-card");
    EXPECT_FALSE(outcome.applies);
    EXPECT_TRUE(saw(outcome, "/sys/class/infiniband/rxe0", "software"));
}

TEST(NoRdmaCard, FailsWhereAnInfinibandCardHasNoDriver) {
    CloudGuest machine;
    machine.tree.pci("pci0000:00/0000:00:09.0", {topology::nic_class, "0x15b3", "0x1021"});
    const Outcome outcome = see(machine, "no-rdma-card");
    EXPECT_EQ(outcome.verdict, Verdict::fail);
    EXPECT_EQ(outcome.command, "modprobe -a mlx5_ib ib_uverbs");
    EXPECT_TRUE(saw(outcome, "0000:00:09.0/class", "0x020700"));
}

TEST(NoRdmaCard, WarnsWhereACardIsPlainEthernetOrKeptFromAContainer) {
    CloudGuest machine;
    machine.tree.pci("pci0000:00/0000:00:09.0", {"0x020000", "0x15b3", "0x1021"});
    EXPECT_EQ(verdict(machine, "no-rdma-card"), Verdict::warn);
    in_docker(machine);
    const Outcome outcome = see(machine, "no-rdma-card");
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_NE(outcome.command.find("docker run"), std::string::npos);
}

TEST(NicDown, TellsPortsApart) {
    HgxServer machine;
    EXPECT_EQ(verdict(machine, "nic-down"), Verdict::pass);
    machine.tree.write(HgxServer::port(1) + "/state", "1: DOWN");
    machine.tree.write(HgxServer::port(1) + "/phys_state", "2: Polling");
    Outcome outcome = see(machine, "nic-down");
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_TRUE(saw(outcome, "/sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN (2: Polling, Ethernet)"));
    for (const int card : {0, 2, 3}) machine.tree.write(HgxServer::port(card) + "/state", "1: DOWN");
    EXPECT_EQ(verdict(machine, "nic-down"), Verdict::fail);
}

TEST(NicDown, AsksForASubnetManager) {
    HgxServer machine;
    machine.tree.write(HgxServer::port(1) + "/state", "2: INIT");
    machine.tree.write(HgxServer::port(1) + "/link_layer", "InfiniBand");
    const Outcome outcome = see(machine, "nic-down");
    EXPECT_EQ(outcome.verdict, Verdict::fail);
    EXPECT_EQ(outcome.command, "systemctl start opensm");
}

TEST(NicDown, IsUnknownWhereStatesAreHidden) {
    HgxServer machine;
    for (int card = 0; card < 4; ++card) machine.remove(HgxServer::port(card) + "/state");
    EXPECT_EQ(verdict(machine, "nic-down"), Verdict::unknown);
    machine.without_cards();
    EXPECT_FALSE(see(machine, "nic-down").applies);
}

TEST(NoUverbs, PassesWhereProgramsCanOpenTheCards) {
    HgxServer machine;
    EXPECT_EQ(verdict(machine, "no-uverbs"), Verdict::pass);
    machine.without_cards();
    EXPECT_FALSE(see(machine, "no-uverbs").applies);
}

TEST(NoUverbs, FailsWithoutDeviceFiles) {
    HgxServer machine;
    machine.remove("/dev/infiniband/uverbs2");
    Outcome outcome = see(machine, "no-uverbs");
    EXPECT_EQ(outcome.verdict, Verdict::fail);
    EXPECT_TRUE(saw(outcome, "/dev/infiniband/uverbs2", "does not exist"));
    EXPECT_EQ(outcome.command, "");  // the check's own: modprobe ib_uverbs
    machine.remove("/sys/class/infiniband_verbs");
    EXPECT_EQ(verdict(machine, "no-uverbs"), Verdict::fail);
}

TEST(NoUverbs, FailsWhereDeviceFilesAreDenied) {
    HgxServer machine;
    machine.tree.write(driver::MachineFiles::denied_list, "/dev/infiniband/uverbs0");
    const Outcome outcome = see(machine, "no-uverbs");
    EXPECT_EQ(outcome.verdict, Verdict::fail);
    EXPECT_TRUE(saw(outcome, "/dev/infiniband/uverbs0", "permission denied"));
}

TEST(NoUverbs, TellsOfTheLibrary) {
    HgxServer machine;
    machine.verbs.devices[1].opens = false;
    machine.verbs.devices[1].reason = "ibv_open_device failed: Permission denied";
    Outcome outcome = see(machine, "no-uverbs");
    EXPECT_EQ(outcome.verdict, Verdict::fail);
    EXPECT_TRUE(saw(outcome, "ibv_open_device(mlx5_1)", "Permission denied"));
    machine.verbs.devices.pop_back();
    EXPECT_EQ(see(machine, "no-uverbs").command, "apt-get install ibverbs-providers");
    machine.verbs = {};
    machine.verbs.reason = "libibverbs.so.1 was not found";
    EXPECT_EQ(verdict(machine, "no-uverbs"), Verdict::warn);
}

TEST(PeermemMissing, PassesWithTheModuleOfEitherKind) {
    HgxServer machine;
    EXPECT_EQ(verdict(machine, "peermem-missing"), Verdict::pass);
    machine.remove("/sys/module/nvidia_peermem");
    for (auto& device : machine.verbs.devices) device.dma_buf = false;
    machine.tree.write("/sys/kernel/mm/memory_peers/nv_mem/version", "1.3");
    EXPECT_EQ(verdict(machine, "peermem-missing"), Verdict::pass);
    machine.remove("/sys/kernel/mm/memory_peers");
    EXPECT_EQ(verdict(machine, "peermem-missing"), Verdict::fail);
}

TEST(PeermemMissing, PassesWhereDmaBufTakesItsPlace) {
    HgxServer machine;
    machine.remove("/sys/module/nvidia_peermem");
    const Outcome outcome = see(machine, "peermem-missing");
    EXPECT_EQ(outcome.verdict, Verdict::pass);
    EXPECT_TRUE(saw(outcome, "/sys/module/nvidia_peermem", "does not exist"));
}

TEST(PeermemMissing, FailsWhereOneSideHasNoDmaBuf) {
    HgxServer machine;
    machine.remove("/sys/module/nvidia_peermem");
    machine.cuda.gpus[2].attributes["DMA_BUF_SUPPORTED"] = 0;
    Outcome outcome = see(machine, "peermem-missing");
    EXPECT_EQ(outcome.verdict, Verdict::fail);
    EXPECT_TRUE(saw(outcome, "DMA_BUF_SUPPORTED(" + H200Machine::bus_id(2), "0"));
}

TEST(PeermemMissing, WarnsWhereDmaBufIsNotTold) {
    HgxServer machine;
    machine.remove("/sys/module/nvidia_peermem");
    machine.verbs.devices[0].dma_buf.reset();
    EXPECT_EQ(verdict(machine, "peermem-missing"), Verdict::warn);
}

TEST(PeermemMissing, DoesNotApplyToGpusWithoutIt) {
    HgxServer machine;
    machine.remove("/sys/module/nvidia_peermem");
    for (auto& gpu : machine.cuda.gpus) gpu.attributes["GPU_DIRECT_RDMA_SUPPORTED"] = 0;
    EXPECT_FALSE(see(machine, "peermem-missing").applies);
}

TEST(DmaBufNic, SpeaksOfTheCards) {
    HgxServer machine;
    EXPECT_EQ(verdict(machine, "dma-buf-nic"), Verdict::pass);
    machine.verbs.devices[1].dma_buf = false;
    machine.verbs.devices[1].dma_buf_words = "ibv_reg_dmabuf_mr(fd -1): EOPNOTSUPP";
    EXPECT_EQ(verdict(machine, "dma-buf-nic"), Verdict::pass);  // nvidia-peermem is there
    machine.remove("/sys/module/nvidia_peermem");
    const Outcome outcome = see(machine, "dma-buf-nic");
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_TRUE(saw(outcome, "ibv_reg_dmabuf_mr(mlx5_1)", "EOPNOTSUPP"));
    machine.verbs.devices[1].dma_buf.reset();
    EXPECT_EQ(verdict(machine, "dma-buf-nic"), Verdict::unknown);
}

TEST(RelaxedOrdering, IsReadFromTheCard) {
    HgxServer machine;
    EXPECT_EQ(verdict(machine, "relaxed-ordering"), Verdict::pass);
    machine.card_config(3, 0x2900);
    const Outcome outcome = see(machine, "relaxed-ordering");
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_EQ(outcome.command, "setpci -s 0000:4d:00.0 CAP_EXP+8.w=0010:0010");
    EXPECT_TRUE(saw(outcome, "0000:4d:00.0/config", "0x2900, relaxed ordering off"));
}

TEST(RelaxedOrdering, IsUnknownToUsersAndInGuests) {
    HgxServer machine;
    machine.short_config(H200Machine::beside(0));
    EXPECT_EQ(verdict(machine, "relaxed-ordering"), Verdict::unknown);
    machine.card_config(0, 0x2910);
    machine.card_config(1, 0x2900);
    machine.tree.write("/proc/cpuinfo", "flags\t\t: fpu hypervisor");
    EXPECT_EQ(verdict(machine, "relaxed-ordering"), Verdict::unknown);
}

TEST(RelaxedOrdering, SurvivesBrokenCapabilityLists) {
    HgxServer machine;
    std::string config(256, '\0');
    config[0x34] = 0x40;
    config[0x41] = 0x40;  // a circle
    machine.raw(Machine::folder(H200Machine::beside(0)) + "/config", config);
    EXPECT_EQ(verdict(machine, "relaxed-ordering"), Verdict::unknown);
    config[0x34] = '\xfc';  // too near to the end
    config[0xfc] = 0x10;
    machine.raw(Machine::folder(H200Machine::beside(0)) + "/config", config);
    EXPECT_EQ(verdict(machine, "relaxed-ordering"), Verdict::unknown);
}

TEST(RelaxedOrdering, WarnsOfVariables) {
    HgxServer machine;
    machine.environment({"UCX_IB_PCI_RELAXED_ORDERING=no"});
    EXPECT_EQ(see(machine, "relaxed-ordering").command, "unset UCX_IB_PCI_RELAXED_ORDERING");
    machine.environment({"UCX_IB_PCI_RELAXED_ORDERING=auto", "NCCL_IB_PCI_RELAXED_ORDERING=2"});
    EXPECT_EQ(verdict(machine, "relaxed-ordering"), Verdict::pass);
    machine.tree.write("/etc/nccl.conf", "NCCL_IB_PCI_RELAXED_ORDERING=0");
    EXPECT_EQ(verdict(machine, "relaxed-ordering"), Verdict::pass);  // the environment comes first
    machine.environment({});
    EXPECT_TRUE(saw(see(machine, "relaxed-ordering"), "/etc/nccl.conf", "=0"));
}

TEST(GidIndex, PassesWithRoutableAddresses) {
    HgxServer machine;
    const Outcome outcome = see(machine, "gid-index");
    EXPECT_EQ(outcome.verdict, Verdict::pass);
    EXPECT_NE(outcome.summary.find("index 3"), std::string::npos) << outcome.summary;
    machine.environment({"NCCL_IB_GID_INDEX=3"});
    EXPECT_EQ(verdict(machine, "gid-index"), Verdict::pass);
    machine.environment({"NCCL_IB_GID_INDEX=-1", "UCX_IB_GID_INDEX=auto"});
    EXPECT_EQ(verdict(machine, "gid-index"), Verdict::pass);
}

TEST(GidIndex, FailsWhereAVariableNamesAnotherKind) {
    HgxServer machine;
    for (const char* variable :
         {"NCCL_IB_GID_INDEX=2", "UCX_IB_GID_INDEX=2", "NCCL_IB_GID_INDEX=4", "NCCL_IB_GID_INDEX=77"}) {
        machine.environment({variable});
        const Outcome outcome = see(machine, "gid-index");
        EXPECT_EQ(outcome.verdict, Verdict::fail) << variable;
        EXPECT_TRUE(saw(outcome, "/proc/self/environ", variable));
    }
}

TEST(GidIndex, WarnsWithoutAnIpAddress) {
    HgxServer machine;
    for (const int index : {2, 3}) machine.gid(1, index, "0000:0000:0000:0000:0000:0000:0000:0000", "");
    const Outcome outcome = see(machine, "gid-index");
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_NE(outcome.summary.find("mlx5_1 port 1"), std::string::npos);
}

TEST(GidIndex, IsUnknownWithoutTypesAndDoesNotApplyToInfiniband) {
    HgxServer machine;
    machine.remove(HgxServer::port(0) + "/gid_attrs/types");
    EXPECT_EQ(verdict(machine, "gid-index"), Verdict::unknown);
    for (int card = 0; card < 4; ++card)
        machine.tree.write(HgxServer::port(card) + "/link_layer", "InfiniBand");
    EXPECT_FALSE(see(machine, "gid-index").applies);
}

// Networks 10.0.1.0/24 to 10.0.4.0/24, with a gateway to 10.0.0.0/16 at some of the cards.
std::string rails(int gateways) {
    std::string text = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n";
    text += "eth3\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\n";
    for (int card = 0; card < 4; ++card) {
        const std::string name = HgxServer::netdev(card);
        text += name + "\t000" + std::to_string(card + 1) + "000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n";
        if (card < gateways) text += name + "\t0000000A\tFE01000A\t0003\t0\t0\t0\t0000FFFF\n";
    }
    return text;
}

TEST(RailLayout, PassesWithOneNetworkOrRoutesBetween) {
    HgxServer machine;
    EXPECT_EQ(verdict(machine, "rail-layout"), Verdict::pass);
    machine.tree.write("/proc/net/route", rails(4));
    const Outcome outcome = see(machine, "rail-layout");
    EXPECT_EQ(outcome.verdict, Verdict::pass) << outcome.summary;
    EXPECT_TRUE(saw(outcome, "mlx5_2 port 1 (eth2)", "10.0.3.0/24"));
}

TEST(RailLayout, IsUnknownWithoutRoutesUnlessNcclIsTold) {
    HgxServer machine;
    machine.tree.write("/proc/net/route", rails(3));
    EXPECT_EQ(verdict(machine, "rail-layout"), Verdict::unknown);
    machine.environment({"NCCL_CROSS_NIC=0"});
    EXPECT_EQ(verdict(machine, "rail-layout"), Verdict::pass);
    machine.environment({"NCCL_CROSS_NIC=1"});
    EXPECT_EQ(verdict(machine, "rail-layout"), Verdict::warn);
    machine.remove("/proc/net/route");
    EXPECT_EQ(verdict(machine, "rail-layout"), Verdict::unknown);
    for (const int card : {0, 1, 2}) machine.tree.write(HgxServer::port(card) + "/state", "1: DOWN");
    EXPECT_FALSE(see(machine, "rail-layout").applies);
}

TEST(RoceLossy, ComparesWithWhatWasReceived) {
    HgxServer machine;
    EXPECT_EQ(verdict(machine, "roce-lossy"), Verdict::pass);
    machine.tree.write(HgxServer::port(2) + "/hw_counters/packet_seq_err", "9001");
    const Outcome outcome = see(machine, "roce-lossy");
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_NE(outcome.summary.find("mlx5_2 port 1"), std::string::npos);
    EXPECT_TRUE(saw(outcome, "mlx5_2/ports/1/hw_counters", "packet_seq_err 9001"));
}

// A driver that was loaded a moment ago has counted few packets: one that was lost is no rate.
TEST(RoceLossy, TakesAFewLossesForNone) {
    HgxServer machine;
    for (const auto& [received, lost, verdict_then] :
         {std::tuple{"50000", "1", Verdict::pass}, std::tuple{"0", "9", Verdict::pass},
          std::tuple{"50000", "10", Verdict::warn}, std::tuple{"1000000", "10", Verdict::pass}}) {
        machine.tree.write(HgxServer::port(2) + "/counters/port_rcv_packets", received);
        machine.tree.write(HgxServer::port(2) + "/hw_counters/packet_seq_err", lost);
        EXPECT_EQ(verdict(machine, "roce-lossy"), verdict_then) << lost << " of " << received;
    }
}

TEST(RoceLossy, IsUnknownWithoutCounters) {
    HgxServer machine;
    for (int card = 0; card < 4; ++card) machine.remove(HgxServer::port(card) + "/hw_counters");
    const Outcome outcome = see(machine, "roce-lossy");
    EXPECT_EQ(outcome.verdict, Verdict::unknown);
    EXPECT_EQ(outcome.command, "ethtool -S eth0");
}

TEST(GpuNicFar, PassesBelowOneSwitchAndWarnsAcrossSockets) {
    HgxServer machine;
    const Outcome near = see(machine, "gpu-nic-far");
    EXPECT_EQ(near.verdict, Verdict::pass);
    EXPECT_TRUE(saw(near, "gpu:1", "PIX"));
    for (const int card : {0, 1, 3}) {
        machine.remove("/sys/bus/pci/devices/" + HgxServer::card_bus_id(card));
        machine.remove("/sys/class/infiniband/" + HgxServer::card_name(card));
    }
    const Outcome far = see(machine, "gpu-nic-far");
    EXPECT_EQ(far.verdict, Verdict::warn);
    EXPECT_TRUE(saw(far, "gpu:0", "SYS"));
    EXPECT_TRUE(saw(far, "gpu:3", "NODE"));
    EXPECT_TRUE(saw(far, "gpu:2", "PIX"));
    EXPECT_NE(far.summary.find("gpu:0, gpu:1, gpu:3"), std::string::npos) << far.summary;
    EXPECT_EQ(far.cost_gb_per_s, std::nullopt);  // no link on the way is known to be slower
}

TEST(GpuNicFar, PutsAPriceOnANarrowLink) {
    HgxServer machine;
    machine.without_cards();
    // The only card's switch hangs at four lanes.
    for (const std::string& at : {H200Machine::upstream(3), H200Machine::root_port(3)}) {
        machine.tree.write(Machine::folder(at) + "/max_link_width", "4");
        machine.tree.write(Machine::folder(at) + "/current_link_width", "4");
    }
    machine.link_to("/sys/bus/pci/devices/" + HgxServer::card_bus_id(3),
                    Machine::folder(H200Machine::beside(3)));
    machine.link_to("/sys/class/infiniband/mlx5_3", HgxServer::card_folder(3));
    const Outcome outcome = see(machine, "gpu-nic-far");
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    ASSERT_TRUE(outcome.cost_gb_per_s);
    EXPECT_NEAR(*outcome.cost_gb_per_s, 41.6, 0.5);  // three quarters of PCIe gen5 x16, as copies reach it
}

TEST(GpuNicFar, GpusWithC2cReachTheCardsOfTheirCpu) {
    Topology::Parts parts;
    parts.name = "made up";
    parts.devices = {{DeviceKind::cpu, 0, "cpu:0", "", "", 0},
                     {DeviceKind::gpu, 0, "gpu:0", "NVIDIA GB200", "0008:01:00.0", 0},
                     {DeviceKind::host_bridge, 0, "host_bridge:0", "", "0000:00", 0},
                     {DeviceKind::nic, 0, "nic:mlx5_0", "", "0000:03:00.0", 0},
                     {DeviceKind::host_bridge, 1, "host_bridge:1", "", "0008:00", 0}};
    parts.links = {{0, 1, LinkKind::c2c, 1, 450, 0.1},
                   {0, 2, LinkKind::pcie, 16, 63, 0.1},
                   {2, 3, LinkKind::pcie, 16, 63, 0.4},
                   {0, 4, LinkKind::pcie, 1, 4, 0.1},
                   {4, 1, LinkKind::pcie, 1, 4, 0.4}};
    Machine machine;
    machine.tree.pci("pci0000:00/0000:03:00.0", {topology::nic_class, "0x15b3"});
    machine.link_to("/sys/class/infiniband/mlx5_0",
                    Machine::folder("pci0000:00/0000:03:00.0/infiniband/mlx5_0"));
    machine.link_to(Machine::folder("pci0000:00/0000:03:00.0/infiniband/mlx5_0") + "/device",
                    Machine::folder("pci0000:00/0000:03:00.0"));
    const auto topology = Topology::create(parts);
    ASSERT_TRUE(topology.ok()) << topology.error().to_string();
    Evidence evidence{*topology, driver::MachineFiles(machine.tree.root()), nullptr, "", {}, {}, {}};
    EXPECT_EQ(look("gpu-nic-far", evidence).verdict, Verdict::pass);
    parts.links[0].kind = LinkKind::pcie;
    evidence.topology = *Topology::create(parts);
    EXPECT_EQ(look("gpu-nic-far", evidence).verdict, Verdict::warn);
}

TEST(GpuNicFar, IsUnknownInAFlatTree) {
    CloudGuest machine;
    const std::string card = "pci0000:00/0000:00:09.0";
    machine.tree.pci(card, {"0x020000", "0x15b3", "0x101e"});
    machine.link_to("/sys/class/infiniband/mlx5_0", Machine::folder(card) + "/infiniband/mlx5_0");
    machine.tree.folder(Machine::folder(card) + "/infiniband/mlx5_0");
    machine.link_to(Machine::folder(card) + "/infiniband/mlx5_0/device", Machine::folder(card));
    EXPECT_EQ(verdict(machine, "gpu-nic-far"), Verdict::unknown);
}

}  // namespace
}  // namespace sidestep::diagnose
