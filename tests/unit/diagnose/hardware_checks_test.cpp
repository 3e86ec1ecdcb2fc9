// Each sign of failing hardware: found where it is, not found where it is not.
#include "tests/unit/diagnose/whole_machines.hpp"

#include <fmt/format.h>

#include "diagnose/diagnose.hpp"
#include "diagnose/driver_records.hpp"
#include "diagnose/record_masks.hpp"
#include "diagnose/topology_evidence.hpp"
#include "topology/nvml_record_reader.hpp"

namespace sidestep::diagnose {
namespace {

void drive(Machine& machine, const std::string& bus_id, const std::string& driver) {
    machine.link("/sys/bus/pci/devices/" + bus_id + "/driver", "/nowhere");
    machine.tree.folder("/sys/bus/pci/drivers/" + driver);
    machine.remove("/sys/bus/pci/devices/" + bus_id + "/driver");
    std::filesystem::create_symlink(machine.tree.root() + "/sys/bus/pci/drivers/" + driver,
                                    machine.tree.root() + "/sys/bus/pci/devices/" + bus_id + "/driver");
}

TEST(GpuLost, NamesTheGpuThatNvmlDoesNotList) {
    HgxServer machine;
    for (const auto& gpu : machine.nvml.gpus) drive(machine, gpu.facts.bus_id, "nvidia");
    EXPECT_EQ(verdict(machine, "gpu-lost"), Verdict::pass);
    const std::string gone = machine.nvml.gpus.back().facts.bus_id;
    machine.nvml.gpus.pop_back();
    const Outcome outcome = see(machine, "gpu-lost");
    EXPECT_EQ(outcome.verdict, Verdict::fail);
    EXPECT_NE(outcome.summary.find(gone), std::string::npos) << outcome.summary;
    in_docker(machine);
    EXPECT_EQ(verdict(machine, "gpu-lost"), Verdict::pass) << "a container may be given fewer";
}

TEST(GpuLost, BlamesNobodyForAGpuThatAGuestHas) {
    HgxServer machine;
    for (const auto& gpu : machine.nvml.gpus) drive(machine, gpu.facts.bus_id, "nvidia");
    drive(machine, machine.nvml.gpus.back().facts.bus_id, "vfio-pci");
    machine.nvml.gpus.pop_back();
    EXPECT_EQ(verdict(machine, "gpu-lost"), Verdict::pass);
}

TEST(GpuLost, BlamesNobodyForAGpuThatAnotherJobHas) {
    HgxServer machine;
    int minor = 0;
    for (const auto& gpu : machine.nvml.gpus) {
        drive(machine, gpu.facts.bus_id, "nvidia");
        machine.raw("/proc/driver/nvidia/gpus/" + gpu.facts.bus_id + "/information",
                    "Model: \t\t NVIDIA H200\nDevice Minor: \t " + std::to_string(minor) + "\n");
        machine.raw("/dev/nvidia" + std::to_string(minor++), "");
    }
    const std::string last = "/dev/nvidia" + std::to_string(minor - 1);
    machine.tree.write(driver::MachineFiles::denied_list, last);
    machine.nvml.gpus.back().lost = true;  // counted, and not opened
    EXPECT_EQ(see(machine, "gpu-lost").summary,
              fmt::format("this process is given {} of {} GPUs", minor - 1, minor));
    machine.nvml.gpus.pop_back();
    EXPECT_EQ(see(machine, "gpu-lost").summary,
              fmt::format("this process is given {} of {} GPUs", minor - 1, minor));
    const std::string gone = machine.nvml.gpus.back().facts.bus_id;
    machine.nvml.gpus.pop_back();
    EXPECT_NE(see(machine, "gpu-lost").summary.find("lost it: " + gone), std::string::npos)
        << "of its own GPUs";
}

TEST(GpuLost, CountsOneThatNvmlDoesNotOpen) {
    HgxServer machine;
    machine.nvml.gpus[1].lost = true;
    const Outcome outcome = see(machine, "gpu-lost");
    EXPECT_EQ(outcome.verdict, Verdict::fail);
    EXPECT_TRUE(saw(outcome, "nvmlDeviceGetHandleByIndex(1)", "lost"));
}

TEST(Xid, TellsHardwareFromPrograms) {
    const struct {
        const char* line;
        Verdict verdict;
    } cases[] = {
        {"NVRM: Xid (PCI:0000:61:00): 79, pid=7, GPU has fallen off the bus.", Verdict::fail},
        {"[12.3] NVRM: Xid (PCI:0000:61:00): 48, DBE", Verdict::fail},
        {"NVRM: Xid (PCI:0000:61:00): 13, Graphics Exception", Verdict::pass},
        {"NVRM: Xid (PCI:0000:61:00", Verdict::pass},
        {"usb 1-1: new device", Verdict::pass},
    };
    for (const auto& one : cases) {
        HgxServer machine;
        Evidence evidence = machine.evidence();
        evidence.kernel_log = {true, "", {one.line}};
        EXPECT_EQ(look("xid", evidence).verdict, one.verdict) << one.line;
    }
    HgxServer machine;
    Evidence evidence = machine.evidence();
    evidence.kernel_log = {false, "denied", {}};
    EXPECT_EQ(look("xid", evidence).verdict, Verdict::unknown);
}

TEST(KernelLog, KeepsWhatTellsAndNamesNobody) {
    const std::string fallen = "NVRM: Xid (PCI:0): 79\n";
    EXPECT_EQ(driver::telling_lines("a\n" + fallen + "b\n").size(), 1U);
    // A port and a program that are at it all night do not push it out.
    for (const char* noise : {"pcieport: AER: Corrected\n", "NVRM: Xid (PCI:0): 31\n"}) {
        std::string log = fallen;
        for (int i = 0; i < 1000; ++i) log += noise;
        EXPECT_EQ(driver::telling_lines(log).front() + "\n", fallen) << noise;
    }
    EXPECT_EQ(driver::telling_lines(std::string(1000, 'x') + "\n").size(), 0U);
    EXPECT_EQ(masked(kernel_log_record, "NVRM: Xid (PCI:0): 79, pid=12, name=mine.py, GPU\n", ""),
              "NVRM: Xid (PCI:0): 79, GPU\n");
}

TEST(KernelLog, ComesWithARecord) {
    HgxServer machine;
    const auto without = gather(machine.tree.root());
    ASSERT_TRUE(without.ok()) << without.error().to_string();
    EXPECT_FALSE(without->kernel_log.told);
    machine.raw(kernel_log_record, "NVRM: Xid (PCI:0000:1d:00): 79, GPU has fallen off the bus.\nother\n");
    const auto with = gather(machine.tree.root());
    ASSERT_TRUE(with.ok()) << with.error().to_string();
    EXPECT_EQ(with->kernel_log.lines.size(), 1U);
    EXPECT_EQ(look("xid", *with).verdict, Verdict::fail);
}

// One of eight alike differs in one thing.
TEST(OddOneOut, NamesTheDeviceAndWhatDiffers) {
    const struct {
        const char* fault;
        const char* words;
    } cases[] = {
        {"gpu:3.width=8", "gpu:3: lanes x8, the others x16"},
        {"gpu:5.nvlinks=17", "gpu:5: NVLinks 17, the others 18"},
        {"gpu:2.memory=40", "gpu:2: memory 40 GiB, the others"},
        {"nic:mlx5_0.rate=200", "nic:mlx5_0: rate of port 1 200 Gb/sec, the others 400 Gb/sec"},
    };
    const Evidence well = evidence_of(*Topology::open("dgx-h100"));
    EXPECT_EQ(look("odd-one-out", well).verdict, Verdict::pass) << look("odd-one-out", well).summary;
    for (const auto& one : cases) {
        const auto topology = Topology::open(std::string("dgx-h100!") + one.fault);
        ASSERT_TRUE(topology.ok()) << topology.error().to_string();
        const Outcome outcome = look("odd-one-out", evidence_of(*topology));
        EXPECT_EQ(outcome.verdict, Verdict::warn) << one.fault;
        EXPECT_NE(outcome.summary.find(one.words), std::string::npos) << outcome.summary;
    }
    // A card that never could do more is no trained-down link, and still half of its neighbours.
    auto parts = Topology::open("dgx-h100!gpu:3.width=8")->parts();
    for (Device& device : parts.devices) device.properties.erase("pcie_max");
    const Outcome half = look("odd-one-out", evidence_of(*Topology::create(parts)));
    EXPECT_GT(half.cost_gb_per_s.value_or(0), 20) << half.summary;
}

// NCCL's file of a machine with a card a GPU, below the same switch.
TEST(Topologies, CardsOfNcclsFilesCount) {
    const auto machine =
        Topology::open(std::string(SIDESTEP_SOURCE_DIR) + "/tests/recorded/nccl/hgx-h200.xml");
    ASSERT_TRUE(machine.ok()) << machine.error().to_string();
    const Outcome outcome = look("gpu-nic-far", evidence_of(*machine));
    EXPECT_TRUE(outcome.applies);
    EXPECT_EQ(outcome.verdict, Verdict::pass) << outcome.summary;
}

TEST(OddOneOut, NeedsThreeAlikeAndAMajority) {
    EXPECT_FALSE(look("odd-one-out", evidence_of(*Topology::open("laptop"))).applies);
    const auto even = Topology::open("pcie-4l40s!gpu:0.width=8!gpu:1.width=8");
    EXPECT_EQ(look("odd-one-out", evidence_of(*even)).verdict, Verdict::pass);
}

TEST(PcieErrors, CountReplaysAndReports) {
    HgxServer machine;
    for (auto& gpu : machine.nvml.gpus) gpu.facts.pcie_replays = 7;
    EXPECT_EQ(verdict(machine, "pcie-errors"), Verdict::pass);
    machine.nvml.gpus[1].facts.pcie_replays = 48213;
    const Outcome noisy = see(machine, "pcie-errors");
    EXPECT_EQ(noisy.verdict, Verdict::warn);
    EXPECT_TRUE(saw(noisy, "nvmlDeviceGetPcieReplayCounter(gpu:1)", "48213"));
    const std::string folder = "/sys/bus/pci/devices/" + machine.nvml.gpus[0].facts.bus_id;
    machine.raw(folder + "/aer_dev_nonfatal", "DLP 0\nUnsupReq 9\nTOTAL_ERR_NONFATAL 9\n");
    EXPECT_EQ(verdict(machine, "pcie-errors"), Verdict::warn) << "asked on purpose";
    machine.raw(folder + "/aer_dev_fatal", "DLP 2\nUnsupReq 0\nTOTAL_ERR_FATAL 2\n");
    const Outcome broken = see(machine, "pcie-errors");
    EXPECT_EQ(broken.verdict, Verdict::fail);
    EXPECT_TRUE(saw(broken, folder + "/aer_dev_fatal", "2"));
}

// What NVML counts -> what each check says of it.
TEST(GpuCounters, AreJudged) {
    using driver::NvmlCounters;
    const auto counted = [](auto set) {
        NvmlCounters counters;
        counters.ecc_uncorrected = counters.nvlink_crc_errors = counters.nvlink_recoveries = 0;
        counters.remap_pending = counters.remap_failed = false;
        counters.slowed_by = 1;  // idle
        set(counters);
        return counters;
    };
    const struct {
        const char* check;
        NvmlCounters counters;
        Verdict verdict;
    } cases[] = {
        {"gpu-memory-errors", counted([](auto&) {}), Verdict::pass},
        {"gpu-memory-errors", counted([](auto& c) { c.ecc_uncorrected = 1; }), Verdict::fail},
        {"gpu-memory-errors", counted([](auto& c) { c.ecc_corrected = 5000; }), Verdict::pass},
        {"gpu-memory-errors", counted([](auto& c) { c.remap_failed = true; }), Verdict::fail},
        {"gpu-memory-errors", counted([](auto& c) { c.remap_pending = true; }), Verdict::warn},
        {"gpu-memory-errors", {}, Verdict::unknown},
        {"nvlink-errors", counted([](auto&) {}), Verdict::pass},
        {"nvlink-errors", counted([](auto& c) { c.nvlink_crc_errors = 999; }), Verdict::pass},
        {"nvlink-errors", counted([](auto& c) { c.nvlink_crc_errors = 1000; }), Verdict::warn},
        {"nvlink-errors", counted([](auto& c) { c.nvlink_recoveries = 1; }), Verdict::warn},
        {"nvlink-errors", {}, Verdict::unknown},
        {"throttling", counted([](auto&) {}), Verdict::pass},
        {"throttling", counted([](auto& c) { c.slowed_by = 4; }), Verdict::pass},
        {"throttling", counted([](auto& c) { c.slowed_by = 0x40; }), Verdict::warn},
        {"throttling", {}, Verdict::unknown},
    };
    for (const auto& one : cases) {
        HgxServer machine;
        for (auto& gpu : machine.nvml.gpus) gpu.counters = one.counters;
        const Outcome outcome = see(machine, one.check);
        EXPECT_EQ(outcome.verdict, one.verdict) << one.check << ": " << outcome.summary;
        // A record carries them.
        auto replayed = topology::nvml_from_json(topology::nvml_to_json(machine.nvml), "nvml.json");
        ASSERT_TRUE(replayed.ok());
        Evidence evidence = machine.evidence();
        evidence.nvml = std::shared_ptr<const driver::Nvml>((*replayed).release());
        EXPECT_EQ(look(one.check, evidence).summary, outcome.summary) << one.check;
    }
}

// Expected -> found -> the words of the difference; none: it is as expected.
TEST(Expectation, NamesEachDifference) {
    const struct {
        const char* expected;
        const char* found;
        const char* words;
    } cases[] = {
        {"dgx-h100", "dgx-h100", ""},
        {"dgx-h100", "dgx-h100!gpu:3.width=8",
         "1 difference from dgx-h100: gpu:3: lanes is x8, expected x16"},
        {"dgx-h100", "dgx-h100!gpu:6.lost", "gpu: 7 of 8 are there; missing: 0000:d1:00.0"},
        {"dgx-h100", "dgx-h200", "model is NVIDIA H200, expected NVIDIA H100 80GB HBM3"},
        {"dgx-h100", "dgx-h100!gpu:0.nvlinks=16", "gpu:0: NVLinks is 16, expected 18"},
        {"dgx-h100", "dgx-h100!nic-rate", "rate of port 1 is 200 Gb/sec"},
        {"laptop", "dgx-h100", "gpu: 8 of 1 are there"},
    };
    for (const auto& one : cases) {
        Evidence evidence = evidence_of(*Topology::open(one.found));
        EXPECT_FALSE(look("expectation", evidence).applies);
        evidence.expected = *Topology::open(one.expected);
        const Outcome outcome = look("expectation", evidence);
        const std::string words = one.words;
        EXPECT_EQ(outcome.verdict, words.empty() ? Verdict::pass : Verdict::fail) << one.found;
        EXPECT_NE(outcome.summary.find(words), std::string::npos) << outcome.summary;
    }
}

}  // namespace
}  // namespace sidestep::diagnose
