#include "diagnose/checks/p2pdma_mode.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "diagnose/checks/gpu_direct.hpp"
#include "diagnose/checks/gpu_pairs.hpp"
#include "diagnose/checks/process_facts.hpp"
#include "topology/machine_facts_reader.hpp"

namespace sidestep::diagnose {

namespace {

using driver::MachineFiles;

// GPUDirect Storage troubleshooting guide, section 14.2.
constexpr std::array<std::string_view, 9> listed_gpus = {"A100", "A40",  "L4",   "L40S", "H100",
                                                         "H200", "B100", "B200", "B300"};

std::string lower(std::string text) {
    for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return text;
}

// User programs can map peer memory since Linux 6.2; Red Hat's 5.14 of release 9.4 has it too.
bool kernel_is_new_enough(const std::string& release) {
    const auto numbers = version_numbers(release);
    if (numbers.empty() || numbers >= std::vector<int>{6, 2}) return true;
    const auto red_hat = release.find(".el9_");
    return red_hat != std::string::npos && std::atoi(release.c_str() + red_hat + 5) >= 4;
}

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
        condition.met = kernel_is_new_enough(release.value);
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

// Whether a list such as "RMForceStaticBar1=1;Other=0x2" gives the key a value above 0. Keys ignore case.
bool has_key(const std::string& list, const std::string& key) {
    const std::string all = lower(list);
    const auto at = all.find(lower(key) + "=");
    return at != std::string::npos && std::strtol(all.c_str() + at + key.size() + 1, nullptr, 0) > 0;
}

Condition driver_condition(const Evidence& evidence) {
    const std::string path = "/proc/driver/nvidia/params";
    Condition condition{
        std::nullopt,
        "the driver's registry keys for a static BAR1",
        {path, "cannot be read"},
        "Give the driver the two registry keys, write the initial file system again and reboot.",
        "echo 'options nvidia NVreg_RegistryDwords=\"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\"' > "
        "/etc/modprobe.d/nvidia-p2pdma.conf && update-initramfs -u"};
    // With the keys at work the driver gives the kernel each GPU's BAR1 as peer memory.
    for (const DeviceId gpu : gpus_of(evidence.topology)) {
        const std::string pool =
            fmt::format("/sys/bus/pci/devices/{}/p2pmem/size", evidence.topology.device(gpu).bus_id);
        const auto size = evidence.files.number(pool);
        if (!size) continue;
        condition.met = true;
        condition.seen = {pool, fmt::format("{}", *size)};
        return condition;
    }
    std::istringstream lines(evidence.files.text(path).value_or(""));
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with("RegistryDwords:")) continue;
        condition.seen.value = line;
        condition.met = has_key(line, "RMForceStaticBar1") && has_key(line, "RmForceDisableIomapWC");
    }
    return condition;
}

// Every key of that name anywhere in cuFile's settings counts: some releases want it among the properties,
// some below block.nvme.
bool asks_for_p2pdma(const nlohmann::json& json) {
    if (!json.is_object()) return false;
    return std::any_of(json.begin(), json.end(),
                       [](const nlohmann::json& value) { return asks_for_p2pdma(value); }) ||
           (json.contains("use_pci_p2pdma") && json["use_pci_p2pdma"] == true);
}

Condition cufile_condition(const Evidence& evidence) {
    Condition condition{
        std::nullopt,
        "`use_pci_p2pdma` switched on in cuFile's settings",
        {},
        "Write `\"use_pci_p2pdma\": true` among the `properties` of cufile.json, or set the variable.",
        "export CUFILE_USE_PCIP2PDMA=true"};
    const auto environment = process_environment(evidence.files);
    const auto variable = [&](const char* name) {
        const auto found = environment ? environment->find(name) : decltype(environment->end()){};
        return environment && found != environment->end() ? found->second : std::string();
    };
    if (const std::string value = variable("CUFILE_USE_PCIP2PDMA"); !value.empty()) {
        condition.met = lower(value) == "true" || value == "1";
        condition.seen = {"/proc/self/environ", "CUFILE_USE_PCIP2PDMA=" + value};
        return condition;
    }
    std::string path = variable("CUFILE_ENV_PATH_JSON");
    if (path.empty()) path = "/etc/cufile.json";
    const auto text = evidence.files.text(path, std::size_t{1} << 20);
    if (!text) {
        condition.met = false;
        condition.seen = {path, "does not exist"};
        return condition;
    }
    // The file that NVIDIA ships has comments.
    const auto json = nlohmann::json::parse(*text, nullptr, false, true);
    condition.met = !json.is_discarded() && asks_for_p2pdma(json);
    condition.seen = {path,
                      json.is_discarded() ? "is no JSON" : fmt::format("use_pci_p2pdma: {}", *condition.met)};
    return condition;
}

bool is_listed(const std::string& model) {
    std::string word;
    for (const char c : model + " ") {
        if (c != ' ' && c != '-') {
            word += c;
            continue;
        }
        if (std::find(listed_gpus.begin(), listed_gpus.end(), std::string_view(word)) != listed_gpus.end())
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
