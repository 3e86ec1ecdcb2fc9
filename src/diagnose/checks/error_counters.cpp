// What GPUs, NVLinks and PCIe ports counted of errors, and what slows a GPU down at this moment.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <sstream>

#include "diagnose/checks/gpu_pairs.hpp"
#include "diagnose/checks/looks.hpp"
#include "topology/machine_facts_reader.hpp"

namespace sidestep::diagnose {

namespace {

using driver::NvmlCounters;

// A good link resends now and then; one with a bad contact does so all the time. Below this the loss does not
// show.
constexpr unsigned long long many = 1000;

// "TOTAL_ERR_COR 5" and the like of a file of AER; `left_out` is a line that does not count.
unsigned long long total_of(const std::string& text, std::string_view left_out) {
    std::istringstream lines(text);
    unsigned long long total = 0;
    for (std::string name; lines >> name;) {
        unsigned long long count = 0;
        lines >> count;
        if (!name.starts_with("TOTAL_ERR") && name != left_out) total += count;
    }
    return total;
}

struct PcieErrors {
    std::vector<std::string> broken;  // packets were lost
    std::vector<std::string> noisy;   // packets were sent again
    int told = 0;
};

void count_aer(const driver::MachineFiles& files, const std::string& port, const std::string& name,
               PcieErrors& errors, Outcome& outcome) {
    struct Kind {
        const char* file;
        const char* left_out;
        unsigned long long from;
        bool broken;
    };
    // Unsupported requests are asked on purpose, when the kernel looks for what a device can.
    constexpr std::array kinds = {Kind{"aer_dev_fatal", "UnsupReq", 1, true},
                                  Kind{"aer_dev_nonfatal", "UnsupReq", 1, true},
                                  Kind{"aer_dev_correctable", "NonFatalErr", many, false}};
    for (const Kind& kind : kinds) {
        const std::string path = fmt::format("/sys/bus/pci/devices/{}/{}", port, kind.file);
        const auto text = files.text(path);
        if (!text) continue;
        ++errors.told;
        const unsigned long long count = total_of(*text, kind.left_out);
        if (count < kind.from) continue;
        (kind.broken ? errors.broken : errors.noisy).push_back(name);
        outcome.saw(path, std::to_string(count));
    }
}

void count_replays(const Evidence& evidence, DeviceId gpu, PcieErrors& errors, Outcome& outcome) {
    const auto facts = nvml_facts(evidence, gpu);
    if (!facts || !facts->pcie_replays) return;
    ++errors.told;
    if (*facts->pcie_replays < many) return;
    const std::string& name = evidence.topology.device(gpu).name;
    errors.noisy.push_back(name);
    outcome.saw(fmt::format("nvmlDeviceGetPcieReplayCounter({})", name),
                std::to_string(*facts->pcie_replays));
}

// The counters of each GPU that tells some, by name.
std::vector<std::pair<std::string, NvmlCounters>> counters_of(const Evidence& evidence) {
    std::vector<std::pair<std::string, NvmlCounters>> all;
    if (!evidence.nvml) return all;
    for (const DeviceId gpu : gpus_of(evidence.topology)) {
        const Device& device = evidence.topology.device(gpu);
        const auto counters = evidence.nvml->counters(device.index);
        if (counters.ok()) all.emplace_back(device.name, *counters);
    }
    return all;
}

Outcome nothing_told(const Evidence& evidence, const char* command) {
    Outcome outcome = unknown("what the hardware counts of errors is not told");
    outcome.saw("NVML", evidence.nvml ? "does not tell" : evidence.no_nvml);
    outcome.remedy = "Ask the driver's own tool.";
    outcome.command = command;
    return outcome;
}

// NVML_CLOCKS_EVENT_REASON_*. The limit of power alone is how a busy GPU works.
struct Reason {
    unsigned long long bit;
    const char* words;
};
constexpr std::array reasons = {Reason{0x08, "hardware slowdown"}, Reason{0x20, "too hot (driver)"},
                                Reason{0x40, "too hot (hardware)"}, Reason{0x80, "power brake"}};

std::string reasons_in(unsigned long long mask) {
    std::vector<std::string> words;
    for (const Reason& reason : reasons)
        if ((mask & reason.bit) != 0) words.emplace_back(reason.words);
    return listed(words);
}

}  // namespace

Outcome look_pcie_errors(const Evidence& evidence) {
    if (gpus_of(evidence.topology).empty()) return does_not_apply("there is no GPU");
    Outcome outcome;
    PcieErrors errors;
    std::set<std::string> been;
    for (const DeviceId id : pcie_partners(evidence)) {
        const Device& device = evidence.topology.device(id);
        if (device.kind == DeviceKind::gpu) count_replays(evidence, id, errors, outcome);
        for (const std::string& port : topology::pci_walk(evidence.files, device.bus_id))
            if (been.insert(port).second)
                count_aer(evidence.files, port,
                          port == device.bus_id ? device.name
                                                : fmt::format("the port {} above {}", port, device.name),
                          errors, outcome);
    }
    if (!errors.broken.empty()) {
        outcome.verdict = Verdict::fail;
        outcome.summary = "PCIe links lost packets: " + listed(errors.broken);
    } else if (!errors.noisy.empty()) {
        outcome.verdict = Verdict::warn;
        outcome.summary = "PCIe links send many packets again: " + listed(errors.noisy);
    } else if (errors.told == 0) {
        return nothing_told(evidence,
                            "grep TOTAL /sys/bus/pci/devices/*/aer_dev_*; nvidia-smi -q | grep -i replay");
    } else {
        outcome = pass("PCIe links count few errors");
        outcome.saw("counters that were read", std::to_string(errors.told));
    }
    return outcome;
}

Outcome look_nvlink_errors(const Evidence& evidence) {
    const auto gpus = gpus_of(evidence.topology);
    if (gpus.size() < 2) return does_not_apply("there are no two GPUs that NVLink could join");
    Outcome outcome;
    std::vector<std::string> down;
    std::vector<std::string> noisy;
    int told = 0;
    for (const auto& [name, counters] : counters_of(evidence)) {
        if (!counters.nvlink_crc_errors && !counters.nvlink_replays && !counters.nvlink_recoveries) continue;
        ++told;
        const auto crc = counters.nvlink_crc_errors.value_or(0);
        const auto replays = counters.nvlink_replays.value_or(0);
        const auto recoveries = counters.nvlink_recoveries.value_or(0);
        if (recoveries == 0 && crc < many && replays < many) continue;
        (recoveries > 0 ? down : noisy).push_back(name);
        outcome.saw(fmt::format("nvmlDeviceGetNvLinkErrorCounter({})", name),
                    fmt::format("{} CRC errors, {} replays, {} recoveries", crc, replays, recoveries));
    }
    if (!down.empty() || !noisy.empty()) {
        outcome.verdict = Verdict::warn;
        outcome.summary = down.empty() ? "NVLinks send many packets again: " + listed(noisy)
                                       : "NVLinks had to be started again: " + listed(down);
        return outcome;
    }
    if (told == 0) {
        const bool linked = std::any_of(evidence.topology.links().begin(), evidence.topology.links().end(),
                                        [](const Link& link) { return link.kind == LinkKind::nvlink; });
        if (!linked && evidence.nvml) return does_not_apply("no GPU has NVLinks that it may use");
        return nothing_told(evidence, "nvidia-smi nvlink -e");
    }
    outcome = pass("NVLinks count few errors");
    return outcome.saw("GPUs that tell", std::to_string(told));
}

Outcome look_gpu_memory(const Evidence& evidence) {
    if (gpus_of(evidence.topology).empty()) return does_not_apply("there is no GPU");
    Outcome outcome;
    std::vector<std::string> broken;
    std::vector<std::string> waiting;
    int told = 0;
    for (const auto& [name, counters] : counters_of(evidence)) {
        if (!counters.ecc_uncorrected && !counters.remap_failed) continue;
        ++told;
        const bool failed = counters.remap_failed.value_or(false);
        const auto wrong = counters.ecc_uncorrected.value_or(0);
        const bool pending = counters.remap_pending.value_or(false);
        if (!failed && wrong == 0 && !pending) continue;
        (failed || wrong > 0 ? broken : waiting).push_back(name);
        outcome.saw(fmt::format("nvmlDeviceGetTotalEccErrors({})", name),
                    fmt::format("{} not corrected", wrong));
        outcome.saw(
            fmt::format("nvmlDeviceGetRemappedRows({})", name),
            fmt::format("{} rows replaced{}{}", counters.remapped_rows.value_or(0),
                        pending ? ", one waits for a reset" : "", failed ? ", no spare row is left" : ""));
    }
    if (!broken.empty()) {
        outcome.verdict = Verdict::fail;
        outcome.summary = "the memory of a GPU fails: " + listed(broken);
    } else if (!waiting.empty()) {
        outcome.verdict = Verdict::warn;
        outcome.summary = "a row of memory waits to be replaced: " + listed(waiting);
        outcome.remedy = "Stop what runs on the GPU and reset it: the row is replaced then.";
        outcome.command = "nvidia-smi --gpu-reset -i GPU";
    } else if (told == 0) {
        return nothing_told(evidence, "nvidia-smi -q -d ECC,ROW_REMAPPER");
    } else {
        outcome = pass("the memory of the GPUs counts no error that was not corrected");
        outcome.saw("GPUs that tell", std::to_string(told));
    }
    return outcome;
}

Outcome look_throttling(const Evidence& evidence) {
    if (gpus_of(evidence.topology).empty()) return does_not_apply("there is no GPU");
    Outcome outcome;
    std::vector<std::string> slowed;
    int told = 0;
    for (const auto& [name, counters] : counters_of(evidence)) {
        if (!counters.slowed_by) continue;
        ++told;
        const std::string why = reasons_in(*counters.slowed_by);
        if (why.empty()) continue;
        slowed.push_back(name);
        outcome.saw(fmt::format("nvmlDeviceGetCurrentClocksThrottleReasons({})", name), why);
    }
    if (!slowed.empty()) {
        outcome.verdict = Verdict::warn;
        outcome.summary = "heat or power slows GPUs down: " + listed(slowed);
    } else if (told == 0) {
        return nothing_told(evidence, "nvidia-smi -q -d PERFORMANCE");
    } else {
        outcome = pass("nothing slows the GPUs down at this moment");
        outcome.saw("GPUs that tell", std::to_string(told));
    }
    return outcome;
}

}  // namespace sidestep::diagnose
