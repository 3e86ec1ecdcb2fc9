// Peer access: refused, redirected, wrong or slow.
#include <algorithm>

#include "tests/unit/diagnose/other_machines.hpp"

namespace sidestep::diagnose {
namespace {

using driver::P2pCapability;
using driver::P2pStatus;

void refuse(Machine& machine, int a, int b, P2pStatus status) {
    for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
        machine.nvml.p2p_status[{from, to, P2pCapability::read}] = status;
        machine.nvml.p2p_status[{from, to, P2pCapability::write}] = status;
    }
}

// A second GPU below the switch of GPU 0, so that the two meet there.
void add_neighbour(H200Machine& machine) {
    no_nvlinks(machine);
    const std::string at = H200Machine::beside(0);
    machine.tree.pci(at, {topology::gpu_class, "0x10de", "0x2335", "0"});
    machine.iommu_group(at, 10, "identity");
    auto told = topology::h200(at.substr(at.rfind('/') + 1));
    told.links.clear();
    machine.nvml.gpus.push_back(told);
}

TEST(PeerChecks, RefusalsAreToldApart) {
    H200Machine machine;
    struct Case {
        P2pStatus status;
        const char* warns;
        const char* says;
    };
    for (const Case& tried :
         {Case{P2pStatus::gpu_not_supported, "geforce-no-p2p", "products or architectures differ"},
          Case{P2pStatus::chipset_not_supported, "p2p-chipset", "not in its list"},
          Case{P2pStatus::ioh_topology_not_supported, "p2p-chipset", "root complexes"},
          Case{P2pStatus::disabled_by_regkey, "p2p-refused", "a setting of the NVIDIA driver"},
          Case{P2pStatus::not_supported, "p2p-refused", "does not say why"},
          Case{P2pStatus::unknown, "p2p-refused", "does not say why"}}) {
        refuse(machine, 1, 2, tried.status);
        const Evidence evidence = machine.evidence();
        for (const char* id : {"geforce-no-p2p", "p2p-chipset", "p2p-refused"}) {
            const Outcome outcome = look(id, evidence);
            const bool warns = std::string(id) == tried.warns;
            EXPECT_EQ(outcome.verdict, warns ? Verdict::warn : Verdict::pass) << id << tried.says;
            EXPECT_TRUE(outcome.applies);
            if (!warns) continue;
            EXPECT_NE(outcome.summary.find("gpu:1 and gpu:2"), std::string::npos) << outcome.summary;
            EXPECT_NE(outcome.summary.find(tried.says), std::string::npos) << outcome.summary;
            EXPECT_TRUE(saw(outcome, "nvmlDeviceGetP2PStatus(gpu:1, gpu:2, READ)",
                            std::to_string(static_cast<int>(tried.status))));
            // NVLink at 396 GB/s against a PCIe detour at 55.5.
            ASSERT_TRUE(outcome.cost_gb_per_s);
            EXPECT_NEAR(*outcome.cost_gb_per_s, 396 - 55.5, 1);
        }
    }
}

TEST(PeerChecks, OneDirectionIsEnough) {
    H200Machine machine;
    machine.nvml.p2p_status[{3, 0, P2pCapability::write}] = P2pStatus::chipset_not_supported;
    const Outcome outcome = look("p2p-chipset", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_TRUE(saw(outcome, "gpu:3, gpu:0, WRITE", "1 (chipset not supported)"));
}

TEST(PeerChecks, RefusalsAreUnseenWithoutNvml) {
    H200Machine machine;
    machine.has_nvml = false;
    H200Machine silent;
    silent.nvml.tells_p2p = false;
    for (const char* id : {"geforce-no-p2p", "p2p-chipset", "p2p-refused"}) {
        const Outcome outcome = look(id, machine.evidence());
        EXPECT_EQ(outcome.verdict, Verdict::unknown) << id;
        EXPECT_FALSE(outcome.remedy.empty());
        EXPECT_TRUE(saw(outcome, "", "libnvidia-ml.so.1"));
        EXPECT_EQ(look(id, silent.evidence()).verdict, Verdict::unknown) << id;
    }
}

TEST(PeerChecks, OneGpuHasNoPeers) {
    H200Machine machine;
    machine.nvml.gpus.resize(1);
    for (const char* id :
         {"geforce-no-p2p", "p2p-chipset", "p2p-refused", "p2p-wrong-data", "p2p-slow", "nvlinks-inactive"}) {
        EXPECT_FALSE(look(id, machine.evidence()).applies) << id;
    }
}

TEST(PeerChecks, GeforceIsBlamedOnceForItsChipsetAnswer) {
    GeforceBox machine;
    const Evidence evidence = machine.evidence();
    const Outcome outcome = look("geforce-no-p2p", evidence);
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_NE(outcome.summary.find("switched off for GeForce"), std::string::npos) << outcome.summary;
    EXPECT_TRUE(saw(outcome, "gpu:0", "GeForce RTX 4090"));
    EXPECT_FALSE(outcome.cost_gb_per_s) << "over PCIe the detour is as fast";
    EXPECT_EQ(look("p2p-chipset", evidence).verdict, Verdict::pass);
    EXPECT_EQ(look("p2p-refused", evidence).verdict, Verdict::pass);
}

TEST(PeerChecks, RefusalsThatAnotherCheckExplainsAreNotCountedTwice) {
    H200Machine mig;
    mig.nvml.gpus[1].facts.mig = true;
    H200Machine secret;
    secret.nvml.confidential = true;
    H200Machine fabric;
    fabric.nvml.gpus[0].fabric->state = driver::FabricState::not_started;
    H200Machine cuda;
    cuda.cuda.init_code = 802;
    for (auto& [machine, by] : {std::pair<Machine*, const char*>(&mig, "mig-on"),
                                {&secret, "confidential-computing"},
                                {&fabric, "fabric-manager"},
                                {&cuda, "fabric-manager"}}) {
        refuse(*machine, 0, 1, P2pStatus::not_supported);
        const Outcome outcome = look("p2p-refused", machine->evidence());
        EXPECT_EQ(outcome.verdict, Verdict::pass) << by;
        EXPECT_NE(outcome.summary.find(by), std::string::npos) << outcome.summary;
        refuse(*machine, 2, 3, P2pStatus::disabled_by_regkey);
        EXPECT_EQ(look("p2p-refused", machine->evidence()).verdict, Verdict::warn) << by;
    }
    refuse(mig, 2, 3, P2pStatus::not_supported);
    const Outcome rest = look("p2p-refused", mig.evidence());
    EXPECT_EQ(rest.verdict, Verdict::warn) << "MIG of gpu:1 explains nothing about gpu:2 and gpu:3";
    EXPECT_EQ(rest.summary.find("gpu:0"), std::string::npos) << rest.summary;
}

TEST(PeerChecks, RegistrySettingIsShown) {
    H200Machine machine;
    refuse(machine, 0, 1, P2pStatus::disabled_by_regkey);
    machine.raw("/proc/driver/nvidia/params",
                "EnableMSI: 1\nRegistryDwords: \"ForceP2P=0\"\nNvLinkDisable: 0\n");
    const Outcome outcome = look("p2p-refused", machine.evidence());
    EXPECT_TRUE(saw(outcome, "/proc/driver/nvidia/params", "ForceP2P=0"));
    EXPECT_NE(outcome.command.find("/etc/modprobe.d"), std::string::npos);
}

TEST(PeerChecks, VirtualGpusHaveTheirOwnAdvice) {
    H200Machine machine;
    for (auto& gpu : machine.nvml.gpus) gpu.facts.virtualization = driver::NvmlVirtualization::vgpu;
    refuse(machine, 0, 1, P2pStatus::not_supported);
    EXPECT_NE(look("p2p-refused", machine.evidence()).remedy.find("vGPU"), std::string::npos);
}

TEST(PeerChecks, MigIsFoundPerGpu) {
    H200Machine machine;
    EXPECT_EQ(look("mig-on", machine.evidence()).verdict, Verdict::pass);
    machine.nvml.gpus[1].facts.mig = true;
    machine.nvml.gpus[3].facts.mig = true;
    const Outcome outcome = look("mig-on", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_EQ(outcome.command, "nvidia-smi -i 1,3 -mig 0");
    EXPECT_TRUE(saw(outcome, "nvmlDeviceGetMigMode(gpu:3)", "on"));
    EXPECT_TRUE(saw(outcome, "nvmlDeviceGetMigMode(gpu:0)", "off"));

    machine.has_nvml = false;
    EXPECT_EQ(look("mig-on", machine.evidence()).verdict, Verdict::unknown);
    EXPECT_FALSE(look("mig-on", GeforceBox().evidence()).applies) << "GeForce knows no MIG";
}

TEST(PeerChecks, ConfidentialComputing) {
    H200Machine machine;
    EXPECT_EQ(look("confidential-computing", machine.evidence()).verdict, Verdict::pass);
    machine.nvml.confidential = true;
    refuse(machine, 0, 1, P2pStatus::not_supported);
    const Outcome on = look("confidential-computing", machine.evidence());
    EXPECT_EQ(on.verdict, Verdict::warn);
    EXPECT_NE(on.summary.find("gpu:0 and gpu:1"), std::string::npos) << on.summary;
    machine.nvml.confidential.reset();
    EXPECT_FALSE(look("confidential-computing", machine.evidence()).applies);
    machine.has_nvml = false;
    EXPECT_EQ(look("confidential-computing", machine.evidence()).verdict, Verdict::unknown);
}

TEST(PeerChecks, AccessControlReadAtThePorts) {
    H200Machine machine;
    add_neighbour(machine);
    for (int port = 0; port < 2; ++port) machine.acs(H200Machine::downstream(0, port), 0x5f, 0x00);
    EXPECT_EQ(look("acs-redirect", machine.evidence()).verdict, Verdict::pass);
    machine.acs(H200Machine::downstream(0, 1), 0x5f, 0x1d);
    const Outcome outcome = look("acs-redirect", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_NE(outcome.summary.find("gpu:0 and gpu:4"), std::string::npos) << outcome.summary;
    EXPECT_EQ(outcome.summary.find("inferred"), std::string::npos);
    EXPECT_TRUE(saw(outcome, "/sys/bus/pci/devices/0000:1b:01.0/config", "0x001d"));
    EXPECT_EQ(outcome.command, "for port in 0000:1b:01.0; do setpci -s $port ECAP_ACS+0x6.w=0000; done");
    ASSERT_TRUE(outcome.cost_gb_per_s);
    EXPECT_GT(*outcome.cost_gb_per_s, 20);
}

TEST(PeerChecks, AccessControlInferredFromGroups) {
    H200Machine machine;
    add_neighbour(machine);
    for (int port = 0; port < 2; ++port) machine.short_config(H200Machine::downstream(0, port));
    EXPECT_EQ(look("acs-redirect", machine.evidence()).verdict, Verdict::unknown) << "one group for all";
    // Each device in the group of its own port: the ports do not isolate what is below them.
    for (int port = 0; port < 2; ++port)
        machine.iommu_group(H200Machine::downstream(0, port), 21 + port, "identity");
    machine.iommu_group(H200Machine::gpu_walk(0), 21, "identity");
    machine.iommu_group(H200Machine::beside(0), 22, "identity");
    EXPECT_EQ(look("acs-redirect", machine.evidence()).verdict, Verdict::pass);
    machine.iommu_group(H200Machine::beside(0), 99, "identity");
    const Outcome outcome = look("acs-redirect", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_NE(outcome.summary.find("inferred"), std::string::npos) << outcome.summary;
    EXPECT_NE(outcome.command.find("0000:1b:00.0 0000:1b:01.0"), std::string::npos) << outcome.command;
    EXPECT_TRUE(saw(outcome, "0000:1d:00.0/iommu_group", "99"));
}

TEST(PeerChecks, AccessControlWithoutGroupsAndRootIsUnknown) {
    H200Machine machine;
    add_neighbour(machine);
    machine.remove("/sys/kernel/iommu_groups");
    for (const std::string& walk : {H200Machine::gpu_walk(0), H200Machine::beside(0)})
        machine.remove(Machine::folder(walk) + "/iommu_group");
    for (int port = 0; port < 2; ++port) machine.short_config(H200Machine::downstream(0, port));
    const Outcome outcome = look("acs-redirect", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::unknown);
    EXPECT_NE(outcome.remedy.find("as root"), std::string::npos);
    EXPECT_TRUE(saw(outcome, "iommu_group", "no group"));
}

TEST(PeerChecks, AccessControlBetweenGpuAndNetworkCard) {
    H200Machine machine;
    machine.tree.pci(H200Machine::beside(0), {topology::nic_class, "0x15b3", "0x1021", "0"});
    machine.iommu_group(H200Machine::beside(0), 99, "identity");
    EXPECT_FALSE(look("acs-redirect", machine.evidence()).applies) << "an Ethernet card is no partner";
    machine.tree.folder(Machine::folder(H200Machine::beside(0)) + "/infiniband/mlx5_0");
    EXPECT_EQ(look("acs-redirect", machine.evidence()).verdict, Verdict::warn);
}

TEST(PeerChecks, AccessControlDoesNotMatterToNvlink) {
    H200Machine machine;
    const std::string at = H200Machine::beside(0);
    machine.tree.pci(at, {topology::gpu_class, "0x10de", "0x2335", "0"});
    machine.iommu_group(at, 99, "identity");
    machine.nvml.gpus.push_back(topology::h200(at.substr(at.rfind('/') + 1)));
    EXPECT_FALSE(look("acs-redirect", machine.evidence()).applies);
}

TEST(PeerChecks, AccessControlOfHiddenSwitches) {
    H200Guest guest;
    EXPECT_FALSE(look("acs-redirect", guest.evidence()).applies) << "NVLink joins all of them";
    no_nvlinks(guest);
    const Outcome outcome = look("acs-redirect", guest.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::unknown);
    EXPECT_EQ(outcome.command.find("setpci"), std::string::npos) << "guests do not switch it off";
    H200Machine metal;
    no_nvlinks(metal);
    EXPECT_FALSE(look("acs-redirect", metal.evidence()).applies) << "each GPU has a switch of its own";
}

TEST(PeerChecks, AccessControlInAGuestIsLeftOn) {
    H200Machine machine;
    add_neighbour(machine);
    machine.iommu_group(H200Machine::beside(0), 99, "identity");
    machine.tree.write("/proc/cpuinfo", "flags\t\t: fpu hypervisor");
    const Outcome outcome = look("acs-redirect", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_NE(outcome.remedy.find("ATS"), std::string::npos);
    EXPECT_EQ(outcome.command.find("setpci"), std::string::npos) << outcome.command;
}

// All pairs of the machine, both ways, as a probe of a healthy machine finds them.
ProbeReport healthy_probe(const Evidence& evidence) {
    ProbeReport report;
    report.bytes = Bytes{64} << 20;
    for (int from = 0; from < evidence.topology.gpu_count(); ++from) {
        for (int to = 0; to < evidence.topology.gpu_count(); ++to) {
            if (from == to) continue;
            PairProbe probe;
            probe.from = from;
            probe.to = to;
            probe.from_bus_id = evidence.topology.device(*evidence.topology.find(Place::gpu(from))).bus_id;
            probe.to_bus_id = evidence.topology.device(*evidence.topology.find(Place::gpu(to))).bus_id;
            probe.engine = "copy engine";
            probe.direct = true;
            probe.gb_per_s = 370;
            probe.expected_gb_per_s = 396;
            probe.bounce_gb_per_s = 50;
            report.pairs.push_back(probe);
        }
    }
    return report;
}

TEST(ProbeChecks, UnknownWithoutAProbeAndPassWithAGoodOne) {
    H200Machine machine;
    Evidence evidence = machine.evidence();
    for (const char* id : {"p2p-wrong-data", "p2p-slow"}) {
        evidence.probe.reset();
        const Outcome untried = look(id, evidence);
        EXPECT_EQ(untried.verdict, Verdict::unknown) << id;
        EXPECT_EQ(untried.command, "sidestep doctor --probe");
        evidence.probe = healthy_probe(evidence);
        EXPECT_EQ(look(id, evidence).verdict, Verdict::pass) << id;
        evidence.probe->emulated = true;
        EXPECT_FALSE(look(id, evidence).applies) << id;
    }
}

TEST(ProbeChecks, WrongBytesFailAndAreNamed) {
    H200Machine machine;
    Evidence evidence = machine.evidence();
    evidence.probe = healthy_probe(evidence);
    PairProbe& bad = evidence.probe->pairs[1];  // gpu:0 -> gpu:2
    bad.intact = false;
    bad.wrong_at = 4096;
    bad.gb_per_s = 0;
    const Outcome outcome = look("p2p-wrong-data", evidence);
    EXPECT_EQ(outcome.verdict, Verdict::fail);
    EXPECT_NE(outcome.summary.find("gpu:0 -> gpu:2 (copy engine)"), std::string::npos) << outcome.summary;
    EXPECT_TRUE(saw(outcome, "gpu:0 -> gpu:2", "4096"));
    EXPECT_EQ(look("p2p-slow", evidence).verdict, Verdict::pass) << "wrong bytes have no rate to judge";
}

TEST(ProbeChecks, SlowPairsWarnAndThoseBelowTheBounceFail) {
    H200Machine machine;
    Evidence evidence = machine.evidence();
    evidence.probe = healthy_probe(evidence);
    evidence.probe->pairs[0].gb_per_s = 310;  // 78 % of 396
    const Outcome low = look("p2p-slow", evidence);
    EXPECT_EQ(low.verdict, Verdict::warn);
    EXPECT_TRUE(saw(low, "gpu:0 -> gpu:1", "310.0 GB/s, expected 396.0, through host memory 50.0"));
    EXPECT_NEAR(low.cost_gb_per_s.value_or(0), 86, 0.01);

    evidence.probe->pairs[0].gb_per_s = 320;  // 81 %
    EXPECT_EQ(look("p2p-slow", evidence).verdict, Verdict::pass);

    evidence.probe->pairs[0].gb_per_s = 12;
    const Outcome below = look("p2p-slow", evidence);
    EXPECT_EQ(below.verdict, Verdict::fail);
    EXPECT_NE(below.summary.find("slower than host memory: gpu:0 -> gpu:1"), std::string::npos);
    EXPECT_EQ(look("p2p-wrong-data", evidence).verdict, Verdict::pass);
}

TEST(ProbeChecks, PairsWithoutADirectPathAreNotJudged) {
    GeforceBox machine;
    Evidence evidence = machine.evidence();
    evidence.probe = healthy_probe(evidence);
    for (PairProbe& probe : evidence.probe->pairs) {
        probe.direct = false;
        probe.gb_per_s = 0;
    }
    for (const char* id : {"p2p-wrong-data", "p2p-slow"}) EXPECT_FALSE(look(id, evidence).applies) << id;
}

TEST(ProbeChecks, AProbeOfAnotherMachineSaysNothing) {
    H200Machine machine;
    Evidence evidence = machine.evidence();
    evidence.probe = healthy_probe(evidence);
    evidence.probe->pairs.back().to_bus_id = "0000:ff:00.0";
    evidence.probe->pairs.front().intact = false;
    for (const char* id : {"p2p-wrong-data", "p2p-slow"})
        EXPECT_EQ(look(id, evidence).verdict, Verdict::unknown) << id;
}

TEST(ProbeChecks, SmallCopiesTellNoRate) {
    H200Machine machine;
    Evidence evidence = machine.evidence();
    evidence.probe = healthy_probe(evidence);
    evidence.probe->bytes = Bytes{1} << 20;
    evidence.probe->pairs[0].gb_per_s = 30;
    EXPECT_EQ(look("p2p-slow", evidence).verdict, Verdict::unknown);
}

}  // namespace
}  // namespace sidestep::diagnose
