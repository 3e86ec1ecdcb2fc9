// Whether NVMe drives can exchange bytes with GPU memory without a stop in host memory.
#include <fmt/format.h>

#include <cstdlib>
#include <sstream>

#include "diagnose/checks/gpu_direct.hpp"
#include "diagnose/checks/gpu_pairs.hpp"
#include "diagnose/checks/looks.hpp"
#include "diagnose/checks/nvme_drives.hpp"
#include "diagnose/checks/p2pdma_mode.hpp"
#include "diagnose/checks/pci_distance.hpp"

namespace sidestep::diagnose {

namespace {

void see(const P2pdmaMode& mode, Outcome& outcome) {
    for (const Condition& condition : mode.all()) outcome.seen.push_back(condition.seen);
}

void see_block_devices(const Evidence& evidence, Outcome& outcome) {
    for (const std::string& name : evidence.files.names("/sys/block")) {
        const std::string place = evidence.files.real_path("/sys/block/" + name);
        if (place.empty() || place.starts_with("/sys/devices/virtual/")) continue;
        outcome.saw("/sys/block/" + name, place.find("/virtio") != std::string::npos
                                              ? "virtio, made up by a hypervisor"
                                              : "no NVMe drive");
    }
}

// The counter of a line such as "Bar1-map : n=12 ok=12 err=0 free=3" (nvfs-stat.c of
// github.com/NVIDIA/gds-nvidia-fs).
std::optional<long> counter(const std::string& line, const std::string& name) {
    const auto at = line.find(" " + name + "=");
    if (at == std::string::npos) return std::nullopt;
    return std::strtol(line.c_str() + at + name.size() + 2, nullptr, 10);
}

std::string stats_line(const Evidence& evidence, const std::string& start) {
    std::istringstream lines(evidence.files.text("/proc/driver/nvidia-fs/stats").value_or(""));
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with(start)) return line;
    }
    return {};
}

// The module is loaded: does it get anywhere?
Outcome look_loaded(const Evidence& evidence, const NvidiaFs& fs, bool has_drives, const P2pdmaMode& mode) {
    const std::string maps = stats_line(evidence, "Bar1-map");
    const bool no_map_worked = counter(maps, "ok").value_or(1) == 0 && counter(maps, "err").value_or(0) > 0;
    Outcome outcome;
    if (!container_words(evidence).empty() && !evidence.files.exists("/dev/nvidia-fs0")) {
        outcome = warn("nvidia-fs is loaded, and this container was not given its devices");
        outcome.saw("/dev/nvidia-fs0", "does not exist");
        outcome.remedy =
            "Start the container with NVIDIA_GDS=enabled, which has NVIDIA's container toolkit put the "
            "devices "
            "in.";
        outcome.command = "docker run --gpus all -e NVIDIA_GDS=enabled -v /run/udev:/run/udev:ro IMAGE";
    } else if (no_map_worked) {
        outcome = fail("nvidia-fs is loaded, and could map no GPU memory so far");
        outcome.saw("/proc/driver/nvidia-fs/stats", maps);
        outcome.remedy =
            "The module does not fit the kernel or the NVIDIA driver: install the newest nvidia-fs (2.26.6 "
            "or "
            "newer for recent kernels), built after the driver, and load it again.";
        outcome.command = "modprobe -r nvidia-fs && modprobe nvidia-fs";
    } else if (!has_drives) {
        outcome = pass("nvidia-fs is loaded");
    } else if (!fs.has_nvme) {
        outcome = unknown("nvidia-fs is loaded; whether it serves the NVMe driver is not shown");
        outcome.saw("/proc/driver/nvidia-fs/modules", "cannot be read");
        outcome.remedy = "Look on the host: a line `nvme` has to be there.";
        outcome.command = "cat /proc/driver/nvidia-fs/modules";
    } else if (*fs.has_nvme) {
        outcome = pass("nvidia-fs is loaded and serves the NVMe driver");
    } else if (mode.complete()) {
        outcome = pass("nvidia-fs does not serve the NVMe driver; P2PDMA mode is set up instead");
    } else {
        outcome = warn("nvidia-fs is loaded, and the NVMe driver is not the one that works with it");
        outcome.remedy =
            "The NVMe driver of the kernel knows nothing of nvidia-fs: install that of MLNX_OFED or DOCA, "
            "or use P2PDMA mode (see p2pdma-mode).";
        outcome.command = "apt-get install mlnx-nvme-dkms";
    }
    outcome.seen.push_back(fs.seen);
    if (fs.has_nvme) outcome.saw("/proc/driver/nvidia-fs/modules", fs.modules);
    return outcome;
}

// The conditions of P2PDMA mode that are not met, as one list of things to do.
void put_remedies(const P2pdmaMode& mode, Outcome& outcome) {
    for (const Condition& condition : mode.all()) {
        if (condition.met.value_or(false)) continue;
        outcome.remedy += (outcome.remedy.empty() ? "" : " ") + condition.remedy;
        if (outcome.command.empty()) outcome.command = condition.command;
    }
}

