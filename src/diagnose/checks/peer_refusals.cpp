// Why the driver refuses peer access between two GPUs. Its own order, read in p2p_caps.c of the open kernel
// modules 595.45.04: MIG, then NVLink (with NVSwitches there is no way back to PCIe), then PCIe with
// conditions.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "diagnose/checks/gpu_pairs.hpp"
#include "diagnose/checks/looks.hpp"

namespace sidestep::diagnose {

namespace {

using driver::P2pStatus;

constexpr std::size_t max_answers_seen = 4;

bool is_geforce(const Evidence& evidence, DeviceId gpu) {
    return evidence.topology.device(gpu).model.find("GeForce") != std::string::npos;
}

bool is_mig(const Evidence& evidence, DeviceId gpu) {
    const auto facts = nvml_facts(evidence, gpu);
    return facts && facts->mig.value_or(false);
}

bool is_confidential(const Evidence& evidence) {
    if (!evidence.nvml) return false;
    const auto on = evidence.nvml->confidential_computing();
    return on.ok() && *on;
}

// What the refused pairs are called, each once; the first few answers go to `outcome`, and the cost is that
// of the pair that loses most.
std::string describe(const Evidence& evidence, const std::vector<RefusedPair>& refused, Outcome& outcome) {
    std::vector<std::string> names;
    double lost = 0;
    for (const RefusedPair& pair : refused) {
        const std::string name =
            pair_name(evidence.topology, std::min(pair.from, pair.to), std::max(pair.from, pair.to));
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
        lost = std::max(lost, lost_by_bounce(evidence.topology, pair.from, pair.to));
        if (outcome.seen.size() >= max_answers_seen) continue;
        const auto [source, value] = words_of(evidence.topology, pair);
        outcome.saw(source, value);
    }
    // Over PCIe the detour is as fast as the direct path while nothing else uses host memory.
    if (lost > 1) outcome.cost_gb_per_s = lost;
    return listed(names);
}

// Where there is no pair to query, or no driver to ask.
std::optional<Outcome> without_answers(const Evidence& evidence, const PeerAnswers& answers) {
    if (gpus_of(evidence.topology).size() < 2) return does_not_apply("there are no two GPUs");
    if (answers.refused.empty() && !answers.untold.empty()) {
        Outcome outcome = unknown("NVML does not tell whether these GPUs may reach each other");
        outcome.remedy = "Make NVML work: `nvidia-smi topo -p2p r` has to show a matrix.";
        outcome.command = "nvidia-smi topo -p2p r";
        outcome.saw("nvmlDeviceGetP2PStatus", answers.untold);
        return outcome;
    }
    return std::nullopt;
}

template <typename Is>
std::vector<RefusedPair> only(const PeerAnswers& answers, Is is) {
    std::vector<RefusedPair> some;
    std::copy_if(answers.refused.begin(), answers.refused.end(), std::back_inserter(some), is);
    return some;
}

Outcome allowed(const PeerAnswers& answers, const char* summary) {
    Outcome outcome = pass(summary);
    outcome.saw("nvmlDeviceGetP2PStatus", fmt::format("{} pairs asked, {} refused for other reasons",
                                                      answers.asked, answers.refused.size()));
    return outcome;
}

bool fabric_is_down(const Evidence& evidence, DeviceId gpu) {
    const auto fabric = evidence.nvml->fabric(evidence.topology.device(gpu).index);
    return fabric.ok() && (fabric->state == driver::FabricState::not_started ||
                           fabric->state == driver::FabricState::in_progress || fabric->status != 0);
}

// The check that explains why a pair is refused; empty where none does.
std::string explained_by(const Evidence& evidence, const RefusedPair& pair) {
    if (is_mig(evidence, pair.from) || is_mig(evidence, pair.to)) return "mig-on";
    if (is_confidential(evidence)) return "confidential-computing";
    if (evidence.cuda.init_code == cuda_system_not_ready) return "fabric-manager";
    if (fabric_is_down(evidence, pair.from) || fabric_is_down(evidence, pair.to)) return "fabric-manager";
    return {};
}

// The driver's settings as far as they can switch peer access off.
void saw_registry(const Evidence& evidence, Outcome& outcome) {
    const std::string path = "/proc/driver/nvidia/params";
    const std::string text = evidence.files.text(path).value_or("");
    const auto at = text.find("RegistryDwords:");
    if (at == std::string::npos) {
        outcome.saw(path, "cannot be read");
    } else {
        outcome.saw(path, text.substr(at, text.find('\n', at) - at));
    }
}

Outcome by_registry(const Evidence& evidence, const std::vector<RefusedPair>& pairs) {
    Outcome outcome;
    const std::string names = describe(evidence, pairs, outcome);
    outcome.verdict = Verdict::warn;
    outcome.summary = "a setting of the NVIDIA driver switches peer access off between " + names;
    outcome.remedy =
        "Find the option that sets it and take it out: RegistryDwords or another NVreg_ option below "
        "/etc/modprobe.d, or on the kernel's command line. Then load the driver again.";
    outcome.command = "grep -rs NVreg_ /etc/modprobe.d /proc/cmdline";
    saw_registry(evidence, outcome);
    return outcome;
}

}  // namespace

Outcome look_geforce(const Evidence& evidence) {
    const PeerAnswers answers = peer_answers(evidence);
    if (const auto outcome = without_answers(evidence, answers)) return *outcome;
    const auto pairs = only(answers, [&](const RefusedPair& pair) {
        const bool geforce = is_geforce(evidence, pair.from) || is_geforce(evidence, pair.to);
        return pair.status == P2pStatus::gpu_not_supported ||
               (pair.status == P2pStatus::chipset_not_supported && geforce);
    });
    if (pairs.empty()) return allowed(answers, "the driver refuses no pair because of the product");

    Outcome outcome = warn("");
    const std::string names = describe(evidence, pairs, outcome);
    const Topology& topology = evidence.topology;
    const DeviceId a = pairs[0].from;
    const DeviceId b = pairs[0].to;
    const bool geforce = is_geforce(evidence, a) || is_geforce(evidence, b);
    outcome.summary =
        fmt::format("the driver gives no peer access between {}: {}", names,
                    geforce ? "it is switched off for GeForce" : "their products or architectures differ");
    outcome.saw(topology.device(a).name, topology.device(a).model);
    outcome.saw(topology.device(b).name, topology.device(b).model);
    return outcome;
}

Outcome look_chipset(const Evidence& evidence) {
    const PeerAnswers answers = peer_answers(evidence);
    if (const auto outcome = without_answers(evidence, answers)) return *outcome;
    const auto pairs = only(answers, [&](const RefusedPair& pair) {
        const bool geforce = is_geforce(evidence, pair.from) || is_geforce(evidence, pair.to);
        return pair.status == P2pStatus::ioh_topology_not_supported ||
               (pair.status == P2pStatus::chipset_not_supported && !geforce);
    });
    if (pairs.empty()) return allowed(answers, "the driver refuses no pair because of the chipset");

    Outcome outcome = warn("");
    const std::string names = describe(evidence, pairs, outcome);
    const bool roots = pairs[0].status == P2pStatus::ioh_topology_not_supported;
    outcome.summary =
        fmt::format("the driver gives no peer access between {}: {}", names,
                    roots ? "they sit below root complexes that forward no peer traffic to each other"
                          : "the chipset between them is not in its list");
    outcome.saw(pair_name(evidence.topology, pairs[0].from, pairs[0].to),
                to_string(evidence.topology.pair_class(pairs[0].from, pairs[0].to)));
    return outcome;
}

Outcome look_refused(const Evidence& evidence) {
    const PeerAnswers answers = peer_answers(evidence);
    if (const auto outcome = without_answers(evidence, answers)) return *outcome;
    const auto by_key =
        only(answers, [](const RefusedPair& pair) { return pair.status == P2pStatus::disabled_by_regkey; });
    if (!by_key.empty()) return by_registry(evidence, by_key);

    std::set<std::string> reasons;
    const auto pairs = only(answers, [&](const RefusedPair& pair) {
        if (pair.status != P2pStatus::not_supported && pair.status != P2pStatus::unknown) return false;
        const std::string reason = explained_by(evidence, pair);
        if (!reason.empty()) reasons.insert(reason);
        return reason.empty();
    });
    if (pairs.empty() && reasons.empty())
        return allowed(answers, "the driver refuses no pair without a reason that another check has");
    if (pairs.empty()) {
        Outcome outcome = pass("the refused pairs are explained by: " +
                               listed(std::vector<std::string>(reasons.begin(), reasons.end())));
        describe(evidence, answers.refused, outcome);
        outcome.cost_gb_per_s.reset();
        return outcome;
    }
    Outcome outcome = warn("");
    const std::string names = describe(evidence, pairs, outcome);
    outcome.summary = "the driver gives no peer access between " + names + ", and does not say why";
    const auto facts = nvml_facts(evidence, pairs[0].from);
    if (facts && facts->virtualization == driver::NvmlVirtualization::vgpu) {
        outcome.saw("nvmlDeviceGetVirtualizationMode", "virtual GPU");
        outcome.remedy =
            "These are virtual GPUs (vGPU). They have peer access over NVLink only, with profiles that "
            "hold a whole GPU: see that the profile is the largest one and that the host joins the GPUs by "
            "NVLink.";
    }
    return outcome;
}

Outcome look_mig(const Evidence& evidence) {
    const auto gpus = gpus_of(evidence.topology);
    if (gpus.empty()) return does_not_apply("there is no GPU");
    Outcome outcome = warn("");
    std::vector<std::string> names;
    std::string numbers;
    int told = 0;
    int silent = 0;  // NVML does not open the GPU
    for (const DeviceId gpu : gpus) {
        const auto facts = nvml_facts(evidence, gpu);
        silent += facts ? 0 : 1;
        if (!facts || !facts->mig) continue;
        ++told;
        const Device& device = evidence.topology.device(gpu);
        outcome.saw(fmt::format("nvmlDeviceGetMigMode({})", device.name), *facts->mig ? "on" : "off");
        if (!*facts->mig) continue;
        names.push_back(device.name);
        numbers += fmt::format("{}{}", numbers.empty() ? "" : ",", device.index);
    }
    if (!names.empty()) {
        outcome.summary = fmt::format("MIG is on at {}: no peer access and no NVLink there", listed(names));
        outcome.command = fmt::format("nvidia-smi -i {} -mig 0", numbers);
        return outcome;
    }
    if (silent > 0) {
        Outcome untold = unknown("NVML does not tell whether MIG is on");
        untold.remedy = "Make NVML work: `nvidia-smi -q -d MIG` has to answer.";
        untold.command = "nvidia-smi --query-gpu=mig.mode.current --format=csv";
        untold.saw("NVML", evidence.nvml ? "does not open every GPU" : evidence.no_nvml);
        return untold;
    }
    if (told == 0 && evidence.from_topology) return unknown("the topology does not tell whether MIG is on");
    if (told == 0) return does_not_apply("no GPU of this machine knows MIG");
    outcome.verdict = Verdict::pass;
    outcome.summary = "MIG is off";
    return outcome;
}

Outcome look_confidential(const Evidence& evidence) {
    if (gpus_of(evidence.topology).empty()) return does_not_apply("there is no GPU");
    const char* const source = "nvmlSystemGetConfComputeState";
    if (!evidence.nvml) {
        Outcome outcome = unknown("without NVML the mode of the GPUs cannot be seen");
        outcome.remedy = "Make NVML work: `nvidia-smi conf-compute -f` has to answer.";
        outcome.command = "nvidia-smi conf-compute -f";
        outcome.saw("NVML", evidence.no_nvml);
        return outcome;
    }
    const auto on = evidence.nvml->confidential_computing();
    if (!on.ok() && on.error().code == ErrorCode::unsupported) {
        Outcome outcome = does_not_apply("this driver or machine has no confidential computing mode");
        outcome.saw(source, on.error().message);
        return outcome;
    }
    if (!on.ok()) {
        Outcome outcome = unknown("NVML does not tell whether the GPUs work in confidential computing mode");
        outcome.remedy = "See what `nvidia-smi conf-compute -f` says.";
        outcome.command = "nvidia-smi conf-compute -f";
        outcome.saw(source, on.error().message);
        return outcome;
    }
    if (!*on) {
        Outcome outcome = pass("confidential computing is off");
        outcome.saw(source, "off");
        return outcome;
    }
    Outcome outcome = warn("the GPUs work in confidential computing mode");
    outcome.saw(source, "on");
    const PeerAnswers answers = peer_answers(evidence);
    if (answers.asked > 0 && !answers.refused.empty())
        outcome.summary += ": no peer access between " + describe(evidence, answers.refused, outcome);
    return outcome;
}

}  // namespace sidestep::diagnose
