// GPUs that the driver has lost, and what it logged of failing ones (Xid).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <set>
#include <string_view>

#include "diagnose/checks/gpu_direct.hpp"
#include "diagnose/checks/gpu_pairs.hpp"
#include "diagnose/checks/looks.hpp"

namespace sidestep::diagnose {

namespace {

constexpr const char* pci_folder = "/sys/bus/pci/devices/";

// The NVIDIA GPUs of the PCI tree that are bound to the NVIDIA driver: others are given to a guest, or are
// unbound.
std::vector<std::string> driven_gpus(const driver::MachineFiles& files) {
    std::vector<std::string> found;
    for (const std::string& bus_id : files.names(pci_folder)) {
        const std::string folder = pci_folder + bus_id;
        const long kind = files.number(folder + "/class").value_or(0) >> 8;
        const bool gpu = (kind == 0x0300 || kind == 0x0302) && files.number(folder + "/vendor") == 0x10de;
        if (gpu && files.real_path(folder + "/driver").ends_with("/nvidia")) found.push_back(bus_id);
    }
    return found;
}

// What NVML says of each GPU it counts: the bus id, or why it does not open it.
struct Listed {
    std::set<std::string> bus_ids;
    std::vector<Seen> refused;
    int count = 0;
};
Listed listed_gpus(const driver::Nvml& nvml) {
    Listed listed;
    listed.count = nvml.gpu_count().ok() ? *nvml.gpu_count() : 0;
    for (int index = 0; index < listed.count; ++index) {
        const auto gpu = nvml.gpu(index);
        if (gpu.ok()) {
            listed.bus_ids.insert(gpu->bus_id);
        } else {
            listed.refused.push_back(
                {fmt::format("nvmlDeviceGetHandleByIndex({})", index), gpu.error().message});
        }
    }
    return listed;
}

// A scheduler gives a job some of the GPUs by a control group of devices, without a container: the files of the others may
// not be opened.
bool is_withheld(const driver::MachineFiles& files, const std::string& bus_id) {
    constexpr std::string_view key = "Device Minor:";
    const std::string told =
        files.text(fmt::format("/proc/driver/nvidia/gpus/{}/information", bus_id)).value_or("");
    const auto at = told.find(key);
    if (at == std::string::npos) return false;
    const long minor = std::strtol(told.c_str() + at + key.size(), nullptr, 10);
    return files.state(fmt::format("/dev/nvidia{}", minor)) == driver::FileState::denied;
}

Outcome lost(const std::vector<std::string>& names) {
    return fail(fmt::format("{} in the PCI tree, and the driver has lost {}: {}",
                            names.size() == 1 ? "a GPU is" : "GPUs are", names.size() == 1 ? "it" : "them",
                            listed(names)));
}

Outcome lost_of_topology(const Evidence& evidence) {
    const auto& properties = evidence.topology.parts().properties;
    const auto found = properties.find("lost_gpus");
    if (found == properties.end()) return unknown("a topology lists the GPUs that work");
    Outcome outcome = lost({found->second});
    return outcome.saw("topology", "lost_gpus: " + found->second);
}

// One Xid: "NVRM: Xid (PCI:0000:61:00): 79, pid=1234, GPU has fallen off the bus."
struct Xid {
    std::string bus_id;
    int number = 0;
};
std::optional<Xid> xid_of(const std::string& line) {
    constexpr std::string_view mark = "Xid (PCI:";
    const auto at = line.find(mark);
    const auto end = at == std::string::npos ? at : line.find("): ", at);
    if (end == std::string::npos) return std::nullopt;
    return Xid{line.substr(at + mark.size(), end - at - mark.size()), std::atoi(line.c_str() + end + 3)};
}

// What NVIDIA's table of Xid errors lays to the hardware, to the link or to the driver. All others come from
// programs as well: 13, 31, 43, 45 are what a wrong kernel of anybody leaves.
struct XidMeaning {
    int number;
    const char* words;
};
constexpr std::array grave = {
    XidMeaning{48, "two bits of memory are wrong (ECC)"},
    XidMeaning{62, "the power management stopped"},
    XidMeaning{63, "a row of memory was replaced"},
    XidMeaning{64, "a row of memory could not be replaced"},
    XidMeaning{74, "NVLink error"},
    XidMeaning{79, "the GPU has fallen off the bus"},
    XidMeaning{92, "many corrected memory errors"},
    XidMeaning{94, "a memory error hit one program"},
    XidMeaning{95, "a memory error hit all programs"},
    XidMeaning{110, "security fault"},
    XidMeaning{119, "the GPU's system processor (GSP) does not answer"},
    XidMeaning{120, "the GPU's system processor (GSP) failed"},
    XidMeaning{140, "memory errors that were not corrected"},
    XidMeaning{149, "NVLink error"},
};

const char* meaning_of(int number) {
    for (const XidMeaning& known : grave)
        if (known.number == number) return known.words;
    return nullptr;
}

}  // namespace

Outcome look_lost_gpus(const Evidence& evidence) {
    if (evidence.from_topology) return lost_of_topology(evidence);
    if (!evidence.nvml) return does_not_apply("without a driver no GPU can be lost: see driver-mismatch");
    const Listed told = listed_gpus(*evidence.nvml);
    std::vector<std::string> missing;
    for (const std::string& bus_id : driven_gpus(evidence.files))
        if (told.bus_ids.count(bus_id) == 0) missing.push_back(bus_id);
    std::string inside = container_words(evidence);
    const std::size_t driven = told.bus_ids.size() + missing.size();
    const bool withheld = std::erase_if(missing, [&](const std::string& bus_id) {
                              return is_withheld(evidence.files, bus_id);
                          }) > 0;
    if (missing.empty() && !withheld && told.refused.empty()) {
        if (told.count == 0) return does_not_apply("there is no NVIDIA GPU");
        Outcome outcome = pass("NVML opens every GPU that the driver has taken");
        return outcome.saw("nvmlDeviceGetCount", std::to_string(told.count));
    }
    // A container is shown the whole PCI tree, and given some of its GPUs. NVML may count those that are withheld.
    if (withheld ? missing.empty() : told.refused.empty() && !inside.empty()) {
        if (inside.empty()) inside = "process";
        Outcome outcome =
            pass(fmt::format("this {} is given {} of {} GPUs", inside, told.bus_ids.size(), driven));
        return outcome.saw("nvmlDeviceGetCount", std::to_string(told.count));
    }
    std::vector<std::string> names = missing;
    if (names.empty())
        for (const Seen& refused : told.refused) names.push_back(refused.source);
    Outcome outcome = lost(names);
    outcome.seen = told.refused;
    for (const std::string& bus_id : missing)
        outcome.saw(pci_folder + bus_id, "is there; NVML does not list it");
    return outcome;
}

Outcome look_xid(const Evidence& evidence) {
    if (evidence.topology.gpu_count() == 0) return does_not_apply("there is no NVIDIA GPU");
    if (!evidence.kernel_log.told) {
        Outcome outcome = unknown("what the driver logged is not shown to this process");
        outcome.saw("kernel log", evidence.kernel_log.reason);
        outcome.remedy = "Look into the log as root, on the host of a container.";
        outcome.command = "dmesg | grep 'NVRM: Xid'";
        return outcome;
    }
    std::map<std::pair<int, std::string>, int> counted;
    int others = 0;
    for (const std::string& line : evidence.kernel_log.lines) {
        const auto xid = xid_of(line);
        if (!xid) continue;
        if (meaning_of(xid->number) == nullptr) {
            ++others;
        } else {
            ++counted[{xid->number, xid->bus_id}];
        }
    }
    if (counted.empty()) {
        Outcome outcome = pass(others == 0 ? "the driver logged no error of a GPU"
                                           : "the driver logged errors that programs cause");
        return outcome.saw("kernel log", fmt::format("{} Xid", others));
    }
    Outcome outcome = fail("");
    std::vector<std::string> words;
    for (const auto& [xid, count] : counted) {
        words.push_back(fmt::format("Xid {} at {}", xid.first, xid.second));
        outcome.saw("kernel log", fmt::format("Xid {} at {}, {} times: {}", xid.first, xid.second, count,
                                              meaning_of(xid.first)));
    }
    outcome.summary = "the driver logged errors of the hardware: " + listed(words);
    return outcome;
}

}  // namespace sidestep::diagnose