std::vector<std::string> unmet(const P2pdmaMode& mode) {
    std::vector<std::string> names;
    for (const Condition& condition : mode.all()) {
        if (!condition.met.value_or(false)) names.push_back(condition.name);
    }
    return names;
}

}  // namespace

Outcome look_nvme(const Evidence& evidence) {
    if (const auto reason = no_gpu_direct(evidence)) return does_not_apply(*reason);
    const auto drives = nvme_drives(evidence.files);
    if (!drives.empty()) {
        Outcome outcome = pass(fmt::format("{} NVMe drive{}", drives.size(), drives.size() == 1 ? "" : "s"));
        for (const NvmeDrive& drive : drives)
            outcome.saw(fmt::format("{}/{}", nvme_folder, drive.name),
                        drive.bus_id.empty() ? "over " + drive.transport : drive.bus_id);
        return outcome;
    }
    if (!evidence.files.exists("/sys/class")) {
        Outcome outcome =
            unknown("whether there is an NVMe drive cannot be seen: this sandbox hides /sys/class");
        outcome.saw("/sys/class", "does not exist");
        outcome.remedy = "Look outside the sandbox.";
        return outcome;
    }
    // A machine is as it was bought: no fault, and nothing to repair.
    Outcome outcome =
        does_not_apply("there is no NVMe drive: every byte from and to files stops in host memory");
    outcome.saw(nvme_folder, evidence.files.exists(nvme_folder) ? "is empty" : "does not exist");
    see_block_devices(evidence, outcome);
    return outcome;
}

Outcome look_nvidia_fs(const Evidence& evidence) {
    if (const auto reason = no_gpu_direct(evidence)) return does_not_apply(*reason);
    const NvidiaFs fs = read_nvidia_fs(evidence);
    const bool has_drives = !nvme_drives(evidence.files).empty();
    const P2pdmaMode mode = read_p2pdma_mode(evidence);
    if (fs.loaded) return look_loaded(evidence, fs, has_drives, mode);
    if (!has_drives) return does_not_apply("there is no NVMe drive that nvidia-fs could serve");
    if (all_c2c(evidence.topology))
        return does_not_apply("NVLink-C2C joins the GPUs to the memory that drives reach");
    Outcome outcome;
    if (mode.complete()) {
        outcome = pass("nvidia-fs is not loaded; P2PDMA mode is set up instead");
        see(mode, outcome);
    } else {
        outcome = warn("nvidia-fs is not loaded: cuFile reads and writes through host memory");
    }
    outcome.seen.insert(outcome.seen.begin(), fs.seen);
    return outcome;
}

Outcome look_p2pdma_mode(const Evidence& evidence) {
    if (const auto reason = no_gpu_direct(evidence)) return does_not_apply(*reason);
    const P2pdmaMode mode = read_p2pdma_mode(evidence);
    if (!mode.other_gpus.empty())
        return does_not_apply(fmt::format("cuFile has no P2PDMA mode for {}", listed(mode.other_gpus)));
    const NvidiaFs fs = read_nvidia_fs(evidence);
    const bool served = fs.loaded && fs.has_nvme.value_or(false);
    const bool has_drives = !nvme_drives(evidence.files).empty();
    Outcome outcome;
    if (mode.complete()) {
        outcome = pass("P2PDMA mode is set up");
    } else if (served && !mode.begun()) {
        outcome = pass("P2PDMA mode is not set up; nvidia-fs serves the NVMe driver");
    } else if (!has_drives) {
        return does_not_apply("there is no NVMe drive");
    } else if (!mode.kernel.met.value_or(true)) {
        outcome = warn(
            "the kernel cannot let drives reach GPU memory: it has no PCI peer-to-peer DMA for programs");
        outcome.remedy = mode.kernel.remedy;
        outcome.command = mode.kernel.command;
    } else if (!mode.kernel.met) {
        outcome = unknown("whether the kernel has PCI peer-to-peer DMA is not shown");
        outcome.remedy =
            "Look into the kernel's list of symbols or its configuration, on the host of a container.";
        outcome.command = "grep p2pdma_pgmap_ops /proc/kallsyms";
    } else {
        outcome = warn(fmt::format("P2PDMA mode is {}: missing {}",
                                   mode.begun() ? "half set up" : "not set up", listed(unmet(mode))));
        put_remedies(mode, outcome);
    }
    see(mode, outcome);
    return outcome;
}

Outcome look_nvme_far(const Evidence& evidence) {
    if (const auto reason = no_gpu_direct(evidence)) return does_not_apply(*reason);
    std::vector<DeviceId> drives;
    for (const NvmeDrive& drive : nvme_drives(evidence.files)) {
        for (DeviceId id = 0; id < evidence.topology.devices().size(); ++id) {
            if (!drive.bus_id.empty() && evidence.topology.device(id).bus_id == drive.bus_id)
                drives.push_back(id);
        }
    }
    if (drives.empty()) return does_not_apply("there is no NVMe drive in the PCI tree");
    if (hides_tree(evidence)) return behind_hypervisor("NVMe drive");
    return judge_distances(evidence, drives, {"NVMe drive", PathClass::node});
}

}  // namespace sidestep::diagnose
