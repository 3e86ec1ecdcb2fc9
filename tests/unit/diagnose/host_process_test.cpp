// The host: limits and variables of the process, and machines on which nothing may be found.
#include <cstring>
#include <set>

#include "diagnose/checks/process_facts.hpp"
#include "tests/unit/diagnose/other_machines.hpp"

namespace sidestep::diagnose {
namespace {

void limits(Machine& machine, const std::string& stack, const std::string& files, const std::string& locked) {
    machine.raw("/proc/self/limits",
                "Limit                     Soft Limit           Hard Limit           Units     \n"
                "Max stack size            " +
                    stack + " bytes\nMax open files            " + files +
                    " files\nMax locked memory         " + locked + " bytes\n");
}

TEST(ProcessFacts, ReadsRangesLimitsAndCapabilities) {
    EXPECT_EQ(ranges_of("0-3,8,10-11"), (Ranges{{0, 3}, {8, 8}, {10, 11}}));
    EXPECT_EQ(ranges_of("x,-1,5-2,,99999999999"), Ranges{});
    EXPECT_TRUE(overlap({{0, 3}}, {{3, 9}}));
    EXPECT_FALSE(overlap({{0, 3}, {8, 8}}, {{4, 7}}));
    Machine machine;
    limits(machine, "unlimited            unlimited", "12                   34", "what                 1");
    const driver::MachineFiles files(machine.tree.root());
    EXPECT_EQ(process_limit(files, "Max open files")->soft, 12U);
    EXPECT_EQ(process_limit(files, "Max open files")->hard, 34U);
    EXPECT_FALSE(process_limit(files, "Max stack size")->soft);
    EXPECT_FALSE(process_limit(files, "Max locked memory")) << "no number";
    EXPECT_FALSE(process_limit(files, "Max processes"));
    machine.raw("/proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n");
    EXPECT_TRUE(*has_capability(files, cap_ipc_lock));
    EXPECT_FALSE(*has_capability(files, cap_ipc_lock - 1));
}

TEST(ProcessFacts, TheFirstOfTwoVariablesCounts) {
    Machine machine;
    machine.environment({"A=1", "no equals sign", "A=2", "B=x=y"});
    const auto variables = process_environment(driver::MachineFiles(machine.tree.root()));
    ASSERT_TRUE(variables);
    EXPECT_EQ(*variables, (std::map<std::string, std::string>{{"A", "1"}, {"B", "x=y"}}));
}

TEST(MemlockCheck, OnlyWithRdmaCards) {
    H200Machine machine;
    limits(machine, "8388608 unlimited", "1024 1024", "8388608 8388608");
    EXPECT_FALSE(look("memlock", machine.evidence()).applies);
    machine.tree.folder("/sys/class/infiniband/mlx5_0");
    const Outcome low = look("memlock", machine.evidence());
    EXPECT_EQ(low.verdict, Verdict::warn);
    EXPECT_TRUE(saw(low, "Max locked memory", "soft 8388608, hard 8388608"));
    EXPECT_TRUE(low.command.empty()) << "the check's own, as root";

    limits(machine, "8388608 unlimited", "1024 1024", "8388608 unlimited");
    EXPECT_EQ(look("memlock", machine.evidence()).command, "ulimit -l unlimited");
    limits(machine, "8388608 unlimited", "1024 1024", "unlimited unlimited");
    EXPECT_EQ(look("memlock", machine.evidence()).verdict, Verdict::pass);
    limits(machine, "8388608 unlimited", "1024 1024", "9999999999999999 unlimited");
    EXPECT_EQ(look("memlock", machine.evidence()).verdict, Verdict::pass) << "more than there is";
    machine.remove("/proc/self/limits");
    EXPECT_EQ(look("memlock", machine.evidence()).verdict, Verdict::unknown);
}

TEST(MemlockCheck, TheCapabilityLiftsTheLimit) {
    H200Machine machine;
    machine.tree.folder("/sys/class/infiniband/mlx5_0");
    limits(machine, "8388608 unlimited", "1024 1024", "65536 65536");
    machine.raw("/proc/self/status", "CapEff:\t000001ffffffffff\n");
    EXPECT_EQ(look("memlock", machine.evidence()).verdict, Verdict::pass);
    machine.raw("/proc/self/status", "CapEff:\t0000000000003fff\n");
    EXPECT_EQ(look("memlock", machine.evidence()).verdict, Verdict::warn);
}

TEST(IpcLimitsCheck, RemoveIpc) {
    H200Machine machine;
    EXPECT_EQ(look("ipc-limits", machine.evidence()).verdict, Verdict::pass);
    machine.raw("/etc/systemd/logind.conf", "[Login]\n#RemoveIPC=yes\n");
    EXPECT_EQ(look("ipc-limits", machine.evidence()).verdict, Verdict::pass) << "a comment sets nothing";
    machine.raw("/etc/systemd/logind.conf", "[Login]\nRemoveIPC=yes \n");
    EXPECT_EQ(look("ipc-limits", machine.evidence()).verdict, Verdict::warn);
    machine.raw("/etc/systemd/logind.conf", "[Login]\nRemoveIPC = yes\n");
    const Outcome on = look("ipc-limits", machine.evidence());
    EXPECT_EQ(on.verdict, Verdict::warn);
    EXPECT_TRUE(saw(on, "/etc/systemd/logind.conf", "RemoveIPC=yes"));

    // A piece of /etc hides the one of the same name elsewhere; a later name counts more than an earlier.
    machine.raw("/etc/systemd/logind.conf.d/10-a.conf", "[Login]\nRemoveIPC=no\n");
    EXPECT_EQ(look("ipc-limits", machine.evidence()).verdict, Verdict::pass);
    machine.raw("/usr/lib/systemd/logind.conf.d/10-a.conf", "[Login]\nRemoveIPC=yes\n");
    EXPECT_EQ(look("ipc-limits", machine.evidence()).verdict, Verdict::pass);
    machine.raw("/usr/lib/systemd/logind.conf.d/20-b.conf", "[Login]\nRemoveIPC=yes\n");
    EXPECT_TRUE(saw(look("ipc-limits", machine.evidence()), "20-b.conf", "yes"));
    EXPECT_EQ(look("ipc-limits", machine.evidence()).verdict, Verdict::warn);

    machine.raw("/proc/self/status", "Uid:\t0\t0\t0\t0\n");
    EXPECT_EQ(look("ipc-limits", machine.evidence()).verdict, Verdict::pass)
        << "users of the system are spared";
}

TEST(IpcLimitsCheck, FilesAndStack) {
    H200Machine machine;
    limits(machine, "8388608 unlimited", "256 4096", "unlimited unlimited");
    const Outcome files = look("ipc-limits", machine.evidence());
    EXPECT_EQ(files.verdict, Verdict::warn);
    EXPECT_EQ(files.command, "ulimit -n 4096");
    limits(machine, "8388608 unlimited", "256 unlimited", "unlimited unlimited");
    EXPECT_EQ(look("ipc-limits", machine.evidence()).command, "ulimit -n 65536");
    limits(machine, "8388608 unlimited", "256 256", "unlimited unlimited");
    EXPECT_NE(look("ipc-limits", machine.evidence()).command.find("/etc/security/limits.d"),
              std::string::npos);
    limits(machine, "unlimited unlimited", "256 4096", "unlimited unlimited");
    EXPECT_EQ(look("ipc-limits", machine.evidence()).command, "ulimit -n 4096; ulimit -s 8192") << "both";
    limits(machine, "unlimited unlimited", "1024 4096", "unlimited unlimited");
    const Outcome stack = look("ipc-limits", machine.evidence());
    EXPECT_EQ(stack.verdict, Verdict::warn);
    EXPECT_EQ(stack.command, "ulimit -s 8192");
    EXPECT_TRUE(saw(stack, "Max stack size", "unlimited"));
    limits(machine, "8388608 unlimited", "1024 4096", "unlimited unlimited");
    EXPECT_EQ(look("ipc-limits", machine.evidence()).verdict, Verdict::pass);
    machine.remove("/proc/self/limits");
    EXPECT_EQ(look("ipc-limits", machine.evidence()).verdict, Verdict::unknown);
}

TEST(EnvironmentCheck, SwitchesThatTakeAPathAway) {
    H200Machine machine;
    for (const char* variable :
         {"NCCL_P2P_DISABLE=1", "NCCL_P2P_LEVEL=LOC", "NCCL_P2P_LEVEL=0", "NCCL_SHM_DISABLE=1",
          "UCX_TLS=tcp,sm", "UCX_TLS=rc,cuda_copy", "UCX_TLS=^cuda_ipc", "NVSHMEM_DISABLE_P2P=true",
          "CUFILE_FORCE_COMPAT_MODE=true", "CUDA_VISIBLE_DEVICES=", "CUDA_VISIBLE_DEVICES=-1",
          "CUDA_LAUNCH_BLOCKING=1", "PYTORCH_NO_CUDA_MEMORY_CACHING=1"}) {
        machine.environment({"HOME=/home", variable});
        const Outcome outcome = look("environment-switch", machine.evidence());
        const std::string name(variable, std::strchr(variable, '='));
        EXPECT_EQ(outcome.verdict, Verdict::warn) << variable;
        EXPECT_EQ(outcome.command, "unset " + name);
        EXPECT_TRUE(saw(outcome, "/proc/self/environ: " + name, "")) << variable;
    }
}

TEST(EnvironmentCheck, HarmlessValuesAndNotesPass) {
    H200Machine machine;
    for (const char* variable : {"NCCL_P2P_DISABLE=0", "NCCL_P2P_LEVEL=SYS", "NCCL_P2P_LEVEL=NVL",
                                 "NCCL_NVLS_ENABLE=0", "UCX_TLS=all", "UCX_TLS=rc,cuda", "UCX_TLS=^tcp",
                                 "UCX_TLS=rc,cuda_copy,cuda_ipc", "CUFILE_FORCE_COMPAT_MODE=false",
                                 "CUDA_VISIBLE_DEVICES=0", "CUDA_LAUNCH_BLOCKING=0", "NCCL_DEBUG=INFO"}) {
        machine.environment({variable});
        EXPECT_EQ(look("environment-switch", machine.evidence()).verdict, Verdict::pass) << variable;
    }
    machine.environment({"NCCL_NVLS_ENABLE=0"});
    EXPECT_TRUE(saw(look("environment-switch", machine.evidence()), "NCCL_NVLS_ENABLE", "a note"));
}

TEST(EnvironmentCheck, RdmaSwitchesCountWithACardOnly) {
    H200Machine machine;
    for (const char* variable :
         {"NCCL_IB_DISABLE=1", "NCCL_NET=Socket", "NCCL_NET_GDR_LEVEL=LOC", "UCX_TLS=tcp,cuda",
          "UCX_IB_GPU_DIRECT_RDMA=n", "NVSHMEM_REMOTE_TRANSPORT=none"}) {
        machine.remove("/sys/class/infiniband");
        machine.environment({variable});
        const Outcome without = look("environment-switch", machine.evidence());
        EXPECT_EQ(without.verdict, Verdict::pass) << variable;
        EXPECT_EQ(without.seen.size(), 1U) << variable;
        machine.tree.folder("/sys/class/infiniband/mlx5_0");
        EXPECT_EQ(look("environment-switch", machine.evidence()).verdict, Verdict::warn) << variable;
    }
}

TEST(EnvironmentCheck, TwoGpuSwitchesDoNotCountForOne) {
    H200Machine machine;
    machine.nvml.gpus.resize(1);
    machine.environment({"NCCL_P2P_DISABLE=1"});
    EXPECT_EQ(look("environment-switch", machine.evidence()).verdict, Verdict::pass);
}

TEST(EnvironmentCheck, PeerAccessThatIsNotThereIsNotMissed) {
    H200Machine machine;
    machine.environment({"NCCL_P2P_DISABLE=1"});
    Evidence evidence = machine.evidence();
    const Outcome outcome = look("environment-switch", evidence);
    EXPECT_NEAR(outcome.cost_gb_per_s.value_or(0), 396 - 55.5, 1) << "NVLink against PCIe";

    evidence.probe.emplace();
    evidence.probe->pairs.push_back({});
    EXPECT_EQ(look("environment-switch", evidence).verdict, Verdict::warn);
    evidence.probe->pairs[0].intact = false;
    EXPECT_EQ(look("environment-switch", evidence).verdict, Verdict::pass)
        << "switched off for a good reason";

    GeforceBox without;
    without.environment({"NCCL_P2P_DISABLE=1"});
    const Outcome note = look("environment-switch", without.evidence());
    EXPECT_EQ(note.verdict, Verdict::pass) << "what geforce-no-p2p tells to set";
    EXPECT_TRUE(saw(note, "NCCL_P2P_DISABLE", "a note"));
}

TEST(EnvironmentCheck, NcclsOwnFile) {
    H200Machine machine;
    machine.raw("/etc/nccl.conf", "# a comment\nNCCL_DEBUG=WARN\nNCCL_P2P_DISABLE=1\n");
    const Outcome outcome = look("environment-switch", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_TRUE(saw(outcome, "/etc/nccl.conf: NCCL_P2P_DISABLE", "1"));
    EXPECT_EQ(outcome.command, "grep -n = /etc/nccl.conf");
    machine.environment({"NCCL_P2P_DISABLE=0"});
    EXPECT_EQ(look("environment-switch", machine.evidence()).verdict, Verdict::pass)
        << "the environment wins";
}

TEST(EnvironmentCheck, NcclsFileOfTheUser) {
    H200Machine machine;
    machine.raw("/etc/nccl.conf", "NCCL_P2P_DISABLE=1\n");
    machine.raw("/home/.nccl.conf", "NCCL_P2P_DISABLE=0\nNCCL_P2P_DISABLE=1\nNCCL_SHM_DISABLE=1\n");
    const Outcome outcome = look("environment-switch", machine.evidence());
    EXPECT_EQ(outcome.summary, "switched off by NCCL_SHM_DISABLE") << "what is set first counts";
    EXPECT_TRUE(saw(outcome, "/home/.nccl.conf: NCCL_SHM_DISABLE", "1"));
    EXPECT_EQ(outcome.command, "grep -n = /home/.nccl.conf");

    machine.raw("/opt/nccl", "NCCL_P2P_DISABLE=1\n");
    machine.link("/proc/self/cwd", "../../opt");
    for (const char* named : {"NCCL_CONF_FILE=/opt/nccl", "NCCL_CONF_FILE=nccl"}) {
        machine.environment({"HOME=/home", named});
        const Outcome in_place = look("environment-switch", machine.evidence());
        EXPECT_EQ(in_place.summary, "switched off by NCCL_P2P_DISABLE") << named;
        EXPECT_TRUE(saw(in_place, "/nccl: NCCL_P2P_DISABLE", "1")) << named;
    }
    machine.environment({"HOME=/home", "NCCL_CONF_FILE="});
    EXPECT_EQ(look("environment-switch", machine.evidence()).command, "grep -n = /home/.nccl.conf");
}

TEST(EnvironmentCheck, UnreadableIsUnknown) {
    H200Machine machine;
    machine.tree.write("/sidestep/denied", "/proc/self/environ");
    const Outcome outcome = look("environment-switch", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::unknown);
    EXPECT_TRUE(saw(outcome, "/proc/self/environ", "denied"));
}

// The ids with a verdict other than pass, and that verdict.
std::set<std::string> alarms(const Machine& machine) {
    std::set<std::string> found;
    const Evidence evidence = machine.evidence();
    for (const auto& checks : {gpu_gpu_checks(), host_checks()}) {
        for (const Check& check : checks) {
            const Outcome outcome = check.look(evidence);
            EXPECT_FALSE(outcome.summary.empty()) << check.id;
            if (outcome.verdict == Verdict::pass) continue;
            EXPECT_FALSE(outcome.seen.empty()) << check.id;
            EXPECT_NE(std::strlen(check.remedy) + outcome.remedy.size(), 0U) << check.id;
            found.insert(std::string(check.id) + " " + std::string(to_string(outcome.verdict)));
        }
    }
    return found;
}

using Alarms = std::set<std::string>;
const Alarms untried = {"p2p-slow unknown", "p2p-wrong-data unknown"};

TEST(NoFalseAlarms, Server) {
    EXPECT_EQ(alarms(H200Machine()), untried);
}

TEST(NoFalseAlarms, VirtualMachine) {
    EXPECT_EQ(alarms(H200Guest()), untried);
}

TEST(NoFalseAlarms, LaptopWithoutGpu) {
    EXPECT_EQ(alarms(Laptop()), Alarms{});
}

TEST(NoFalseAlarms, NothingAtAll) {
    EXPECT_EQ(alarms(Machine()), Alarms{});
}

TEST(NoFalseAlarms, SandboxWithoutFiles) {
    Alarms expected = untried;
    for (const char* unseen : {"vmm-ipc unknown", "environment-switch unknown", "ipc-limits unknown"})
        expected.insert(unseen);
    EXPECT_EQ(alarms(Sandbox()), expected);
}

TEST(NoFalseAlarms, TwoGeforceCards) {
    Alarms expected = untried;
    for (const char* true_ones : {"geforce-no-p2p warn", "pcie-trained-down unknown"})
        expected.insert(true_ones);
    EXPECT_EQ(alarms(GeforceBox()), expected);
}

TEST(NoFalseAlarms, MigIsBlamedAlone) {
    H200Machine machine;
    for (auto& gpu : machine.nvml.gpus) {
        gpu.facts.mig = true;
        for (auto& link : gpu.links) link.active = false;
    }
    for (int from = 0; from < 4; ++from) {
        for (int to = 0; to < 4; ++to) {
            for (const auto asked : {driver::P2pCapability::read, driver::P2pCapability::write})
                machine.nvml.p2p_status[{from, to, asked}] = driver::P2pStatus::not_supported;
        }
    }
    Alarms expected = untried;
    expected.insert("mig-on warn");
    EXPECT_EQ(alarms(machine), expected);
}

TEST(Words, EveryCheckHasThemAndAnIdOfItsOwn) {
    std::set<std::string> ids;
    for (const auto& checks : {gpu_gpu_checks(), host_checks()}) {
        for (const Check& check : checks) {
            EXPECT_TRUE(ids.insert(check.id).second) << check.id;
            for (const char* text : {check.title, check.symptom, check.looks_at, check.cost, check.remedy,
                                     check.command, check.sources})
                EXPECT_GT(std::strlen(text), 5U) << check.id;
            EXPECT_EQ(std::string(check.id).find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-"),
                      std::string::npos);
        }
    }
    EXPECT_EQ(ids.size(), 19U);
}

}  // namespace
}  // namespace sidestep::diagnose
