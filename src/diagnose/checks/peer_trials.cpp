// What a trial of every pair of GPUs found: bytes that arrive wrong, and direct paths that are slower than
// the way through host memory.
#include <fmt/format.h>

#include <algorithm>

#include "diagnose/checks/gpu_pairs.hpp"
#include "diagnose/checks/looks.hpp"

namespace sidestep::diagnose {

namespace {

// A copy of fewer bytes is over before it is fast: at 400 GB/s 32 MiB take 84 us, next to some 15 us of
// launch.
constexpr Bytes min_bytes = Bytes{32} << 20;
// Rates differ by a tenth from run to run and engine to engine (docs/lab-book.md).
constexpr double slow_part = 0.8;
constexpr double noise_part = 0.95;

std::string name_of(const PairProbe& probe) {
    return fmt::format("gpu:{} -> gpu:{} ({})", probe.from, probe.to, probe.engine);
}

std::string source_of(const PairProbe& probe) {
    return "probe of " + name_of(probe);
}

// A report that names other GPUs than this machine's says nothing about it.
bool is_of_this_machine(const Evidence& evidence, const PairProbe& probe) {
    for (const auto& [index, bus_id] :
         {std::pair(probe.from, probe.from_bus_id), std::pair(probe.to, probe.to_bus_id)}) {
        const auto gpu = evidence.topology.find(DeviceKind::gpu, index);
        if (!gpu || evidence.topology.device(*gpu).bus_id != bus_id) return false;
    }
    return true;
}

// Why the report cannot be judged; nullopt where it can.
std::optional<Outcome> not_to_be_judged(const Evidence& evidence) {
    if (gpus_of(evidence.topology).size() < 2) return does_not_apply("there are no two GPUs");
    if (!evidence.probe) {
        Outcome outcome = unknown("no pair was tried: the doctor copies nothing unless it is asked to");
        outcome.saw("probe", "none");
        outcome.remedy = "Let the doctor write and check real bytes over every pair, both ways.";
        outcome.command = "sidestep doctor --probe";
        return outcome;
    }
    if (evidence.probe->emulated)
        return does_not_apply("the probe ran on emulated GPUs, whose copies stay in host memory");
    for (const PairProbe& probe : evidence.probe->pairs) {
        if (is_of_this_machine(evidence, probe)) continue;
        Outcome outcome = unknown("the probe is of another machine, or of other GPUs");
        outcome.saw(source_of(probe), probe.from_bus_id + " and " + probe.to_bus_id);
        outcome.remedy = "Probe the pairs of this machine.";
        outcome.command = "sidestep doctor --probe";
        return outcome;
    }
    const auto& pairs = evidence.probe->pairs;
    if (std::none_of(pairs.begin(), pairs.end(), [](const PairProbe& probe) { return probe.direct; }))
        return does_not_apply("the probe found no pair with a direct path");
    return std::nullopt;
}

// What is wrong with the rate of one direct copy.
enum class Rate { well, low, below_bounce };

Rate judge(const PairProbe& probe) {
    if (probe.bounce_gb_per_s > 0 && probe.gb_per_s < noise_part * probe.bounce_gb_per_s)
        return Rate::below_bounce;
    if (probe.expected_gb_per_s > 0 && probe.gb_per_s < slow_part * probe.expected_gb_per_s) return Rate::low;
    return Rate::well;
}

std::string rates(const PairProbe& probe) {
    std::string text = fmt::format("{:.1f} GB/s", probe.gb_per_s);
    if (probe.expected_gb_per_s > 0) text += fmt::format(", expected {:.1f}", probe.expected_gb_per_s);
    if (probe.bounce_gb_per_s > 0) text += fmt::format(", through host memory {:.1f}", probe.bounce_gb_per_s);
    return text;
}

Outcome all_well(const Evidence& evidence) {
    double slowest = 0;
    for (const PairProbe& probe : evidence.probe->pairs) {
        if (probe.direct) slowest = slowest == 0 ? probe.gb_per_s : std::min(slowest, probe.gb_per_s);
    }
    Outcome outcome = pass("every direct path carries what it should");
    outcome.saw("probe", fmt::format("the slowest direct copy ran at {:.1f} GB/s", slowest));
    return outcome;
}

}  // namespace

Outcome look_wrong_data(const Evidence& evidence) {
    if (auto outcome = not_to_be_judged(evidence)) return *outcome;
    Outcome outcome = fail("");
    std::vector<std::string> names;
    int tried = 0;
    for (const PairProbe& probe : evidence.probe->pairs) {
        tried += probe.direct ? 1 : 0;
        if (probe.intact) continue;
        names.push_back(name_of(probe));
        if (outcome.seen.size() >= max_seen) continue;
        outcome.saw(source_of(probe), probe.wrong_at
                                          ? fmt::format("the first wrong byte is at offset {} of {}",
                                                        *probe.wrong_at, evidence.probe->bytes)
                                          : "other bytes arrived than were sent");
    }
    if (!names.empty()) {
        outcome.summary = "peer access is allowed and the bytes that arrive are wrong: " + listed(names);
        return outcome;
    }
    outcome = pass("every byte arrived as it was sent");
    outcome.saw("probe", fmt::format("{} direct copies of {} bytes compared", tried, evidence.probe->bytes));
    return outcome;
}

Outcome look_slow_peers(const Evidence& evidence) {
    if (auto outcome = not_to_be_judged(evidence)) return *outcome;
    if (evidence.probe->bytes < min_bytes) {
        Outcome outcome = unknown("the copies of the probe were too small to tell a rate");
        outcome.saw("probe", fmt::format("{} bytes a copy, {} are needed", evidence.probe->bytes, min_bytes));
        outcome.remedy = "Probe with the doctor's own size.";
        outcome.command = "sidestep doctor --probe";
        return outcome;
    }
    Outcome outcome = warn("");
    std::vector<std::string> below_bounce;
    std::vector<std::string> low;
    double lost = 0;
    for (const PairProbe& probe : evidence.probe->pairs) {
        const Rate rate = probe.direct && probe.intact ? judge(probe) : Rate::well;
        if (rate == Rate::well) continue;
        (rate == Rate::low ? low : below_bounce).push_back(name_of(probe));
        lost = std::max(lost, std::max(probe.expected_gb_per_s, probe.bounce_gb_per_s) - probe.gb_per_s);
        if (outcome.seen.size() < max_seen) outcome.saw(source_of(probe), rates(probe));
    }
    if (below_bounce.empty() && low.empty()) return all_well(evidence);
    outcome.cost_gb_per_s = lost;
    if (!below_bounce.empty()) {
        outcome.verdict = Verdict::fail;
        outcome.summary = "the direct path is slower than host memory: " + listed(below_bounce);
    }
    if (!low.empty())
        outcome.summary += fmt::format("{}the direct path runs below {:.0f} % of what is expected: {}",
                                       outcome.summary.empty() ? "" : "; ", slow_part * 100, listed(low));
    return outcome;
}

}  // namespace sidestep::diagnose
