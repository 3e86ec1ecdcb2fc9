// What the host does to the DMA of GPUs, how much of their memory it maps, and where this process runs.
#include <fmt/format.h>

#include <algorithm>

#include <sidestep/units.hpp>

#include "diagnose/checks/gpu_pairs.hpp"
#include "diagnose/checks/looks.hpp"
#include "diagnose/checks/process_facts.hpp"
#include "topology/machine_facts_reader.hpp"

namespace sidestep::diagnose {

namespace {

constexpr const char* node_folder = "/sys/devices/system/node";
// What GPUs map without a resizable BAR.
constexpr Bytes small_bar = Bytes{256} << 20;

// Whether a GPU exchanges bytes over PCIe with anything but host memory.
bool has_pcie_peers(const Evidence& evidence) {
    const auto gpus = gpus_of(evidence.topology);
    if (pcie_partners(evidence).size() > gpus.size()) return true;
    for (const DeviceId a : gpus) {
        for (const DeviceId b : gpus) {
            if (a < b && evidence.topology.pair_class(a, b).kind != PathClass::nvlink) return true;
        }
    }
    return false;
}

// Where /sys does not show the groups.
Outcome iommu_by_command_line(const Evidence& evidence, const topology::Fact& mode) {
    Outcome outcome;
    outcome.saw(mode.source, "not shown");
    for (const char* name : {"iommu", "iommu.passthrough", "intel_iommu", "amd_iommu"}) {
        const topology::Fact argument = topology::kernel_argument(evidence.files, name);
        if (argument.known()) outcome.saw(argument.source, std::string(name) + "=" + argument.value);
    }
    const bool through = topology::kernel_argument(evidence.files, "iommu").value == "pt" ||
                         topology::kernel_argument(evidence.files, "iommu.passthrough").value == "1";
    outcome.verdict = through ? Verdict::pass : Verdict::unknown;
    outcome.summary = through ? "the kernel was told to pass DMA through the IOMMU"
                              : "what the IOMMU does is not shown to this process";
    outcome.remedy = "Look on the host, outside of sandboxes.";
    outcome.command = "cat /sys/kernel/iommu_groups/*/type | sort | uniq -c";
    return outcome;
}

enum class Window { whole, part, untold };

// How much of a GPU's memory can be reached over PCIe at once.
Window window_of(const Evidence& evidence, DeviceId gpu, Outcome& outcome) {
    const Device& device = evidence.topology.device(gpu);
    const auto facts = nvml_facts(evidence, gpu);
    Bytes bar = facts ? facts->bar1 : 0;
    std::string source = fmt::format("nvmlDeviceGetBAR1MemoryInfo({})", device.name);
    if (bar == 0 && !device.bus_id.empty()) {
        bar = topology::bar_size(evidence.files, device.bus_id, 1);
        source = fmt::format("/sys/bus/pci/devices/{}/resource", device.bus_id);
    }
    const bool judged = bar > 0 && (device.memory > 0 || bar <= small_bar);
    if (!judged) return Window::untold;
    const bool whole = device.memory > 0 && bar >= device.memory;
    std::string said = fmt::format("{}: BAR1 of {}", device.name, format_bytes(bar));
    if (device.memory > 0) said += fmt::format(", memory of {}", format_bytes(device.memory));
    outcome.saw(source, said);
    if (whole) return Window::whole;
    const Bytes max = device.bus_id.empty() ? 0 : topology::bar_largest(evidence.files, device.bus_id, 1);
    if (max > 0)
        outcome.saw(fmt::format("/sys/bus/pci/devices/{}/resource1_resize", device.bus_id),
                    fmt::format("up to {}", format_bytes(max)));
    return Window::part;
}

// The CPUs of a NUMA node; nothing for a node of memory alone.
Ranges cpus_of_node(const Evidence& evidence, int node) {
    return ranges_of(evidence.files.line(fmt::format("{}/node{}/cpulist", node_folder, node)).value_or(""));
}

int nodes_with_cpus(const Evidence& evidence) {
    int count = 0;
    for (const Device& device : evidence.topology.devices()) {
        if (device.kind == DeviceKind::cpu && !cpus_of_node(evidence, device.index).empty()) ++count;
    }
    return count;
}

// CUDA_VISIBLE_DEVICES leaves these; all of them where CUDA did not start.
std::vector<DeviceId> visible_gpus(const Evidence& evidence) {
    std::vector<DeviceId> gpus = gpus_of(evidence.topology);
    if (evidence.cuda.gpus.empty()) return gpus;
    gpus.erase(std::remove_if(gpus.begin(), gpus.end(),
                              [&](DeviceId id) {
                                  const std::string& bus_id = evidence.topology.device(id).bus_id;
                                  return std::none_of(evidence.cuda.gpus.begin(), evidence.cuda.gpus.end(),
                                                      [&](const auto& gpu) { return gpu.bus_id == bus_id; });
                              }),
               gpus.end());
    return gpus;
}

// What a copy between a GPU and host memory loses when this process runs on other nodes than the GPU's.
double lost_across_nodes(const Evidence& evidence, DeviceId gpu, const Ranges& cpus) {
    const Topology& topology = evidence.topology;
    const auto near = topology.find(DeviceKind::cpu, topology.device(gpu).numa_node);
    if (!near) return 0;
    double far_rate = 0;
    for (DeviceId id = 0; id < topology.devices().size(); ++id) {
        if (topology.device(id).kind != DeviceKind::cpu) continue;
        if (overlap(cpus_of_node(evidence, topology.device(id).index), cpus))
            far_rate = std::max(far_rate, topology.pair(gpu, id).gb_per_s);
    }
    return far_rate > 0 ? topology.pair(gpu, *near).gb_per_s - far_rate : 0;
}

struct Binding {
    std::vector<std::string> far_cpus;
    std::vector<std::string> far_memory;
    std::vector<int> nodes;  // of the GPUs that are far
    int told = 0;
    double lost = 0;
};

Binding binding_of(const Evidence& evidence, const Ranges& cpus, const Ranges& nodes) {
    Binding binding;
    for (const DeviceId gpu : visible_gpus(evidence)) {
        const Device& device = evidence.topology.device(gpu);
        const Ranges near = cpus_of_node(evidence, device.numa_node);
        if (device.numa_node < 0 || near.empty()) continue;
        ++binding.told;
        const bool runs = overlap(near, cpus);
        const bool allocates = nodes.empty() || overlap({{device.numa_node, device.numa_node}}, nodes);
        if (runs && allocates) continue;
        (runs ? binding.far_memory : binding.far_cpus).push_back(device.name);
        if (std::find(binding.nodes.begin(), binding.nodes.end(), device.numa_node) == binding.nodes.end())
            binding.nodes.push_back(device.numa_node);
        binding.lost = std::max(binding.lost, lost_across_nodes(evidence, gpu, cpus));
    }
    return binding;
}

Outcome nodes_not_told(const Evidence& evidence) {
    Outcome outcome = unknown("there are several NUMA nodes, and no GPU tells which one it hangs at");
    for (const DeviceId gpu : gpus_of(evidence.topology)) {
        const std::string& bus_id = evidence.topology.device(gpu).bus_id;
        outcome.saw(fmt::format("/sys/bus/pci/devices/{}/numa_node", bus_id), "-1");
        break;
    }
    outcome.remedy =
        "Measure the host copies from each node: sidestep bench with numactl. A hypervisor has to be told "
        "to place devices at nodes of the guest.";
    outcome.command = "numactl --hardware";
    return outcome;
}

}  // namespace

Outcome look_iommu(const Evidence& evidence) {
    if (gpus_of(evidence.topology).empty()) return does_not_apply("there is no GPU");
    if (!has_pcie_peers(evidence))
        return does_not_apply("no GPU exchanges bytes over PCIe with anything but host memory");
    const topology::Fact mode = topology::iommu_mode(evidence.files);
    if (!mode.known() || evidence.files.names("/sys/bus/pci/devices").empty())
        return iommu_by_command_line(evidence, mode);
    Outcome outcome;
    outcome.saw(mode.source, mode.value);
    if (mode.value == "off" || mode.value == "pass-through") {
        outcome.verdict = Verdict::pass;
        outcome.summary = mode.value == "off" ? "no IOMMU works on the DMA of this machine's devices"
                                              : "the IOMMU passes the DMA of devices through";
        if (mode.value == "off" && is_guest(evidence)) outcome.summary += "; the host's is not shown here";
        return outcome;
    }
    std::vector<std::string> translated;
    int told = 0;
    for (const DeviceId id : pcie_partners(evidence)) {
        const Device& device = evidence.topology.device(id);
        const topology::Fact type = topology::iommu_group_type(evidence.files, device.bus_id);
        if (!type.known()) continue;
        ++told;
        if (!type.value.starts_with("DMA")) continue;
        translated.push_back(device.name);
        outcome.saw(type.source, fmt::format("{} ({})", type.value, device.name));
    }
    if (translated.empty() && told > 0) {
        outcome.verdict = Verdict::pass;
        outcome.summary = "the IOMMU passes the DMA of the GPUs and their partners through";
    } else if (translated.empty()) {
        return iommu_by_command_line(evidence, mode);
    } else {
        outcome.verdict = Verdict::warn;
        outcome.summary = "the IOMMU translates the DMA of " + listed(translated);
    }
    return outcome;
}

Outcome look_bar1(const Evidence& evidence) {
    const auto gpus = gpus_of(evidence.topology);
    if (gpus.empty()) return does_not_apply("there is no GPU");
    Outcome outcome;
    std::vector<std::string> small;
    std::vector<std::string> untold;
    for (const DeviceId gpu : gpus) {
        const Window window = window_of(evidence, gpu, outcome);
        if (window == Window::part) small.push_back(evidence.topology.device(gpu).name);
        if (window == Window::untold) untold.push_back(evidence.topology.device(gpu).name);
    }
    if (!small.empty()) {
        outcome.verdict = Verdict::warn;
        outcome.summary = "only a part of the memory can be reached over PCIe: " + listed(small);
    } else if (!untold.empty()) {
        outcome.verdict = Verdict::unknown;
        outcome.summary = "the size of BAR1 is not shown: " + listed(untold);
        outcome.remedy = "See what `nvidia-smi -q -d MEMORY` says of BAR1.";
        outcome.command = "nvidia-smi -q -d MEMORY";
        outcome.saw("NVML", evidence.nvml ? "does not tell" : evidence.no_nvml);
    } else {
        outcome.verdict = Verdict::pass;
        outcome.summary = "BAR1 covers the whole memory of every GPU";
    }
    return outcome;
}

Outcome look_numa(const Evidence& evidence) {
    if (gpus_of(evidence.topology).empty()) return does_not_apply("there is no GPU");
    if (nodes_with_cpus(evidence) <= 1) return does_not_apply("this machine has one NUMA node");
    const auto cpus = process_status(evidence.files, "Cpus_allowed_list");
    if (!cpus) {
        Outcome outcome = unknown("on which CPUs this process may run is not shown");
        outcome.saw("/proc/self/status", "no Cpus_allowed_list");
        outcome.remedy = "See what `taskset -pc $$` says.";
        outcome.command = "taskset -pc $$";
        return outcome;
    }
    const std::string nodes = process_status(evidence.files, "Mems_allowed_list").value_or("");
    const Binding binding = binding_of(evidence, ranges_of(*cpus), ranges_of(nodes));
    if (binding.told == 0) return nodes_not_told(evidence);
    Outcome outcome = pass("this process may run and allocate near every GPU it sees");
    outcome.saw("/proc/self/status: Cpus_allowed_list", *cpus);
    if (!nodes.empty()) outcome.saw("/proc/self/status: Mems_allowed_list", nodes);
    if (binding.nodes.empty()) return outcome;

    outcome.verdict = Verdict::warn;
    outcome.summary.clear();
    if (!binding.far_cpus.empty())
        outcome.summary = "this process is bound to CPUs far from " + listed(binding.far_cpus);
    if (!binding.far_memory.empty())
        outcome.summary +=
            fmt::format("{}may not allocate memory near {}",
                        outcome.summary.empty() ? "this process " : ", and ", listed(binding.far_memory));
    for (const int node : binding.nodes) {
        const std::string path = fmt::format("{}/node{}/cpulist", node_folder, node);
        outcome.saw(path, evidence.files.line(path).value_or(""));
    }
    if (binding.lost > 1) outcome.cost_gb_per_s = binding.lost;
    const int node = binding.nodes.front();
    outcome.command = fmt::format("numactl --cpunodebind={} --membind={} PROGRAM", node, node);
    return outcome;
}

}  // namespace sidestep::diagnose
