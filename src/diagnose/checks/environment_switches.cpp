// Variables that switch a fast path off, in this process's environment and in NCCL's own files of settings.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>
#include <string_view>

#include "diagnose/checks/gpu_direct.hpp"
#include "diagnose/checks/gpu_pairs.hpp"
#include "diagnose/checks/looks.hpp"
#include "diagnose/checks/process_facts.hpp"

namespace sidestep::diagnose {

namespace {

constexpr const char* environ_path = "/proc/self/environ";

std::string lower(std::string text) {
    for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return text;
}

bool is_on(const std::string& value) {
    const std::string word = lower(value);
    return word == "true" || word == "yes" || word == "y" || word == "on" ||
           std::strtol(word.c_str(), nullptr, 0) != 0;
}
bool is_off(const std::string& value) {
    return !value.empty() && !is_on(value);
}
// A distance of NCCL below which nothing is left: "LOC", or 0 in older releases.
bool is_no_distance(const std::string& value) {
    return lower(value) == "loc" || value == "0";
}
bool is_some_distance(const std::string& value) {
    const std::string word = lower(value);
    return !word.empty() && !is_no_distance(value) && word != "sys";
}
bool is_socket(const std::string& value) {
    return lower(value) == "socket";
}
bool is_nothing(const std::string& value) {
    return value.empty() || value == "-1" || lower(value) == "nodevfiles";
}
bool is_list(const std::string& value) {
    return !is_nothing(value);
}
bool is_set(const std::string& value) {
    return !value.empty();
}
bool is_none(const std::string& value) {
    return lower(value) == "none";
}

std::vector<std::string> parts_of(const std::string& value) {
    std::vector<std::string> parts;
    std::istringstream stream(lower(value));
    for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
    return parts;
}

bool names_any(const std::vector<std::string>& parts, std::initializer_list<std::string_view> names) {
    return std::any_of(parts.begin(), parts.end(), [&](const std::string& part) {
        return std::find(names.begin(), names.end(), std::string_view(part)) != names.end();
    });
}

// UCX_TLS lists the transports to use, or after '^' those not to use.
bool ucx_lacks_cuda(const std::string& value) {
    if (value.empty()) return false;
    if (value[0] == '^') return names_any(parts_of(value.substr(1)), {"cuda", "cuda_ipc"});
    return !names_any(parts_of(value), {"all", "cuda", "cuda_ipc"});
}
bool ucx_lacks_rdma(const std::string& value) {
    const auto rdma = {
        std::string_view("ib"),      std::string_view("rc"),       std::string_view("rc_x"),
        std::string_view("rc_v"),    std::string_view("dc"),       std::string_view("dc_x"),
        std::string_view("rc_mlx5"), std::string_view("rc_verbs"), std::string_view("dc_mlx5")};
    if (value.empty()) return false;
    if (value[0] == '^') return names_any(parts_of(value.substr(1)), rdma);
    std::vector<std::string> with_all = parts_of(value);
    if (names_any(with_all, {"all"})) return false;
    return !names_any(with_all, rdma);
}

// What has to be there for a switch to take something away.
enum class Needs { nothing, two_gpus, peer_access, rdma };

struct Switch {
    const char* name;
    bool (*hits)(const std::string& value);
    const char* takes;  // what it switches off
    bool note;          // only worth a word: often set on purpose, or costs little
    Needs needs;
};

// NCCL, UCX, NVSHMEM, cuFile, CUDA and PyTorch document these in their lists of environment variables.
constexpr std::array switches = {
    Switch{"NCCL_P2P_DISABLE", is_on, "NCCL uses no peer access", false, Needs::peer_access},
    Switch{"NCCL_P2P_LEVEL", is_no_distance, "NCCL uses no peer access", false, Needs::peer_access},
    Switch{"NCCL_P2P_LEVEL", is_some_distance, "NCCL uses peer access up to this distance only", true,
           Needs::two_gpus},
    Switch{"NCCL_SHM_DISABLE", is_on, "NCCL uses the network instead of shared memory", false,
           Needs::two_gpus},
    Switch{"NCCL_IB_DISABLE", is_on, "NCCL uses sockets instead of RDMA", false, Needs::rdma},
    Switch{"NCCL_NET", is_socket, "NCCL uses sockets instead of RDMA", false, Needs::rdma},
    Switch{"NCCL_NET_GDR_LEVEL", is_no_distance, "NCCL copies through host memory on its way to the network",
           false, Needs::rdma},
    Switch{"NCCL_NET_GDR_READ", is_off, "NCCL sends through host memory", true, Needs::rdma},
    Switch{"NCCL_DMABUF_ENABLE", is_off, "NCCL registers no GPU memory as dma-buf", true, Needs::rdma},
    Switch{"NCCL_NVLS_ENABLE", is_off, "NCCL does not reduce inside NVSwitches", true, Needs::two_gpus},
    Switch{"NCCL_CUMEM_ENABLE", is_off, "NCCL allocates without virtual memory management", true,
           Needs::two_gpus},
    Switch{"NCCL_MNNVL_ENABLE", is_off, "NCCL uses no NVLink between machines", true, Needs::two_gpus},
    Switch{"NCCL_ALGO", is_set, "NCCL is held to these algorithms", true, Needs::two_gpus},
    Switch{"NCCL_PROTO", is_set, "NCCL is held to these protocols", true, Needs::two_gpus},
    Switch{"UCX_TLS", ucx_lacks_cuda, "UCX moves nothing between GPUs over NVLink or PCIe (no cuda_ipc)",
           false, Needs::peer_access},
    Switch{"UCX_TLS", ucx_lacks_rdma, "UCX uses no RDMA", false, Needs::rdma},
    Switch{"UCX_IB_GPU_DIRECT_RDMA", is_off, "UCX copies through host memory on its way to the network",
           false, Needs::rdma},
    Switch{"NVSHMEM_DISABLE_P2P", is_on, "NVSHMEM uses no peer access", false, Needs::peer_access},
    Switch{"NVSHMEM_REMOTE_TRANSPORT", is_none, "NVSHMEM reaches no other machine", false, Needs::rdma},
    Switch{"NVSHMEM_DISABLE_NVLS", is_on, "NVSHMEM does not reduce inside NVSwitches", true, Needs::two_gpus},
    Switch{"NVSHMEM_DISABLE_MNNVL", is_on, "NVSHMEM uses no NVLink between machines", true, Needs::two_gpus},
    Switch{"CUFILE_FORCE_COMPAT_MODE", is_on, "cuFile copies through host memory", false, Needs::nothing},
    Switch{"CUDA_VISIBLE_DEVICES", is_nothing, "CUDA sees no GPU", false, Needs::nothing},
    Switch{"CUDA_VISIBLE_DEVICES", is_list, "CUDA sees these GPUs only", true, Needs::nothing},
    Switch{"CUDA_LAUNCH_BLOCKING", is_on, "every launch waits until the GPU is done, nothing overlaps", false,
           Needs::nothing},
    Switch{"PYTORCH_NO_CUDA_MEMORY_CACHING", is_on, "PyTorch asks the driver for every block of memory",
           false, Needs::nothing},
};

// The pairs of GPUs that reach each other. None where a probe found that what arrives is wrong: then peer
// access is switched off for a good reason.
std::vector<std::pair<DeviceId, DeviceId>> peers_of(const Evidence& evidence) {
    std::vector<std::pair<DeviceId, DeviceId>> peers;
    if (evidence.probe) {
        for (const PairProbe& probe : evidence.probe->pairs) {
            if (!probe.intact) return peers;
        }
    }
    const Topology& topology = evidence.topology;
    const auto gpus = gpus_of(topology);
    for (const DeviceId from : gpus) {
        for (const DeviceId to : gpus) {
            if (from != to &&
                topology.peer_access(topology.device(from).index, topology.device(to).index).allowed)
                peers.emplace_back(from, to);
        }
    }
    return peers;
}

double lost_without_peers(const Evidence& evidence) {
    double lost = 0;
    for (const auto& [from, to] : peers_of(evidence))
        lost = std::max(lost, lost_by_bounce(evidence.topology, from, to));
    return lost;
}

bool there(const Evidence& evidence, Needs needs) {
    switch (needs) {
        case Needs::nothing:
            return true;
        case Needs::two_gpus:
            return evidence.topology.gpu_count() >= 2;
        case Needs::peer_access:
            return !peers_of(evidence).empty();
        case Needs::rdma:
            return has_rdma(evidence);
    }
    return true;
}

Outcome without_environment(const Evidence& evidence) {
    Outcome outcome = unknown("the variables of this process cannot be read");
    outcome.saw(environ_path, evidence.files.state(environ_path) == driver::FileState::denied
                                  ? "denied"
                                  : "does not exist");
    outcome.remedy = "Look at them with `env`, where the slow program is started.";
    outcome.command = "env | grep -E '^(NCCL|UCX|CUFILE|CUDA|NVSHMEM|PYTORCH)_'";
    return outcome;
}

}  // namespace

Outcome look_environment(const Evidence& evidence) {
    if (evidence.topology.gpu_count() == 0) return does_not_apply("there is no GPU");
    if (!process_environment(evidence.files)) return without_environment(evidence);
    Outcome outcome = warn("");
    std::vector<std::string> names;
    std::vector<std::string> unset;
    std::string in_file;
    for (const auto& [name, setting] : nccl_settings(evidence.files)) {
        for (const Switch& known : switches) {
            if (name != known.name || !known.hits(setting.value)) continue;
            const bool counts = !known.note && there(evidence, known.needs);
            outcome.saw(fmt::format("{}: {}", setting.source, name),
                        fmt::format("{} ({}{})", setting.value, counts ? "" : "a note: ", known.takes));
            if (!counts) continue;
            const double lost = known.needs == Needs::peer_access ? lost_without_peers(evidence) : 0;
            if (lost > 1) outcome.cost_gb_per_s = lost;
            if (names.empty() || names.back() != name) names.push_back(name);
            const bool file = setting.source != environ_path;
            if (file) in_file = setting.source;
            if (!file && (unset.empty() || unset.back() != name)) unset.push_back(name);
        }
    }
    if (names.empty()) {
        outcome.verdict = Verdict::pass;
        outcome.summary = outcome.seen.empty()
                              ? "no variable switches a fast path off"
                              : "no variable switches a fast path off; some choose among them";
        return outcome;
    }
    outcome.summary = "switched off by " + listed(names);
    if (!unset.empty()) {
        outcome.command = "unset";
        for (const std::string& name : unset) outcome.command += " " + name;
    } else if (!in_file.empty()) {
        outcome.command = fmt::format("grep -n = {}", in_file);
    }
    return outcome;
}

// PyTorch's list of options: "expandable_segments:True,max_split_size_mb:128".
Outcome look_vmm_ipc(const Evidence& evidence) {
    if (evidence.topology.gpu_count() == 0) return does_not_apply("there is no GPU");
    const auto variables = process_environment(evidence.files);
    if (!variables) return without_environment(evidence);
    Outcome outcome = warn("");
    std::vector<std::string> names;
    for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
        const auto found = variables->find(name);
        if (found == variables->end()) continue;
        outcome.saw(fmt::format("{}: {}", environ_path, name), found->second);
        std::string options = lower(found->second);
        options.erase(std::remove(options.begin(), options.end(), ' '), options.end());
        if (names_any(parts_of(options), {"expandable_segments:true", "backend:cudamallocasync"}))
            names.emplace_back(name);
    }
    if (names.empty()) {
        outcome.verdict = Verdict::pass;
        outcome.summary = "PyTorch's allocator gives memory that other processes can open";
        if (outcome.seen.empty())
            outcome.saw(environ_path, "no PYTORCH_CUDA_ALLOC_CONF, no PYTORCH_ALLOC_CONF");
        return outcome;
    }
    outcome.summary = listed(names) + " makes PyTorch allocate memory that cudaIpcGetMemHandle cannot share";
    outcome.command = "unset";
    for (const std::string& name : names) outcome.command += " " + name;
    return outcome;
}

}  // namespace sidestep::diagnose
