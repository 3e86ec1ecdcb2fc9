// Each cause among versions: found where it is, not found where it is not.
#include "tests/unit/diagnose/whole_machines.hpp"

#include "diagnose/checks/gpu_direct.hpp"

namespace sidestep::diagnose {
namespace {

TEST(VersionNumbers, AreReadAndCompare) {
    EXPECT_EQ(version_numbers("6.8.0-60-generic"), (std::vector<int>{6, 8, 0}));
    EXPECT_EQ(version_numbers("5.14.0-427.13.1.el9_4"), (std::vector<int>{5, 14, 0}));
    EXPECT_EQ(version_numbers("6."), (std::vector<int>{6}));
    EXPECT_TRUE(version_numbers("generic").empty());
    EXPECT_TRUE(version_numbers("").empty());
    EXPECT_LT(version_numbers("5.4.0"), (std::vector<int>{5, 12}));
    EXPECT_GT(version_numbers("99999999999999999999.1"), (std::vector<int>{5, 12}));
}

TEST(DriverMismatch, ComparesModuleAndLibrary) {
    HgxServer machine;
    EXPECT_EQ(verdict(machine, "driver-mismatch"), Verdict::pass);
    machine.raw("/proc/driver/nvidia/version",
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.10\n");
    const Outcome outcome = see(machine, "driver-mismatch");
    EXPECT_EQ(outcome.verdict, Verdict::fail);
    EXPECT_TRUE(saw(outcome, "/proc/driver/nvidia/version", "570.10"));
    EXPECT_TRUE(saw(outcome, "nvmlSystemGetDriverVersion", "580.159.04"));
}

TEST(DriverMismatch, BelievesWhatTheLibrariesSay) {
    HgxServer machine;
    machine.cuda.init_code = 803;
    machine.cuda.init_words = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH";
    EXPECT_EQ(verdict(machine, "driver-mismatch"), Verdict::fail);
    machine.cuda.init_code = 802;
    EXPECT_EQ(verdict(machine, "driver-mismatch"), Verdict::pass);
    Evidence evidence = machine.evidence();
    evidence.nvml = nullptr;
    evidence.no_nvml = "NVML cannot start: Driver/library version mismatch (code 18)";
    const Outcome outcome = look("driver-mismatch", evidence);
    EXPECT_EQ(outcome.verdict, Verdict::fail);
    EXPECT_EQ(outcome.command, "");  // the check's own: reboot
}

TEST(DriverMismatch, FailsWithoutLibraryOrDriver) {
    HgxServer machine;
    machine.has_nvml = false;
    EXPECT_EQ(see(machine, "driver-mismatch").command, "apt-get install libnvidia-compute-580");
    in_docker(machine);
    EXPECT_EQ(see(machine, "driver-mismatch").command, "docker run --gpus all IMAGE");
    machine.remove("/proc/driver/nvidia");
    const Outcome outcome = see(machine, "driver-mismatch");
    EXPECT_EQ(outcome.verdict, Verdict::fail);
    EXPECT_NE(outcome.summary.find("no NVIDIA driver is loaded"), std::string::npos);
    EXPECT_FALSE(see(Laptop(), "driver-mismatch").applies);
}

// A server whose fabric did not come up.
class FabricManager : public testing::Test {
protected:
    FabricManager() {
        for (auto& gpu : machine_.nvml.gpus) gpu.fabric->state = driver::FabricState::in_progress;
    }
    Outcome outcome() { return see(machine_, "fabric-manager-version"); }
    HgxServer machine_;
};

TEST_F(FabricManager, PassesWhereTheFabricIsUp) {
    for (auto& gpu : machine_.nvml.gpus) gpu.fabric->state = driver::FabricState::completed;
    EXPECT_EQ(outcome().verdict, Verdict::pass);
    machine_.nvml.gpus[1].fabric->status = 3;
    EXPECT_NE(outcome().verdict, Verdict::pass);
}

TEST_F(FabricManager, ComparesTheInstalledBranch) {
    const Outcome none = outcome();
    EXPECT_EQ(none.verdict, Verdict::fail);
    EXPECT_NE(none.command.find("nvidia-fabricmanager-580=580.159.04*"), std::string::npos) << none.command;
    machine_.tree.write("/var/lib/dpkg/info/nvidia-fabricmanager-570.list", "");
    EXPECT_EQ(outcome().summary, "the fabric manager is of branch 570, the driver of 580");
    EXPECT_EQ(outcome().verdict, Verdict::fail);
    machine_.tree.write("/var/lib/dpkg/info/nvidia-fabricmanager-580.list", "");
    EXPECT_EQ(outcome().verdict, Verdict::unknown);
    machine_.remove("/var/lib/dpkg");
    machine_.tree.write("/usr/bin/nv-fabricmanager", "");
    EXPECT_EQ(outcome().verdict, Verdict::unknown);
}

TEST_F(FabricManager, RunsOutsideOfContainersAndGuests) {
    in_docker(machine_);
    EXPECT_EQ(outcome().verdict, Verdict::unknown);
    CloudGuest guest;
    EXPECT_EQ(verdict(guest, "fabric-manager-version"), Verdict::pass);
    for (auto& gpu : guest.nvml.gpus) gpu.fabric->state = driver::FabricState::in_progress;
    EXPECT_FALSE(see(guest, "fabric-manager-version").applies);
    for (auto& gpu : guest.nvml.gpus) gpu.fabric->state = driver::FabricState::not_supported;
    EXPECT_FALSE(see(guest, "fabric-manager-version").applies);
}

TEST(CudaDriverOld, ComparesWithWhatIsNeeded) {
    HgxServer machine;
    EXPECT_EQ(verdict(machine, "cuda-driver-old"), Verdict::pass);
    machine.cuda.version = 12040;
    EXPECT_EQ(verdict(machine, "cuda-driver-old"), Verdict::pass);
    machine.cuda.version = 12030;
    const Outcome old = see(machine, "cuda-driver-old");
    EXPECT_EQ(old.verdict, Verdict::fail);
    EXPECT_EQ(old.summary, "the driver speaks CUDA 12.3, Sidestep's GPU backend needs 12.4");
    machine.cuda = {};
    machine.cuda.reason = "libcuda.so.1 was not found";
    EXPECT_EQ(verdict(machine, "cuda-driver-old"), Verdict::unknown);
    EXPECT_FALSE(see(Laptop(), "cuda-driver-old").applies);
}

TEST(ClosedDriver, WarnsWhereTheOpenOneWouldDoMore) {
    HgxServer machine;
    EXPECT_EQ(verdict(machine, "closed-driver"), Verdict::pass);
    machine.raw("/proc/driver/nvidia/version",
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04\n");
    const Outcome outcome = see(machine, "closed-driver");
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_TRUE(saw(outcome, "/proc/driver/nvidia/version", "x86_64 Kernel Module"));
    machine.nvml.gpus[0].facts.cc_major = 7;
    machine.nvml.gpus[0].facts.cc_minor = 0;
    EXPECT_FALSE(see(machine, "closed-driver").applies);
    machine.nvml.gpus[0].facts.cc_minor = 5;
    EXPECT_EQ(verdict(machine, "closed-driver"), Verdict::warn);
    machine.remove("/proc/driver/nvidia/version");
    EXPECT_EQ(verdict(machine, "closed-driver"), Verdict::unknown);
}

TEST(KernelOld, AsksForWhatTheMachineCanUse) {
    HgxServer machine;
    EXPECT_EQ(verdict(machine, "kernel-old"), Verdict::pass);
    machine.tree.write("/proc/sys/kernel/osrelease", "5.4.0-100-generic");
    machine.remove("/proc/driver/nvidia-fs");
    machine.remove("/proc/kallsyms");
    for (auto& device : machine.verbs.devices) device.dma_buf = false;
    EXPECT_NE(see(machine, "kernel-old").summary.find("5.12"), std::string::npos);
    EXPECT_EQ(verdict(machine, "kernel-old"), Verdict::warn);
    for (auto& device : machine.verbs.devices) device.dma_buf = true;  // a vendor brought it back
    EXPECT_NE(see(machine, "kernel-old").summary.find("6.2"), std::string::npos);
    machine.tree.write("/proc/driver/nvidia-fs/version", "version: 2.28");
    EXPECT_EQ(verdict(machine, "kernel-old"), Verdict::pass);
    machine.remove("/proc/sys/kernel/osrelease");
    EXPECT_EQ(verdict(machine, "kernel-old"), Verdict::unknown);
}

TEST(DmaBufGpu, ReadsTheAttribute) {
    HgxServer machine;
    EXPECT_EQ(verdict(machine, "dma-buf-gpu"), Verdict::pass);
    machine.cuda.gpus[3].attributes["DMA_BUF_SUPPORTED"] = 0;
    const Outcome outcome = see(machine, "dma-buf-gpu");
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_TRUE(saw(outcome, "DMA_BUF_SUPPORTED(" + H200Machine::bus_id(3), "0"));
    EXPECT_TRUE(saw(outcome, "/proc/driver/nvidia/version", "open"));
    machine.without_cards();
    EXPECT_FALSE(see(machine, "dma-buf-gpu").applies);
    machine.cuda.gpus[3].attributes.erase("DMA_BUF_SUPPORTED");
    EXPECT_EQ(verdict(machine, "dma-buf-gpu"), Verdict::unknown);
}

TEST(LibibverbsOld, AsksForTheFunction) {
    HgxServer machine;
    EXPECT_EQ(verdict(machine, "libibverbs-old"), Verdict::pass);
    for (auto& device : machine.verbs.devices) {
        device.dma_buf.reset();
        device.dma_buf_words = "libibverbs has no function ibv_reg_dmabuf_mr: rdma-core is older than 34";
    }
    const Outcome outcome = see(machine, "libibverbs-old");
    EXPECT_EQ(outcome.verdict, Verdict::warn);
    EXPECT_TRUE(saw(outcome, "libibverbs.so.1", "older than 34"));
    for (auto& device : machine.verbs.devices) device = {device.name, false, "Permission denied", {}, ""};
    EXPECT_EQ(verdict(machine, "libibverbs-old"), Verdict::unknown);
    machine.without_cards();
    EXPECT_FALSE(see(machine, "libibverbs-old").applies);
}

}  // namespace
}  // namespace sidestep::diagnose
