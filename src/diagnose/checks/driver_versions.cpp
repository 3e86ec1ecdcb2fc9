// Whether the parts of the NVIDIA driver belong together, and are new enough.
#include <fmt/format.h>

#include <algorithm>

#include "diagnose/checks/gpu_direct.hpp"
#include "diagnose/checks/gpu_pairs.hpp"
#include "diagnose/checks/looks.hpp"
#include "topology/machine_facts_reader.hpp"

namespace sidestep::diagnose {

namespace {

constexpr int driver_mismatch_code = 803;  // CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
constexpr int needed_cuda = 12040;         // Sidestep's backend binds functions of CUDA 12.4

std::string cuda_words(int version) {
    return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

bool has_nvidia_device(const driver::MachineFiles& files) {
    for (const std::string& bus_id : files.names("/sys/bus/pci/devices")) {
        const std::string folder = "/sys/bus/pci/devices/" + bus_id;
        const long kind = files.number(folder + "/class").value_or(0) >> 8;
        if ((kind == 0x0300 || kind == 0x0302) && files.number(folder + "/vendor").value_or(0) == 0x10de)
            return true;
    }
    return false;
}

// A GPU is there, and NVML does not answer.
Outcome without_nvml(const Evidence& evidence, const topology::Fact& module) {
    Outcome outcome;
    if (evidence.no_nvml.find("ismatch") != std::string::npos) {
        outcome = fail("the NVIDIA driver's libraries are of another version than its kernel module");
    } else if (module.known()) {
        outcome = fail("the NVIDIA driver's kernel module is loaded, and its library does not work");
        if (!container_words(evidence).empty()) {
            outcome.remedy =
                "Start the container with NVIDIA's container toolkit, which puts the host's libraries in.";
            outcome.command = "docker run --gpus all IMAGE";
        } else {
            outcome.remedy = "Install the driver's libraries in the version of the kernel module.";
            outcome.command = fmt::format("apt-get install libnvidia-compute-{}",
                                          module.value.substr(0, module.value.find('.')));
        }
    } else {
        outcome = fail("an NVIDIA GPU is plugged in, and no NVIDIA driver is loaded");
        outcome.remedy =
            "Install the NVIDIA driver and load it; the kernel's own driver nouveau cannot compute.";
        outcome.command = "modprobe nvidia && nvidia-smi";
    }
    outcome.saw(module.source, module.known() ? module.value : "does not exist");
    outcome.saw("libnvidia-ml.so.1", evidence.no_nvml);
    return outcome;
}

// What the fabric of a machine with NVSwitches says, over all GPUs.
struct Fabric {
    bool known = false;     // some GPU speaks of a fabric
    bool completed = true;  // all of them that do are part of it
    std::vector<Seen> seen;
};

Fabric fabric_of(const Evidence& evidence) {
    Fabric fabric;
    for (const DeviceId gpu : gpus_of(evidence.topology)) {
        const Device& device = evidence.topology.device(gpu);
        const auto count = evidence.nvml ? evidence.nvml->gpu_count() : Result<int>(0);
        if (!count.ok() || device.index >= *count) continue;
        const auto told = evidence.nvml->fabric(device.index);
        if (!told.ok() || told->state == driver::FabricState::not_supported) continue;
        const bool completed = told->state == driver::FabricState::completed && told->status == 0;
        fabric.known = true;
        fabric.completed = fabric.completed && completed;
        fabric.seen.push_back(
            {fmt::format("nvmlDeviceGetGpuFabricInfoV({})", device.name),
             completed ? "completed"
                       : fmt::format("state {}, status {}", static_cast<int>(told->state), told->status)});
    }
    return fabric;
}

// The branch of an installed package of the fabric manager, as Debian's packages show it in a file name; 0:
// none is seen.
int fabric_manager_branch(const driver::MachineFiles& files, int wanted) {
    const auto there = [&](int branch) {
        return files.exists(fmt::format("/var/lib/dpkg/info/nvidia-fabricmanager-{}.list", branch));
    };
    if (wanted > 0 && there(wanted)) return wanted;
    for (int branch = 450; branch <= 700; branch += 5) {
        if (there(branch)) return branch;
    }
    return 0;
}

}  // namespace

Outcome look_driver_mismatch(const Evidence& evidence) {
    const topology::Fact module = topology::nvidia_driver(evidence.files);
    const bool there = evidence.topology.gpu_count() > 0 || has_nvidia_device(evidence.files);
    if (!there && !module.known() && !evidence.nvml) return does_not_apply("there is no NVIDIA GPU");
    if (!evidence.nvml) return without_nvml(evidence, module);
    const std::string library = evidence.nvml->driver_version();
    Outcome outcome;
    if (evidence.cuda.loaded && evidence.cuda.init_code == driver_mismatch_code) {
        outcome = fail("CUDA's library is of another version than the NVIDIA driver's kernel module");
    } else if (module.known() && !library.empty() && !version_numbers(module.value).empty() &&
               module.value != library) {
        outcome = fail(fmt::format("the kernel module is {}, the libraries are {}", module.value, library));
    } else if (library.empty() && evidence.from_topology) {
        return unknown("the topology does not tell of a driver");
    } else {
        outcome = pass(fmt::format("the NVIDIA driver's parts fit together ({})", !library.empty() ? library
                                                                                  : module.known()
                                                                                      ? module.value
                                                                                      : "version not told"));
    }
    outcome.saw(module.source, module.known() ? module.value : "is not shown");
    outcome.saw("nvmlSystemGetDriverVersion", library.empty() ? "is not told" : library);
    if (evidence.cuda.loaded)
        outcome.saw("cuInit", fmt::format("{} {}", evidence.cuda.init_code, evidence.cuda.init_words));
    return outcome;
}

Outcome look_fabric_manager_version(const Evidence& evidence) {
    const auto& devices = evidence.topology.devices();
    const bool switches = std::any_of(devices.begin(), devices.end(), [](const Device& device) {
        return device.kind == DeviceKind::nvswitch && !device.bus_id.empty();
    });
    Fabric fabric = fabric_of(evidence);
    if (!switches && !fabric.known) return does_not_apply("there is no NVSwitch");
    Outcome outcome;
    if (fabric.known && fabric.completed) {
        outcome = pass(
            "the fabric of the NVSwitches is up, which a fabric manager of another version would refuse");
        outcome.seen = std::move(fabric.seen);
        return outcome;
    }
    if (!switches)
        return does_not_apply("the NVSwitches belong to the host, and so does their fabric manager");
    const std::string driver = topology::nvidia_driver(evidence.files).value;
    const auto numbers = version_numbers(driver);
    const int wanted = numbers.empty() ? 0 : numbers.front();
    const int branch = fabric_manager_branch(evidence.files, wanted);
    const std::string binary = "/usr/bin/nv-fabricmanager";
    const bool installed = branch > 0 || evidence.files.exists(binary);
    if (!container_words(evidence).empty() && !installed) {
        outcome = unknown("the fabric manager runs outside of this container");
        outcome.remedy = "Look on the host.";
        outcome.command = "nv-fabricmanager --version";
    } else if (!installed) {
        outcome = fail("there are NVSwitches, and no fabric manager is installed");
    } else if (branch > 0 && wanted > 0 && branch != wanted) {
        outcome = fail(fmt::format("the fabric manager is of branch {}, the driver of {}", branch, wanted));
    } else {
        outcome = unknown("the fabric manager's exact version is not shown");
        outcome.remedy = "Compare it with the driver's: all numbers have to be the same.";
        outcome.command = "nv-fabricmanager --version; cat /proc/driver/nvidia/version";
    }
    if (outcome.verdict == Verdict::fail && wanted > 0)
        outcome.command = fmt::format(
            "apt-get install nvidia-fabricmanager-{0}={1}* && systemctl restart nvidia-fabricmanager", wanted,
            driver);
    outcome.saw("/proc/driver/nvidia/version", driver.empty() ? "is not shown" : driver);
    outcome.saw(binary, evidence.files.exists(binary) ? "exists" : "does not exist");
    if (branch > 0)
        outcome.saw(fmt::format("/var/lib/dpkg/info/nvidia-fabricmanager-{}.list", branch), "exists");
    for (Seen& seen : fabric.seen) outcome.seen.push_back(std::move(seen));
    return outcome;
}

Outcome look_cuda_driver(const Evidence& evidence) {
    if (evidence.topology.gpu_count() == 0) return does_not_apply("there is no NVIDIA GPU");
    if (!evidence.cuda.loaded) {
        Outcome outcome = unknown("the CUDA driver's library does not load, so its version is not known");
        outcome.saw("libcuda.so.1", evidence.cuda.reason);
        outcome.remedy =
            "Install the driver's library; in a container, start it with NVIDIA's container toolkit.";
        outcome.command = "ldconfig -p | grep libcuda";
        return outcome;
    }
    const int version = evidence.cuda.version;
    Outcome outcome = version >= needed_cuda
                          ? pass(fmt::format("the driver speaks CUDA {}", cuda_words(version)))
                          : fail(fmt::format("the driver speaks CUDA {}, Sidestep's GPU backend needs {}",
                                             cuda_words(version), cuda_words(needed_cuda)));
    outcome.saw("cuDriverGetVersion", fmt::format("{}", version));
    return outcome;
}

Outcome look_driver_kind(const Evidence& evidence) {
    if (const auto reason = no_gpu_direct(evidence)) return does_not_apply(*reason);
    const topology::Fact kind = topology::nvidia_driver_kind(evidence.files);
    if (!kind.known()) {
        Outcome outcome = evidence.nvml ? unknown("which kind of kernel module is loaded is not shown")
                                        : does_not_apply("no NVIDIA driver is loaded");
        outcome.saw(kind.source, "does not exist");
        outcome.remedy = "Look on the host: the open one has the licence `Dual MIT/GPL`.";
        outcome.command = "modinfo -F license nvidia";
        return outcome;
    }
    // GPUs before Turing have no system processor, which the open modules need.
    for (const DeviceId gpu : gpus_of(evidence.topology)) {
        const auto facts = nvml_facts(evidence, gpu);
        const bool older =
            facts && facts->cc_major > 0 && std::pair(facts->cc_major, facts->cc_minor) < std::pair(7, 5);
        if (older)
            return does_not_apply(fmt::format("{} works with the closed kernel modules only", facts->name));
    }
    Outcome outcome =
        kind.value == "open"
            ? pass("the open kernel modules are loaded")
            : warn("the closed kernel modules are loaded: no dma-buf, no nvidia-fs, no P2PDMA mode");
    outcome.saw(kind.source, evidence.files.line(kind.source).value_or(kind.value));
    return outcome;
}

}  // namespace sidestep::diagnose
