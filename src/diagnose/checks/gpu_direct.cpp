#include "diagnose/checks/gpu_direct.hpp"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "diagnose/checks/mounts.hpp"
#include "diagnose/checks/process_facts.hpp"
#include "diagnose/checks/rdma_cards.hpp"
#include "topology/machine_facts_reader.hpp"

namespace sidestep::diagnose {

std::optional<std::string> no_gpu_direct(const Evidence& evidence) {
    if (evidence.topology.gpu_count() == 0) return "there is no NVIDIA GPU";
    const std::string refuses = "its GPUs let no other device reach their memory (no GPUDirect RDMA)";
    const auto& gpus = evidence.cuda.gpus;
    const bool all_refuse =
        !gpus.empty() && std::all_of(gpus.begin(), gpus.end(), [](const driver::CudaGpuFacts& gpu) {
            const auto found = gpu.attributes.find("GPU_DIRECT_RDMA_SUPPORTED");
            return found != gpu.attributes.end() && found->second == 0;
        });
    // Where CUDA does not tell, the name does: products for games have none.
    const auto& devices = evidence.topology.devices();
    const bool all_geforce = std::all_of(devices.begin(), devices.end(), [](const Device& device) {
        return device.kind != DeviceKind::gpu || device.model.find("GeForce") != std::string::npos;
    });
    if (all_refuse || all_geforce) return refuses;
    return std::nullopt;
}

std::optional<bool> every_gpu_has(const Evidence& evidence, const std::string& attribute) {
    bool told = !evidence.cuda.gpus.empty();
    for (const driver::CudaGpuFacts& gpu : evidence.cuda.gpus) {
        const auto found = gpu.attributes.find(attribute);
        if (found == gpu.attributes.end()) {
            told = false;
        } else if (found->second == 0) {
            return false;
        }
    }
    return told ? std::optional(true) : std::nullopt;
}

bool has_c2c(const Topology& topology, DeviceId gpu) {
    return std::any_of(topology.links().begin(), topology.links().end(), [&](const Link& link) {
        return link.kind == LinkKind::c2c && (link.a == gpu || link.b == gpu);
    });
}

std::vector<int> version_numbers(const std::string& version) {
    std::vector<int> numbers;
    const char* at = version.c_str();
    while (*at >= '0' && *at <= '9') {
        char* end = nullptr;
        numbers.push_back(static_cast<int>(std::min(std::strtol(at, &end, 10), 1'000'000'000L)));
        at = *end == '.' ? end + 1 : end;
        if (*end != '.') break;
    }
    return numbers;
}

std::optional<bool> cards_take_dma_buf(const Evidence& evidence) {
    bool told = true;
    int cards = 0;
    const auto& devices = evidence.verbs.devices;
    for (const RdmaCard& card : rdma_cards(evidence)) {
        ++cards;
        const auto found = std::find_if(devices.begin(), devices.end(),
                                        [&](const auto& device) { return device.name == card.name; });
        if (found == devices.end() || !found->dma_buf) {
            told = false;
        } else if (!*found->dma_buf) {
            return false;
        }
    }
    return told && cards > 0 ? std::optional(true) : std::nullopt;
}

std::string path_of_variable(const std::string& value) {
    return value.starts_with("/") ? value : "/proc/self/cwd/" + value;
}

// Source: NCCL 2.23 and later, src/misc/param.cc (github.com/NVIDIA/nccl). It asks the password database for the
// user's folder, which is the one of HOME unless somebody set that to another.
std::vector<std::string> nccl_files(const driver::MachineFiles& files) {
    std::vector<std::string> paths;
    const std::string named = topology::process_variable(files, "NCCL_CONF_FILE");
    const std::string home = topology::process_variable(files, "HOME");
    if (!named.empty() || !home.empty())
        paths.push_back(named.empty() ? home + "/.nccl.conf" : path_of_variable(named));
    paths.emplace_back("/etc/nccl.conf");
    return paths;
}

// What is set first counts, in a file too: NCCL leaves a variable that is set as it is.
std::map<std::string, NcclSetting> nccl_settings(const driver::MachineFiles& files) {
    std::map<std::string, NcclSetting> settings;
    for (const auto& [name, value] :
         process_environment(files).value_or(std::map<std::string, std::string>{}))
        settings.emplace(name, NcclSetting{value, "/proc/self/environ"});
    for (const std::string& path : nccl_files(files)) {
        std::istringstream lines(files.text(path).value_or(""));
        for (std::string line; std::getline(lines, line);) {
            const auto equals = line.find('=');
            if (line.starts_with("#") || equals == std::string::npos) continue;
            settings.emplace(line.substr(0, equals), NcclSetting{line.substr(equals + 1), path});
        }
    }
    return settings;
}

std::optional<NcclSetting> nccl_setting(const driver::MachineFiles& files, const std::string& name) {
    const auto all = nccl_settings(files);
    const auto found = all.find(name);
    return found == all.end() ? std::nullopt : std::optional(found->second);
}

std::string container_words(const Evidence& evidence) {
    const std::string kind = topology::container(evidence.files).value;
    if (kind == "none") return {};
    if (evidence.files.link_target("/proc/self/ns/pid").value_or("") != first_pid_namespace ||
        evidence.files.link_target("/proc/self/ns/ipc").value_or("") != first_ipc_namespace)
        return kind;
    // In the first namespaces of the machine. Machines that boot from the image of a container keep its
    // marks: an overlay as the root where nothing else speaks for a container, or a file of Docker's on a
    // drive.
    const auto all = mounts(evidence.files);
    const Mount* root = all ? mount_of(*all, "/") : nullptr;
    const bool on_drive = root != nullptr && !root->device.starts_with("0:");
    return kind == "container" || on_drive ? "" : kind;
}

}  // namespace sidestep::diagnose
