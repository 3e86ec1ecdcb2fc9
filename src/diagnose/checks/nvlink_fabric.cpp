// NVLink, the fabric of NVSwitches, and what several machines need to share one.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "diagnose/checks/gpu_pairs.hpp"
#include "diagnose/checks/looks.hpp"
#include "topology/link_rates.hpp"
#include "topology/machine_facts_reader.hpp"

namespace sidestep::diagnose {

namespace {

using driver::FabricState;

const char* words(FabricState state) {
    switch (state) {
        case FabricState::not_supported:
            return "not supported";
        case FabricState::not_started:
            return "not started";
        case FabricState::in_progress:
            return "in progress";
        case FabricState::completed:
            return "completed";
    }
    return "unknown";
}

// NVML_GPU_FABRIC_HEALTH_MASK_* of nvml.h: fields of two bits in which 1 says yes, and one of four bits with
// the kind of wrong configuration, where 0 and 1 say none.
std::string health_words(unsigned health) {
    struct Field {
        unsigned shift;
        const char* words;
    };
    constexpr std::array fields = {Field{0, "bandwidth degraded"}, Field{2, "route recovery in progress"},
                                   Field{4, "route unhealthy"},
                                   Field{6, "access timeout recovery in progress"}};
    constexpr std::array configurations = {"wrong system GUID",     "wrong chassis serial number",
                                           "no partition",          "too few NVLinks",
                                           "wrong firmware of GPU", "wrong location",
                                           "wrong state of GPU"};
    std::vector<std::string> said;
    for (const Field& field : fields) {
        if ((health >> field.shift & 3U) == 1) said.emplace_back(field.words);
    }
    const unsigned configuration = health >> 8 & 0xfU;
    if (configuration >= 2 && configuration < 2 + configurations.size())
        said.emplace_back(configurations[configuration - 2]);
    return listed(said);
}

// The GPUs by what the fabric says of them.
struct FabricGpus {
    std::vector<std::string> down;  // not started, or registered with an error
    std::vector<std::string> busy;
    std::vector<std::string> unwell;
    std::vector<std::string> completed;
};

FabricGpus fabric_gpus(const Evidence& evidence, Outcome& outcome) {
    FabricGpus gpus;
    if (!evidence.nvml) return gpus;
    for (const DeviceId id : gpus_of(evidence.topology)) {
        const Device& device = evidence.topology.device(id);
        const auto fabric = evidence.nvml->fabric(device.index);
        if (!fabric.ok() || fabric->state == FabricState::not_supported) continue;
        std::string said = words(fabric->state);
        const bool failed = fabric->state == FabricState::completed && fabric->status != 0;
        if (failed) said += fmt::format(", with error {}", fabric->status);
        const std::string health = health_words(fabric->health);
        if (!health.empty()) said += ", " + health;
        outcome.saw(fmt::format("nvmlDeviceGetGpuFabricInfoV({})", device.name), said);
        if (failed || fabric->state == FabricState::not_started) {
            gpus.down.push_back(device.name);
        } else if (fabric->state == FabricState::in_progress) {
            gpus.busy.push_back(device.name);
        } else if (!health.empty()) {
            gpus.unwell.push_back(device.name);
        } else {
            gpus.completed.push_back(device.name);
        }
    }
    return gpus;
}

// NVSwitches of a kind that tells no state (before Hopper): cuInit alone shows whether they are ready.
Outcome by_cuda(const Evidence& evidence, Outcome outcome) {
    if (!evidence.topology.find(DeviceKind::nvswitch, 0))
        return does_not_apply("there is no NVSwitch: NVLinks between GPUs need no Fabric Manager");
    if (evidence.cuda.loaded && evidence.cuda.init_code == 0) {
        outcome.verdict = Verdict::pass;
        outcome.summary = "the NVSwitches are ready: cuInit succeeds";
        return outcome.saw("cuInit", "0");
    }
    outcome.verdict = Verdict::unknown;
    outcome.summary = "there are NVSwitches, and neither NVML nor CUDA tells whether they are ready";
    outcome.remedy = "See whether the service runs.";
    outcome.command = "systemctl status nvidia-fabricmanager";
    outcome.saw("NVML", evidence.nvml ? "no state of the fabric" : evidence.no_nvml);
    return outcome.saw("CUDA", evidence.cuda.loaded ? evidence.cuda.init_words : evidence.cuda.reason);
}

// How many NVLinks a product has, from the vendor's data sheets: the total NVLink rate divided by that of one
// link. The first part that is found in the name counts; 0 stands for boards that come in several ways.
struct Product {
    std::string_view part;
    int links;
    bool bridged;  // a PCIe card, whose links only lead somewhere under an NVLink bridge
    bool meshed;   // links lead to single GPUs, of which a guest may have only some
};
constexpr std::array products = {
    Product{"GH200", 0, false, false},      // alone, or in a fabric
    Product{"GB200", 18, false, false},     // 1,800 GB/s
    Product{"GB300", 18, false, false},     // 1,800
    Product{"B200", 18, false, false},      // 1,800
    Product{"B300", 18, false, false},      // 1,800
    Product{"H200 NVL", 18, true, false},   // 900
    Product{"H200", 18, false, false},      // 900
    Product{"H100 NVL", 12, true, false},   // 600
    Product{"H100 PCIe", 12, true, false},  // 600
    Product{"H100", 18, false, false},      // 900
    Product{"H800 PCIe", 8, true, false},   // 400
    Product{"H800", 8, false, false},       // 400; 200 a direction: deepseek-ai/DeepSeek-V3#28, #479
    Product{"H20", 18, false, false},       // 900; deepseek-ai/DeepEP#16
    Product{"A100-SXM", 12, false, false},  // 600
    Product{"A100", 12, true, false},       // 600
    Product{"A800-SXM", 8, false, false},   // 400
    Product{"A800", 8, true, false},        // 400
    Product{"V100-SXM", 6, false, true},    // 300
    Product{"NVIDIA A40", 4, true, false},  // 112.5
    Product{"RTX A6000", 4, true, false},   // 112.5
};

const Product* product_of(const std::string& name) {
    for (const Product& product : products) {
        if (name.find(product.part) != std::string::npos) return product.links > 0 ? &product : nullptr;
    }
    return nullptr;
}

// The NVLinks of one GPU.
struct Links {
    int listed = 0;
    int active = 0;
    int wanted = 0;  // what should be active; 0: not known
    bool bridged = true;
    bool meshed = false;
    double gb_per_s = 0;  // of one
};

Links links_of(const std::vector<driver::NvmlLink>& all, const std::string& model,
               const driver::NvmlGpu& facts) {
    Links links;
    links.listed = static_cast<int>(all.size());
    for (const driver::NvmlLink& link : all) {
        links.active += link.active ? 1 : 0;
        if (link.active) links.gb_per_s = std::max(links.gb_per_s, link.gb_per_s);
    }
    if (links.gb_per_s == 0) links.gb_per_s = driver::nvlink_gb_per_s(facts.cc_major, facts.cc_minor);
    const Product* product = product_of(model);
    if (product != nullptr) {
        // Of a product that comes with fewer, the driver lists fewer.
        links.wanted = links.listed == 0 ? product->links : std::min(product->links, links.listed);
        links.bridged = product->bridged;
        links.meshed = product->meshed;
    } else if (links.active > 0) {
        links.wanted = links.listed;
    }
    // A card without a bridge is as it was bought.
    if (links.bridged && links.active == 0) links.wanted = 0;
    return links;
}

// NVreg_NvLinkDisable.
bool switched_off(const Evidence& evidence) {
    const auto params = evidence.files.text("/proc/driver/nvidia/params");
    return params && params->find("NvLinkDisable: 1") != std::string::npos;
}

struct MissingLinks {
    std::vector<std::string> gpus;       // of boards whose links are all wired
    std::vector<std::string> bridged;    // of cards that may have been given fewer bridges
    std::vector<std::string> elsewhere;  // may lead to GPUs that belong to another guest
    int max = 0;
    double lost = 0;
    int with_links = 0;
    int untold = 0;
};

void count_links(const Evidence& evidence, DeviceId id, MissingLinks& missing, Outcome& outcome) {
    const Device& device = evidence.topology.device(id);
    const auto facts = nvml_facts(evidence, id);
    const auto all =
        facts ? evidence.nvml->links(device.index) : Result<std::vector<driver::NvmlLink>>(Error{});
    if (!facts || !all.ok()) {
        ++missing.untold;
        return;
    }
    // These modes take NVLink away; mig-on and confidential-computing say so.
    const auto confidential = evidence.nvml->confidential_computing();
    const bool given_up = facts->mig.value_or(false) || (confidential.ok() && *confidential) ||
                          facts->virtualization == driver::NvmlVirtualization::vgpu;
    const Links links = links_of(*all, device.model, *facts);
    if (given_up || (links.listed == 0 && links.wanted == 0)) return;
    ++missing.with_links;
    outcome.saw(fmt::format("nvmlDeviceGetNvLinkState({})", device.name),
                fmt::format("{} active of {}{}", links.active, links.listed,
                            links.wanted > 0 ? fmt::format(", {} are wired", links.wanted) : ""));
    if (links.active >= links.wanted) return;
    const bool elsewhere = links.meshed && is_guest(evidence);
    (elsewhere ? missing.elsewhere : links.bridged ? missing.bridged : missing.gpus).push_back(device.name);
    missing.max = std::max(missing.max, links.wanted - links.active);
    const Link one{0, 1, LinkKind::nvlink, 1, links.gb_per_s};
    missing.lost =
        std::max(missing.lost, (links.wanted - links.active) * links.gb_per_s * topology::reached_part(one));
}

bool is_zero(const std::string& uuid) {
    return uuid.find_first_not_of("0-") == std::string::npos;
}

}  // namespace

Outcome look_fabric(const Evidence& evidence) {
    if (gpus_of(evidence.topology).empty() && evidence.cuda.init_code != cuda_system_not_ready)
        return does_not_apply("there is no GPU");
    Outcome outcome;
    const FabricGpus gpus = fabric_gpus(evidence, outcome);
    if (evidence.cuda.init_code == cuda_system_not_ready) {
        outcome.verdict = Verdict::fail;
        outcome.summary = "CUDA cannot start: the NVSwitches are not ready";
        return outcome.saw("cuInit", fmt::format("{} {}", cuda_system_not_ready, evidence.cuda.init_words));
    }
    if (!gpus.down.empty()) {
        outcome.verdict = Verdict::fail;
        outcome.summary = "not registered with the NVLink fabric: " + listed(gpus.down);
        return outcome;
    }
    if (!gpus.busy.empty()) {
        outcome.verdict = Verdict::warn;
        outcome.summary = "still registering with the NVLink fabric: " + listed(gpus.busy);
        outcome.remedy =
            "After a start of the machine this takes a minute; look again. Where it stays so, the Fabric "
            "Manager does not run, or waits for other machines of the fabric.";
        outcome.command = "systemctl status nvidia-fabricmanager";
        return outcome;
    }
    if (!gpus.unwell.empty()) {
        outcome.verdict = Verdict::warn;
        outcome.summary = "the NVLink fabric is not in full health: " + listed(gpus.unwell);
        outcome.remedy =
            "The evidence names what is wrong. See the log of the Fabric Manager; links that fail again "
            "after a reset of the GPU are a case for the vendor.";
        outcome.command = "journalctl -u nvidia-fabricmanager -b";
        return outcome;
    }
    if (gpus.completed.empty()) return by_cuda(evidence, outcome);
    outcome.verdict = Verdict::pass;
    outcome.summary = fmt::format("registered with the NVLink fabric: {}", listed(gpus.completed, 16));
    return outcome;
}

Outcome look_nvlinks(const Evidence& evidence) {
    const auto gpus = gpus_of(evidence.topology);
    if (gpus.size() < 2) return does_not_apply("there are no two GPUs that NVLink could join");
    if (switched_off(evidence)) {
        Outcome outcome = fail("the NVIDIA driver is told to use no NVLink");
        outcome.saw("/proc/driver/nvidia/params", "NvLinkDisable: 1");
        outcome.remedy = "Take NVreg_NvLinkDisable=1 out of the driver's options and load the driver again.";
        outcome.command = "grep -rs NvLinkDisable /etc/modprobe.d /proc/cmdline";
        return outcome;
    }
    Outcome outcome = unknown("NVML does not tell the state of the NVLinks");
    if (!evidence.nvml) {
        outcome.remedy = "Make NVML work: `nvidia-smi nvlink -s` has to answer.";
        return outcome.saw("NVML", evidence.no_nvml);
    }
    MissingLinks missing;
    for (const DeviceId gpu : gpus) count_links(evidence, gpu, missing, outcome);
    const std::string down = fmt::format("up to {} NVLinks of a GPU are down: ", missing.max);
    if (!missing.gpus.empty()) {
        outcome.verdict = Verdict::fail;
        outcome.summary = down + listed(missing.gpus);
        outcome.cost_gb_per_s = missing.lost;
    } else if (!missing.bridged.empty()) {
        outcome.verdict = Verdict::warn;
        outcome.summary = down + listed(missing.bridged);
        outcome.cost_gb_per_s = missing.lost;
        outcome.remedy =
            "Fit every NVLink bridge these cards have room for, and see that each sits properly.";
        outcome.command = "nvidia-smi nvlink -s";
    } else if (!missing.elsewhere.empty()) {
        outcome.summary =
            "NVLinks are down that may lead to GPUs of other guests: " + listed(missing.elsewhere);
        outcome.remedy = "Compare with `nvidia-smi nvlink -s` on the host of this virtual machine.";
    } else if (missing.with_links > 0) {
        outcome.verdict = Verdict::pass;
        outcome.summary = "every NVLink that leads somewhere is up";
    } else if (missing.untold > 0) {
        outcome.remedy = "See what `nvidia-smi nvlink -s` says.";
        outcome.saw("nvmlDeviceGetNvLinkState", fmt::format("no answer for {} GPUs", missing.untold));
    } else {
        outcome = does_not_apply("no GPU has NVLinks that it may use");
    }
    return outcome;
}

Outcome look_imex(const Evidence& evidence) {
    std::vector<std::string> cliques;
    std::string cluster;
    Outcome outcome;
    for (const DeviceId gpu : gpus_of(evidence.topology)) {
        const Device& device = evidence.topology.device(gpu);
        if (!evidence.nvml) break;
        const auto fabric = evidence.nvml->fabric(device.index);
        if (!fabric.ok() || is_zero(fabric->cluster_uuid)) continue;
        cluster = fabric->cluster_uuid;
        const std::string clique = fmt::format("clique {}", fabric->clique);
        if (std::find(cliques.begin(), cliques.end(), clique) == cliques.end()) cliques.push_back(clique);
    }
    if (cluster.empty()) return does_not_apply("no GPU is part of an NVLink fabric of several machines");
    outcome.saw("nvmlDeviceGetGpuFabricInfoV", "a cluster is named, " + listed(cliques));

    const std::string folder = "/dev/nvidia-caps-imex-channels";
    const std::string channel = folder + "/channel0";
    const auto channels = evidence.files.names(folder);
    const auto first = std::find_if(channels.begin(), channels.end(), [&](const std::string& name) {
        return evidence.files.state(folder + "/" + name) == driver::FileState::there;
    });
    if (first == channels.end()) {
        const bool denied = !channels.empty() || evidence.files.state(channel) == driver::FileState::denied;
        outcome.verdict = Verdict::fail;
        outcome.summary = denied ? "this process may open no IMEX channel" : "there is no IMEX channel";
        outcome.saw(channel, denied ? "may not be opened" : "does not exist");
        const std::string kind = topology::container(evidence.files).value;
        if (!kind.empty() && kind != "none")
            outcome.remedy =
                "Give the container a channel: with Kubernetes a ComputeDomain of NVIDIA's DRA driver, "
                "else the device itself (docker run --device /dev/nvidia-caps-imex-channels/channel0).";
        return outcome;
    }
    outcome.saw(folder + "/" + *first, "exists");
    if (cliques.size() > 1) {
        outcome.verdict = Verdict::warn;
        outcome.summary = "the GPUs of this machine are in different NVLink partitions: " + listed(cliques);
        outcome.remedy = "Ask who manages the NVLink switches to put these GPUs into one partition.";
        outcome.command = "nvidia-smi -q | grep -A 6 Fabric";
        return outcome;
    }
    outcome.verdict = Verdict::pass;
    outcome.summary = "an IMEX channel is there for GPUs of other machines";
    return outcome;
}

}  // namespace sidestep::diagnose
