#include "diagnose/checks/p2pdma_mode.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>

#include "diagnose/checks/gpu_direct.hpp"
#include "diagnose/checks/gpu_pairs.hpp"
#include "topology/p2pdma_reader.hpp"

namespace sidestep::diagnose {

namespace {

using driver::MachineFiles;

// GPUDirect Storage troubleshooting guide, section 14.2.
constexpr std::array<std::string_view, 9> supported_gpus = {"A100", "A40",  "L4",   "L40S", "H100",
                                                            "H200", "B100", "B200", "B300"};

Condition kernel_condition(const Evidence& evidence) {
    Condition condition{
        std::nullopt,
        "a kernel with PCI peer-to-peer DMA",
        {},
        "Boot a kernel that is built with CONFIG_PCI_P2PDMA and is 6.2 or newer: the generic kernels of "
        "Ubuntu 24.04 are, Debian's since 6.13.",
        "grep CONFIG_PCI_P2PDMA /boot/config-$(uname -r)"};
    const topology::Fact built = topology::kernel_p2pdma(evidence.files);
    const topology::Fact release = topology::kernel_release(evidence.files);
    condition.seen = {built.source, built.known() ? built.value : "cannot be told"};
    if (built.value == "yes") {
        condition.met = topology::maps_peer_memory(release.value);
        condition.seen.value +=
            fmt::format(", kernel {}", release.known() ? release.value : "version not told");
    } else if (built.value == "no") {
        condition.met = false;
    }
    return condition;
}

Condition multipath_condition(const Evidence& evidence) {
    const std::string path = "/sys/module/nvme_core/parameters/multipath";
    Condition condition{
        std::nullopt,
        "NVMe multipath switched off",
        {path, "does not exist"},
        "Switch NVMe multipath off, write the initial file system again and reboot.",
        "echo 'options nvme_core multipath=N' > /etc/modprobe.d/nvme-p2pdma.conf && update-initramfs -u"};
    const auto value = evidence.files.line(path);
    if (value) {
        condition.met = *value == "N" || *value == "0";
        condition.seen.value = *value;
    } else if (evidence.files.exists("/sys/module/nvme_core")) {
        condition.met = true;
        condition.seen.value = "does not exist: built without multipath";
    }
    return condition;
}

Condition driver_condition(const Evidence& evidence) {
    const auto [met, seen] = topology::static_bar1(evidence.files, evidence.topology);
    return {met,
            "the driver's registry keys for a static BAR1",
            {seen.source, seen.value},
            "Give the driver the two registry keys, write the initial file system again and reboot.",
            "echo 'options nvidia NVreg_RegistryDwords=\"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\"' > "
            "/etc/modprobe.d/nvidia-p2pdma.conf && update-initramfs -u"};
}

Condition cufile_condition(const Evidence& evidence) {
    const auto [met, seen] = topology::cufile_p2pdma(evidence.files);
    return {met,
            "`use_pci_p2pdma` switched on in cuFile's settings",
            {seen.source, seen.value},
            "Write `\"use_pci_p2pdma\": true` among the `properties` of cufile.json, or set the variable.",
            "export CUFILE_USE_PCIP2PDMA=true"};
}

bool is_listed(const std::string& model) {
    std::string word;
    for (const char c : model + " ") {
        if (c != ' ' && c != '-') {
            word += c;
            continue;
        }
        if (std::find(supported_gpus.begin(), supported_gpus.end(), std::string_view(word)) !=
            supported_gpus.end())
            return true;
        word.clear();
    }
    return false;
}

}  // namespace

bool P2pdmaMode::complete() const {
    const auto conditions = all();
    return other_gpus.empty() &&
           std::all_of(conditions.begin(), conditions.end(),
                       [](const Condition& condition) { return condition.met.value_or(false); });
}

bool P2pdmaMode::begun() const {
    return driver.met.value_or(false) || cufile.met.value_or(false);
}

P2pdmaMode read_p2pdma_mode(const Evidence& evidence) {
    P2pdmaMode mode{kernel_condition(evidence),
                    multipath_condition(evidence),
                    driver_condition(evidence),
                    cufile_condition(evidence),
                    {}};
    // What the guide asks for on x86 only: GPUs with C2C have their memory in the CPU's address space.
    if (all_c2c(evidence.topology)) mode.multipath.met = mode.driver.met = true;
    for (const DeviceId gpu : gpus_of(evidence.topology)) {
        const std::string& model = evidence.topology.device(gpu).model;
        if (!model.empty() && !model.starts_with("PCI ") && !is_listed(model))
            mode.other_gpus.push_back(model);
    }
    return mode;
}

NvidiaFs read_nvidia_fs(const Evidence& evidence) {
    const topology::Fact module = topology::nvidia_fs(evidence.files);
    NvidiaFs fs{
        module.known(), {module.source, module.known() ? module.value : "does not exist"}, std::nullopt, ""};
    // A line a driver that takes part: "nvme: 1" (nvfs-proc.c of github.com/NVIDIA/gds-nvidia-fs).
    const auto text = evidence.files.text("/proc/driver/nvidia-fs/modules");
    if (!text) return fs;
    fs.has_nvme = false;
    std::istringstream lines(*text);
    for (std::string line; std::getline(lines, line);) {
        fs.has_nvme = *fs.has_nvme || line.starts_with("nvme:") || line.starts_with("nvme ");
        fs.modules += (fs.modules.empty() ? "" : ", ") + line;
    }
    if (fs.modules.empty()) fs.modules = "lists no driver";
    return fs;
}

}  // namespace sidestep::diagnose
