#include "diagnose/checks/gpu_pairs.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "topology/machine_facts_reader.hpp"

namespace sidestep::diagnose {

namespace {

using driver::P2pStatus;

const char* words(P2pStatus status) {
    switch (status) {
        case P2pStatus::ok:
            return "OK";
        case P2pStatus::chipset_not_supported:
            return "chipset not supported";
        case P2pStatus::gpu_not_supported:
            return "GPU not supported";
        case P2pStatus::ioh_topology_not_supported:
            return "topology not supported";
        case P2pStatus::disabled_by_regkey:
            return "disabled by registry key";
        case P2pStatus::not_supported:
            return "not supported";
        case P2pStatus::unknown:
            break;
    }
    return "unknown";
}

}  // namespace

std::vector<DeviceId> gpus_of(const Topology& topology) {
    std::vector<DeviceId> gpus;
    for (DeviceId id = 0; id < topology.devices().size(); ++id) {
        if (topology.device(id).kind == DeviceKind::gpu) gpus.push_back(id);
    }
    std::sort(gpus.begin(), gpus.end(),
              [&](DeviceId a, DeviceId b) { return topology.device(a).index < topology.device(b).index; });
    return gpus;
}

std::vector<DeviceId> pcie_partners(const Evidence& evidence) {
    std::vector<DeviceId> all = gpus_of(evidence.topology);
    for (DeviceId id = 0; id < evidence.topology.devices().size(); ++id) {
        const Device& device = evidence.topology.device(id);
        if (device.bus_id.empty()) continue;
        const std::string folder = "/sys/bus/pci/devices/" + device.bus_id;
        const bool card_or_drive = device.kind == DeviceKind::nic || device.kind == DeviceKind::drive;
        if ((evidence.from_topology && card_or_drive) ||
            (device.kind == DeviceKind::nic && evidence.files.exists(folder + "/infiniband")) ||
            (device.kind == DeviceKind::drive && evidence.files.exists(folder + "/nvme")))
            all.push_back(id);
    }
    return all;
}

std::optional<driver::NvmlGpu> nvml_facts(const Evidence& evidence, DeviceId gpu) {
    if (!evidence.nvml) return std::nullopt;
    const auto count = evidence.nvml->gpu_count();
    const int index = evidence.topology.device(gpu).index;
    if (!count.ok() || index >= *count) return std::nullopt;
    const auto facts = evidence.nvml->gpu(index);
    if (!facts.ok()) return std::nullopt;
    return *facts;
}

bool is_guest(const Evidence& evidence) {
    const Properties& told = evidence.topology.parts().properties;
    const auto found = told.find("hypervisor");
    // The reader of /sys has put it there; of a topology alone there is nothing else.
    const std::string value =
        found != told.end() ? found->second : topology::hypervisor(evidence.files).value;
    return !value.empty() && value != "none";
}

std::string listed(const std::vector<std::string>& words, std::size_t max) {
    std::string text;
    for (std::size_t i = 0; i < std::min(words.size(), max); ++i) text += (i == 0 ? "" : ", ") + words[i];
    if (words.size() > max) text += fmt::format(" and {} more", words.size() - max);
    return text;
}

std::string pair_name(const Topology& topology, DeviceId a, DeviceId b) {
    return topology.device(a).name + " and " + topology.device(b).name;
}

double lost_by_bounce(const Topology& topology, DeviceId a, DeviceId b) {
    const auto cpu = topology.cpu_of(a);
    if (!cpu) return 0;
    const double bounce = std::min(topology.pair(a, *cpu).gb_per_s, topology.pair(*cpu, b).gb_per_s);
    return std::max(0.0, topology.pair(a, b).gb_per_s - bounce);
}

PeerAnswers peer_answers(const Evidence& evidence) {
    PeerAnswers answers;
    if (!evidence.nvml) {
        answers.untold = evidence.no_nvml;
        return answers;
    }
    const Topology& topology = evidence.topology;
    const auto gpus = gpus_of(topology);
    for (const DeviceId from : gpus) {
        for (const DeviceId to : gpus) {
            if (from == to) continue;
            ++answers.asked;
            for (const auto& [capability, name] : {std::pair(driver::P2pCapability::read, "READ"),
                                                   std::pair(driver::P2pCapability::write, "WRITE")}) {
                const auto status =
                    evidence.nvml->p2p(topology.device(from).index, topology.device(to).index, capability);
                if (!status.ok()) {
                    answers.untold = status.error().message;
                } else if (*status != P2pStatus::ok) {
                    answers.refused.push_back({from, to, *status, name});
                    break;
                }
            }
        }
    }
    return answers;
}

std::pair<std::string, std::string> words_of(const Topology& topology, const RefusedPair& refused) {
    return {fmt::format("nvmlDeviceGetP2PStatus({}, {}, {})", topology.device(refused.from).name,
                        topology.device(refused.to).name, refused.asked),
            fmt::format("{} ({})", static_cast<int>(refused.status), words(refused.status))};
}

}  // namespace sidestep::diagnose
