#include "backends/cufile/conditions.hpp"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <sstream>

#include <fmt/format.h>

#include "backends/cufile/settings.hpp"
#include "topology/machine_facts_reader.hpp"

namespace sidestep::backends::cufile {
namespace {

using driver::MachineFiles;

std::vector<const Device*> gpus_of(const Topology& topology) {
    std::vector<const Device*> gpus;
    for (const Device& device : topology.devices())
        if (device.kind == DeviceKind::gpu) gpus.push_back(&device);
    return gpus;
}

// Whether NVLink-C2C joins every GPU to a CPU: their memory lies in the CPU's address space then.
bool all_c2c(const Topology& topology) {
    int joined = 0;
    for (DeviceId id = 0; id < topology.devices().size(); ++id) {
        if (topology.device(id).kind != DeviceKind::gpu) continue;
        joined += std::any_of(topology.links().begin(), topology.links().end(), [&](const Link& link) {
            return link.kind == LinkKind::c2c && (link.a == id || link.b == id);
        });
    }
    return joined > 0 && joined == topology.gpu_count();
}

std::string lower(std::string text) {
    for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return text;
}

// A variable of this process's environment.
std::string variable(const MachineFiles& files, const std::string& name) {
    const std::string all =
        std::string(1, '\0') + files.text("/proc/self/environ", std::size_t{1} << 20).value_or("");
    const auto at = all.find(std::string(1, '\0') + name + "=");
    if (at == std::string::npos) return {};
    const auto begin = at + name.size() + 2;
    return all.substr(begin, all.find('\0', begin) - begin);
}

bool is_on(const std::string& value) {
    return lower(value) == "true" || value == "1";
}

std::vector<Missing> missing_always(const MachineFiles& files) {
    std::vector<Missing> missing;
    if (!topology::nvidia_driver(files).known())
        missing.push_back({"no NVIDIA driver is loaded", "install the NVIDIA driver"});
    if (!files.exists("/run/udev/data"))
        missing.push_back({"there is no udev database: cuFile takes no file (error 5027)",
                           "install and start udev; a container needs -v /run/udev:/run/udev:ro"});
    if (is_on(variable(files, "CUFILE_FORCE_COMPAT_MODE")))
        missing.push_back({"CUFILE_FORCE_COMPAT_MODE is set: cuFile copies through host memory",
                           "unset CUFILE_FORCE_COMPAT_MODE"});
    return missing;
}

std::vector<Missing> missing_nvidia_fs(const MachineFiles& files) {
    if (!topology::nvidia_fs(files).known())
        return {{"nvidia-fs is not loaded",
                 "install nvidia-fs (package nvidia-gds) and the NVMe driver that works with it"}};
    if (!files.exists("/dev/nvidia-fs0"))
        return {{"nvidia-fs is loaded, and its devices (/dev/nvidia-fs0) are not here",
                 "start the container with NVIDIA_GDS=enabled"}};
    return {};
}

// User programs can map peer memory since Linux 6.2; Red Hat's 5.14 of release 9.4 has it too.
bool kernel_is_new_enough(const std::string& release) {
    char* end = nullptr;
    const long major = std::strtol(release.c_str(), &end, 10);
    const long minor = *end == '.' ? std::strtol(end + 1, nullptr, 10) : 0;
    if (major > 6 || (major == 6 && minor >= 2)) return true;
    const auto red_hat = release.find(".el9_");
    return red_hat != std::string::npos && std::atoi(release.c_str() + red_hat + 5) >= 4;
}

// `others`: what else is missing; the kernel's list of symbols is megabytes long, so it is looked at last.
std::optional<Missing> missing_kernel(const MachineFiles& files, bool others) {
    const topology::Fact release = topology::kernel_release(files);
    if (release.known() && !kernel_is_new_enough(release.value))
        return Missing{fmt::format("the kernel is {}, and programs map peer memory since 6.2", release.value),
                       "boot kernel 6.2 or newer with CONFIG_PCI_P2PDMA"};
    const topology::Fact option = topology::kernel_option(files, "CONFIG_PCI_P2PDMA");
    const bool without =
        option.known() ? option.value != "y" : !others && topology::kernel_p2pdma(files).value == "no";
    if (!without) return std::nullopt;
    return Missing{"the kernel is built without CONFIG_PCI_P2PDMA",
                   "boot a kernel with PCI peer-to-peer DMA"};
}

// Whether a list such as "RMForceStaticBar1=1;Other=0x2" gives the key a value above 0. Keys ignore case.
bool has_key(const std::string& list, const std::string& key) {
    const std::string all = lower(list);
    const auto at = all.find(lower(key) + "=");
    return at != std::string::npos && std::strtol(all.c_str() + at + key.size() + 1, nullptr, 0) > 0;
}

bool has_driver_keys(const MachineFiles& files, const std::vector<const Device*>& gpus) {
    // With the keys at work the driver gives the kernel each GPU's BAR1 as peer memory.
    for (const Device* gpu : gpus)
        if (files.exists(fmt::format("/sys/bus/pci/devices/{}/p2pmem/size", gpu->bus_id))) return true;
    std::istringstream lines(files.text("/proc/driver/nvidia/params").value_or(""));
    for (std::string line; std::getline(lines, line);)
        if (line.starts_with("RegistryDwords:"))
            return has_key(line, "RMForceStaticBar1") && has_key(line, "RmForceDisableIomapWC");
    return false;
}

void add_missing_of_x86(const MachineFiles& files, const std::vector<const Device*>& gpus,
                        std::vector<Missing>& missing) {
    if (!has_driver_keys(files, gpus))
        missing.push_back(
            {"the driver's registry keys for a static BAR1 are not set",
             "load nvidia with NVreg_RegistryDwords=\"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\""});
    for (const Device* gpu : gpus) {
        const Bytes bar = topology::bar_size(files, gpu->bus_id, 1);
        if (bar == 0 || gpu->memory == 0 || bar >= gpu->memory) continue;
        missing.push_back({fmt::format("BAR1 of {} shows {} of its {}", gpu->name, format_bytes(bar),
                                       format_bytes(gpu->memory)),
                           "switch on resizable BAR (above 4G decoding) in the firmware"});
    }
    const auto multipath = files.line("/sys/module/nvme_core/parameters/multipath");
    if (multipath && *multipath != "N" && *multipath != "0")
        missing.push_back({"NVMe multipath is on", "load nvme_core with multipath=N"});
}

std::vector<Missing> missing_p2pdma(const MachineFiles& files, const Topology& topology) {
    std::vector<Missing> missing;
    const auto gpus = gpus_of(topology);
    if (topology::nvidia_driver_kind(files).value == "closed")
        missing.push_back(
            {"the NVIDIA driver's kernel modules are the closed ones", "install the open kernel modules"});
    if (files.names("/sys/class/nvme").empty()) missing.push_back({"there is no NVMe drive", ""});
    if (!all_c2c(topology)) add_missing_of_x86(files, gpus, missing);
    const std::string set = variable(files, "CUFILE_USE_PCIP2PDMA");
    std::string path = variable(files, "CUFILE_ENV_PATH_JSON");
    if (path.empty()) path = "/etc/cufile.json";
    const bool wanted =
        !set.empty() ? is_on(set) : asks_for_p2pdma(files.text(path, std::size_t{1} << 20).value_or(""));
    if (!wanted)
        missing.push_back({fmt::format("use_pci_p2pdma is not switched on in {}",
                                       set.empty() ? path : "CUFILE_USE_PCIP2PDMA"),
                           "write \"use_pci_p2pdma\": true among the properties of cufile.json"});
    if (auto kernel = missing_kernel(files, !missing.empty())) missing.insert(missing.begin(), *kernel);
    return missing;
}

std::string listed(const std::vector<Missing>& missing) {
    std::string text;
    for (const Missing& one : missing) text += (text.empty() ? "" : "; ") + one.what;
    return text;
}

void add_remedies(const std::vector<Missing>& missing, std::string& text) {
    for (const Missing& one : missing)
        if (!one.remedy.empty()) text += (text.empty() ? "" : "; ") + one.remedy;
}

}  // namespace

backend::Support Conditions::refusal() const {
    std::string reason = listed(always);
    std::string remedy;
    add_remedies(always, remedy);
    if (!nvidia_fs.empty() && !p2pdma.empty()) {
        if (!reason.empty()) reason += "; ";
        reason += fmt::format("{}, and P2PDMA mode is not set up: {}", listed(nvidia_fs), listed(p2pdma));
        // Either way will do; the kernel's own needs no further module.
        std::string either;
        add_remedies(p2pdma, either);
        if (!remedy.empty()) remedy += "; ";
        remedy += fmt::format("for P2PDMA mode {}. Or: {}", either.empty() ? "see sidestep doctor" : either,
                              nvidia_fs.front().remedy);
    }
    return backend::Support::no(std::move(reason), std::move(remedy));
}

Conditions read_conditions(const MachineFiles& files, const Topology& topology) {
    return {missing_always(files), missing_nvidia_fs(files), missing_p2pdma(files, topology)};
}

}  // namespace sidestep::backends::cufile
