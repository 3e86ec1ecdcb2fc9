#include "backends/cufile/conditions.hpp"

#include <optional>

#include <fmt/format.h>

#include "topology/p2pdma_reader.hpp"

namespace sidestep::backends::cufile {
namespace {

using driver::MachineFiles;

std::vector<Missing> missing_always(const MachineFiles& files) {
    std::vector<Missing> missing;
    if (!topology::nvidia_driver(files).known())
        missing.push_back({"no NVIDIA driver is loaded", "install the NVIDIA driver"});
    if (!files.exists("/run/udev/data"))
        missing.push_back({"there is no udev database: cuFile takes no file (error 5027)",
                           "install and start udev; a container needs -v /run/udev:/run/udev:ro"});
    if (topology::is_on(topology::process_variable(files, "CUFILE_FORCE_COMPAT_MODE")))
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

// `others`: what else is missing; the kernel's list of symbols is megabytes long, so it is looked at last.
std::optional<Missing> missing_kernel(const MachineFiles& files, bool others) {
    const topology::Fact release = topology::kernel_release(files);
    if (!topology::maps_peer_memory(release.value))
        return Missing{fmt::format("the kernel is {}, and programs map peer memory since 6.2", release.value),
                       "boot kernel 6.2 or newer with CONFIG_PCI_P2PDMA"};
    const topology::Fact option = topology::kernel_option(files, "CONFIG_PCI_P2PDMA");
    const bool without =
        option.known() ? option.value != "y" : !others && topology::kernel_p2pdma(files).value == "no";
    if (!without) return std::nullopt;
    return Missing{"the kernel is built without CONFIG_PCI_P2PDMA",
                   "boot a kernel with PCI peer-to-peer DMA"};
}

void add_missing_of_x86(const MachineFiles& files, const Topology& topology, std::vector<Missing>& missing) {
    if (!topology::static_bar1(files, topology).on.value_or(false))
        missing.push_back(
            {"the driver's registry keys for a static BAR1 are not set",
             "load nvidia with NVreg_RegistryDwords=\"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\""});
    for (const Device& gpu : topology.devices()) {
        if (gpu.kind != DeviceKind::gpu) continue;
        const Bytes bar = topology::bar_size(files, gpu.bus_id, 1);
        if (bar == 0 || bar >= gpu.memory) continue;
        missing.push_back({fmt::format("BAR1 of {} shows {} of its {}", gpu.name, format_bytes(bar),
                                       format_bytes(gpu.memory)),
                           "switch on resizable BAR (above 4G decoding) in the firmware"});
    }
    const auto multipath = files.line("/sys/module/nvme_core/parameters/multipath");
    if (multipath && *multipath != "N" && *multipath != "0")
        missing.push_back({"NVMe multipath is on", "load nvme_core with multipath=N"});
}

std::vector<Missing> missing_p2pdma(const MachineFiles& files, const Topology& topology) {
    std::vector<Missing> missing;
    if (topology::nvidia_driver_kind(files).value == "closed")
        missing.push_back(
            {"the NVIDIA driver's kernel modules are the closed ones", "install the open kernel modules"});
    if (files.names("/sys/class/nvme").empty()) missing.push_back({"there is no NVMe drive", ""});
    if (!topology::all_c2c(topology)) add_missing_of_x86(files, topology, missing);
    if (const auto [on, seen] = topology::cufile_p2pdma(files); !on.value_or(false))
        missing.push_back(
            {fmt::format("use_pci_p2pdma is not switched on in {} ({})", seen.source, seen.value),
             "write \"use_pci_p2pdma\": true among the properties of cufile.json"});
    if (auto kernel = missing_kernel(files, !missing.empty())) missing.insert(missing.begin(), *kernel);
    return missing;
}

std::string listed(const std::vector<Missing>& missing, std::string Missing::*part) {
    std::string text;
    for (const Missing& one : missing)
        if (!(one.*part).empty()) text += (text.empty() ? "" : "; ") + one.*part;
    return text;
}

}  // namespace

backend::Support Conditions::refusal() const {
    std::string reason = listed(always, &Missing::what);
    std::string remedy = listed(always, &Missing::remedy);
    if (!nvidia_fs.empty() && !p2pdma.empty()) {
        if (!reason.empty()) reason += "; ";
        reason += fmt::format("{}, and P2PDMA mode is not set up: {}", listed(nvidia_fs, &Missing::what),
                              listed(p2pdma, &Missing::what));
        // Either way will do; the kernel's own needs no further module.
        const std::string either = listed(p2pdma, &Missing::remedy);
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
