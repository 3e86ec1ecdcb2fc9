// NVLink, its fabric, channels between machines, and memory that cannot be shared.
#include "tests/unit/diagnose/other_machines.hpp"

namespace sidestep::diagnose {
namespace {

using driver::FabricState;

void name_gpus(Machine& machine, const std::string& name) {
    for (auto& gpu : machine.nvml.gpus) gpu.facts.name = name;
}
void set_links(Machine& machine, std::size_t listed, std::size_t active) {
    for (auto& gpu : machine.nvml.gpus) {
        gpu.links.assign(listed, driver::NvmlLink{false, driver::NvlinkRemote::unknown, "", 0});
        for (std::size_t link = 0; link < active; ++link)
            gpu.links[link] = driver::NvmlLink{true, driver::NvlinkRemote::nvswitch, "", 25};
    }
}

TEST(FabricChecks, RegisteredGpusPass) {
    H200Machine machine;
    const Outcome outcome = look("fabric-manager", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::pass);
    EXPECT_TRUE(saw(outcome, "nvmlDeviceGetGpuFabricInfoV(gpu:3)", "completed"));
}

TEST(FabricChecks, CudaError802Fails) {
    H200Machine machine;
    machine.cuda.init_code = 802;
    machine.cuda.init_words = "CUDA_ERROR_SYSTEM_NOT_READY";
    const Outcome outcome = look("fabric-manager", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::fail);
    EXPECT_TRUE(saw(outcome, "cuInit", "802 CUDA_ERROR_SYSTEM_NOT_READY"));
    machine.has_nvml = false;
    EXPECT_EQ(look("fabric-manager", machine.evidence()).verdict, Verdict::fail) << "cuInit alone is enough";
}

TEST(FabricChecks, StatesOfTheFabric) {
    H200Machine machine;
    auto& fabric = *machine.nvml.gpus[2].fabric;
    fabric.state = FabricState::not_started;
    const Outcome down = look("fabric-manager", machine.evidence());
    EXPECT_EQ(down.verdict, Verdict::fail);
    EXPECT_NE(down.summary.find("gpu:2"), std::string::npos);
    EXPECT_EQ(down.summary.find("gpu:1"), std::string::npos);

    fabric.state = FabricState::in_progress;
    EXPECT_EQ(look("fabric-manager", machine.evidence()).verdict, Verdict::warn);

    fabric.state = FabricState::completed;
    fabric.status = 999;
    const Outcome failed = look("fabric-manager", machine.evidence());
    EXPECT_EQ(failed.verdict, Verdict::fail);
    EXPECT_TRUE(saw(failed, "gpu:2", "with error 999"));
}

TEST(FabricChecks, HealthIsPutInWords) {
    H200Machine machine;
    struct Case {
        unsigned health;
        const char* words;  // empty: well
    };
    // Fields of nvml.h: 2 says no, 1 says yes; configuration in bits 8 to 11, where 1 is right.
    for (const Case& tried :
         {Case{0, ""}, Case{2U | 2U << 2 | 2U << 4 | 2U << 6 | 1U << 8, ""}, Case{1, "bandwidth degraded"},
          Case{1U << 2, "route recovery"}, Case{1U << 4, "route unhealthy"}, Case{1U << 6, "access timeout"},
          Case{4U << 8, "no partition"}, Case{5U << 8, "too few NVLinks"}}) {
        machine.nvml.gpus[1].fabric->health = tried.health;
        const Outcome outcome = look("fabric-manager", machine.evidence());
        const bool well = *tried.words == '\0';
        EXPECT_EQ(outcome.verdict, well ? Verdict::pass : Verdict::warn) << tried.words;
        EXPECT_TRUE(saw(outcome, "gpu:1", tried.words)) << tried.words;
    }
}

TEST(FabricChecks, OlderSwitchesSpeakThroughCuda) {
    H200Machine machine;
    for (auto& gpu : machine.nvml.gpus) gpu.fabric.reset();
    EXPECT_EQ(look("fabric-manager", machine.evidence()).verdict, Verdict::pass);
    machine.cuda.loaded = false;
    machine.cuda.reason = "no libcuda";
    const Outcome outcome = look("fabric-manager", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::unknown);
    EXPECT_TRUE(saw(outcome, "CUDA", "no libcuda"));
}

TEST(FabricChecks, WithoutNvswitchNothingIsNeeded) {
    EXPECT_FALSE(look("fabric-manager", GeforceBox().evidence()).applies);
    EXPECT_FALSE(look("fabric-manager", Laptop().evidence()).applies);
}

TEST(NvlinkChecks, LinksOfAProductThatAreDownFail) {
    H200Machine machine;
    EXPECT_EQ(look("nvlinks-inactive", machine.evidence()).verdict, Verdict::pass);
    for (int link = 0; link < 4; ++link)
        machine.nvml.gpus[2].links[static_cast<std::size_t>(link)].active = false;
    const Outcome outcome = look("nvlinks-inactive", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::fail);
    EXPECT_NE(outcome.summary.find("up to 4 NVLinks of a GPU are down: gpu:2"), std::string::npos)
        << outcome.summary;
    EXPECT_TRUE(saw(outcome, "gpu:2", "14 active of 18, 18 are wired"));
    EXPECT_NEAR(outcome.cost_gb_per_s.value_or(0), 4 * 26.562 * 396 / 478.1, 0.1);
}

TEST(NvlinkChecks, AMissingLinkCostsWhatItsGenerationReaches) {
    H200Machine machine;
    set_links(machine, 18, 17);
    for (auto& gpu : machine.nvml.gpus)
        for (auto& link : gpu.links) link.gb_per_s = 53.125;
    const Outcome outcome = look("nvlinks-inactive", machine.evidence());
    EXPECT_NEAR(outcome.cost_gb_per_s.value_or(0), 770.0 / 18, 0.01) << "of the fifth generation";
}

TEST(NvlinkChecks, ProductsAgainstTheirPublishedNumbers) {
    H200Machine machine;
    struct Case {
        const char* name;
        std::size_t listed;
        std::size_t active;
        Verdict verdict;
        bool applies;
    };
    for (const Case& tried : {
             Case{"NVIDIA A800-SXM4-80GB", 12, 8, Verdict::pass, true},
             Case{"NVIDIA A800-SXM4-80GB", 8, 7, Verdict::fail, true},
             Case{"NVIDIA H800", 18, 8, Verdict::pass, true},
             Case{"NVIDIA H20", 18, 12, Verdict::fail, true},
             Case{"NVIDIA H100 80GB HBM3", 18, 0, Verdict::fail, true},
             Case{"NVIDIA A100-SXM4-40GB", 12, 12, Verdict::pass, true},
             Case{"NVIDIA A100-SXM4-40GB", 12, 11, Verdict::fail, true},
             Case{"Tesla V100-SXM2-32GB", 6, 4, Verdict::fail, true},
             Case{"NVIDIA GB200", 18, 18, Verdict::pass, true},
             // Cards without a bridge, with all bridges, and with one of three.
             Case{"NVIDIA H100 PCIe", 18, 0, Verdict::pass, true},
             Case{"NVIDIA A100 80GB PCIe", 12, 12, Verdict::pass, true},
             Case{"NVIDIA H100 NVL", 18, 12, Verdict::pass, true},
             Case{"NVIDIA A100 80GB PCIe", 12, 4, Verdict::warn, true},
             // Not in the table: only a part that is down counts.
             Case{"NVIDIA GeForce RTX 3090", 4, 0, Verdict::pass, true},
             Case{"NVIDIA GeForce RTX 3090", 4, 3, Verdict::warn, true},
             Case{"NVIDIA GH200 480GB", 18, 0, Verdict::pass, true},
             Case{"NVIDIA L40S", 0, 0, Verdict::pass, false},
             Case{"NVIDIA H100 80GB HBM3", 0, 0, Verdict::fail, true},
             // A variant with fewer links than the table has: the driver lists what there is.
             Case{"NVIDIA H100 64GB HBM2", 12, 12, Verdict::pass, true},
         }) {
        name_gpus(machine, tried.name);
        set_links(machine, tried.listed, tried.active);
        const Outcome outcome = look("nvlinks-inactive", machine.evidence());
        EXPECT_EQ(outcome.verdict, tried.verdict) << tried.name << " " << tried.active << outcome.summary;
        EXPECT_EQ(outcome.applies, tried.applies) << tried.name << " " << tried.active;
    }
}

TEST(NvlinkChecks, LinksOfAGuestMayLeadToOthers) {
    H200Guest guest;
    name_gpus(guest, "Tesla V100-SXM2-16GB");
    set_links(guest, 6, 4);
    EXPECT_EQ(look("nvlinks-inactive", guest.evidence()).verdict, Verdict::unknown);
}

TEST(NvlinkChecks, ModesThatTakeNvlinkAwayAreNotCountedTwice) {
    H200Machine machine;
    set_links(machine, 18, 0);
    for (auto& gpu : machine.nvml.gpus) gpu.facts.mig = true;
    EXPECT_FALSE(look("nvlinks-inactive", machine.evidence()).applies);
    for (auto& gpu : machine.nvml.gpus) gpu.facts.mig = false;
    machine.nvml.confidential = true;
    EXPECT_FALSE(look("nvlinks-inactive", machine.evidence()).applies);
    machine.nvml.confidential = false;
    for (auto& gpu : machine.nvml.gpus) gpu.facts.virtualization = driver::NvmlVirtualization::vgpu;
    EXPECT_FALSE(look("nvlinks-inactive", machine.evidence()).applies);
}

TEST(NvlinkChecks, DriverOptionSwitchesNvlinkOff) {
    H200Machine machine;
    machine.raw("/proc/driver/nvidia/params", "EnableMSI: 1\nNvLinkDisable: 0\nRegistryDwords: \"\"\n");
    EXPECT_EQ(look("nvlinks-inactive", machine.evidence()).verdict, Verdict::pass);
    machine.raw("/proc/driver/nvidia/params", "EnableMSI: 1\nNvLinkDisable: 1\nRegistryDwords: \"\"\n");
    const Outcome outcome = look("nvlinks-inactive", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::fail);
    EXPECT_TRUE(saw(outcome, "/proc/driver/nvidia/params", "NvLinkDisable: 1"));
}

TEST(NvlinkChecks, UnseenWithoutNvml) {
    H200Machine machine;
    machine.has_nvml = false;
    const Outcome outcome = look("nvlinks-inactive", machine.evidence());
    EXPECT_EQ(outcome.verdict, Verdict::unknown);
    EXPECT_TRUE(saw(outcome, "NVML", "libnvidia-ml.so.1"));
}

TEST(ImexChecks, OnlyFabricsOfSeveralMachinesNeedAChannel) {
    H200Machine machine;
    EXPECT_FALSE(look("imex-missing", machine.evidence()).applies);
    for (auto& gpu : machine.nvml.gpus) gpu.fabric->cluster_uuid = std::string(31, '0') + "7";
    const Outcome missing = look("imex-missing", machine.evidence());
    EXPECT_EQ(missing.verdict, Verdict::fail);
    EXPECT_TRUE(saw(missing, "/dev/nvidia-caps-imex-channels/channel0", "does not exist"));

    machine.tree.write("/sidestep/denied", "/dev/nvidia-caps-imex-channels/channel0");
    EXPECT_TRUE(saw(look("imex-missing", machine.evidence()), "channel0", "may not be opened"));
    machine.remove("/sidestep/denied");

    machine.raw("/dev/nvidia-caps-imex-channels/channel2", "");
    const Outcome there = look("imex-missing", machine.evidence());
    EXPECT_EQ(there.verdict, Verdict::pass);
    EXPECT_TRUE(saw(there, "channel2", "exists"));

    machine.nvml.gpus[3].fabric->clique = 5;
    const Outcome split = look("imex-missing", machine.evidence());
    EXPECT_EQ(split.verdict, Verdict::warn);
    EXPECT_NE(split.summary.find("clique 5"), std::string::npos);
}

TEST(ImexChecks, AContainerIsGivenAChannel) {
    H200Machine machine;
    for (auto& gpu : machine.nvml.gpus) gpu.fabric->cluster_uuid = std::string(31, '0') + "7";
    machine.raw("/.dockerenv", "");
    EXPECT_NE(look("imex-missing", machine.evidence()).remedy.find("container"), std::string::npos);
}

TEST(SharedMemoryChecks, ExpandableSegmentsCannotBeShared) {
    H200Machine machine;
    for (const char* variable :
         {"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "PYTORCH_ALLOC_CONF=expandable_segments:True",
          "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128, expandable_segments:True",
          "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync"}) {
        machine.environment({"HOME=/home", variable});
        const Outcome outcome = look("vmm-ipc", machine.evidence());
        EXPECT_EQ(outcome.verdict, Verdict::warn) << variable;
        const std::string name = std::string(variable).substr(0, std::string(variable).find('='));
        EXPECT_EQ(outcome.command, "unset " + name);
        EXPECT_TRUE(saw(outcome, name, "")) << variable;
    }
    for (const char* variable : {"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
                                 "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128", "A=1"}) {
        machine.environment({variable});
        EXPECT_EQ(look("vmm-ipc", machine.evidence()).verdict, Verdict::pass) << variable;
    }
    machine.remove("/proc/self/environ");
    EXPECT_EQ(look("vmm-ipc", machine.evidence()).verdict, Verdict::unknown);
    EXPECT_FALSE(look("vmm-ipc", Laptop().evidence()).applies);
}

}  // namespace
}  // namespace sidestep::diagnose
