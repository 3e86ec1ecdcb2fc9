// What a virtual machine does not show of its PCI tree, and the file that tells NCCL about it.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include <sidestep/nccl_xml.hpp>

#include "diagnose/checks/gpu_direct.hpp"
#include "diagnose/checks/gpu_pairs.hpp"
#include "diagnose/checks/looks.hpp"
#include "topology/machine_facts_reader.hpp"

namespace sidestep::diagnose {

namespace {

constexpr std::size_t longest_file = std::size_t{16} << 20;
// NCCL_TOPO_XML_MAX_NODES of NCCL's src/graph/topo.h, to version 2.30 (github.com/NVIDIA/nccl).
constexpr std::size_t max_elements = 256;
// Read by NCCL where no variable names another (NCCL user guide, NCCL_TOPO_FILE).
constexpr const char* usual_file = "/var/run/nvidia-topologyd/virtualTopology.xml";

// The file that NCCL would read, and who names it; nullopt: none.
struct TopologyFile {
    std::string path;
    Seen seen;
};
std::optional<TopologyFile> topology_file(const Evidence& evidence) {
    if (const auto setting = nccl_setting(evidence.files, "NCCL_TOPO_FILE");
        setting && !setting->value.empty()) {
        return TopologyFile{path_of_variable(setting->value),
                            {setting->source, "NCCL_TOPO_FILE=" + setting->value}};
    }
    if (evidence.files.exists(usual_file)) return TopologyFile{usual_file, {usual_file, "exists"}};
    return std::nullopt;
}

// Elements that NCCL keeps a node for: every tag that opens.
std::size_t count_elements(const std::string& xml) {
    std::size_t count = 0;
    for (std::size_t at = xml.find('<'); at != std::string::npos && at + 1 < xml.size();
         at = xml.find('<', at + 1)) {
        if (xml.compare(at, 4, "<!--") == 0) {
            at = xml.find("-->", at);
            if (at == std::string::npos) break;
            continue;
        }
        const char next = xml[at + 1];
        if ((next >= 'a' && next <= 'z') || (next >= 'A' && next <= 'Z')) ++count;
    }
    return count;
}

// Bus ids of GPUs that are in one of two machines and not in the other.
struct Differences {
    std::vector<std::string> not_here;
    std::vector<std::string> not_in_file;
};
Differences compare(const Topology& file, const Topology& machine) {
    const auto ids_of = [](const Topology& topology) {
        std::set<std::string> ids;
        for (const Device& device : topology.devices()) {
            if (device.kind == DeviceKind::gpu && !device.bus_id.empty()) ids.insert(device.bus_id);
        }
        return ids;
    };
    const auto theirs = ids_of(file);
    const auto ours = ids_of(machine);
    Differences found;
    std::set_difference(theirs.begin(), theirs.end(), ours.begin(), ours.end(),
                        std::back_inserter(found.not_here));
    std::set_difference(ours.begin(), ours.end(), theirs.begin(), theirs.end(),
                        std::back_inserter(found.not_in_file));
    return found;
}

// A file that could be read: does it tell the truth about this machine?
Outcome judge_file(const Evidence& evidence, const TopologyFile& file, const std::string& text) {
    const auto parsed = read_nccl_xml(text, file.path);
    if (!parsed.ok()) {
        Outcome outcome = fail("NCCL's topology file cannot be understood");
        outcome.saw(parsed.error().where.empty() ? file.path : parsed.error().where, parsed.error().message);
        return outcome;
    }
    const std::size_t elements = count_elements(text);
    const Differences differences = compare(*parsed, evidence.topology);
    Outcome outcome;
    if (elements > max_elements) {
        outcome = fail(
            fmt::format("NCCL's topology file has {} elements, and NCCL takes {}", elements, max_elements));
        outcome.remedy =
            "Write a file without the devices that NCCL does not need (bridges with nothing below, drives), "
            "or build "
            "NCCL with a larger NCCL_TOPO_XML_MAX_NODES.";
    } else if (!differences.not_here.empty()) {
        outcome = warn(fmt::format("NCCL's topology file speaks of GPUs that are not here: {}",
                                   listed(differences.not_here)));
    } else if (!differences.not_in_file.empty()) {
        outcome =
            warn(fmt::format("NCCL's topology file lacks the GPUs {}", listed(differences.not_in_file)));
    } else {
        outcome = pass(fmt::format("NCCL's topology file fits this machine ({} elements)", elements));
    }
    outcome.saw(file.path, fmt::format("{} elements, {} GPUs", elements, parsed->gpu_count()));
    return outcome;
}

bool has_switches(const Topology& topology) {
    return std::any_of(topology.devices().begin(), topology.devices().end(),
                       [](const Device& device) { return device.kind == DeviceKind::pcie_switch; });
}

// Whether some pair of devices may be near or far: one that NVLink joins is neither.
bool has_distances(const Evidence& evidence) {
    const auto partners = pcie_partners(evidence);
    for (std::size_t a = 0; a < partners.size(); ++a) {
        for (std::size_t b = a + 1; b < partners.size(); ++b) {
            if (evidence.topology.pair_class(partners[a], partners[b]).kind != PathClass::nvlink) return true;
        }
    }
    return false;
}

void see_places(const Evidence& evidence, Outcome& outcome) {
    for (const DeviceId gpu : gpus_of(evidence.topology)) {
        const Device& device = evidence.topology.device(gpu);
        const std::string place = evidence.files.real_path("/sys/bus/pci/devices/" + device.bus_id);
        outcome.saw(
            fmt::format("/sys/bus/pci/devices/{}", device.bus_id),
            place.empty() ? "does not exist" : fmt::format("{}, numa_node {}", place, device.numa_node));
    }
}

// NCCL believes such a link, and sends what it can around it.
void see_made_up_links(const Topology& topology, Outcome& outcome) {
    for (const Device& device : topology.devices()) {
        const auto told = device.properties.find("link_made_up");
        if (told == device.properties.end()) continue;
        if (outcome.verdict == Verdict::pass)
            outcome = warn("this virtual machine makes up PCIe links that are slower than all below them");
        outcome.saw(fmt::format("/sys/bus/pci/devices/{}/max_link_*", device.bus_id),
                    fmt::format("{} at {}, above quicker links", told->second, device.name));
    }
}

}  // namespace

Outcome look_hidden_switches(const Evidence& evidence) {
    if (evidence.topology.gpu_count() == 0) return does_not_apply("there is no NVIDIA GPU");
    if (!has_distances(evidence))
        return does_not_apply("no two devices exchange bytes over PCIe, so none is near or far");
    const bool tree = evidence.files.exists("/sys/bus/pci/devices");
    const topology::Fact hypervisor = topology::hypervisor(evidence.files);
    if (tree && hypervisor.value == "none") return does_not_apply("this is not a virtual machine");
    const auto file = topology_file(evidence);
    if (has_switches(evidence.topology)) {
        Outcome outcome = pass("the virtual machine shows PCIe switches");
        if (!file) see_made_up_links(evidence.topology, outcome);
        return outcome;
    }
    if (file) {
        Outcome outcome = pass("the PCI tree shows no switches; a topology file tells NCCL of them");
        outcome.seen.push_back(file->seen);
        return outcome;
    }
    Outcome outcome;
    if (tree && !hypervisor.known()) {
        outcome =
            unknown("no GPU is below a PCIe switch, and whether this is a virtual machine cannot be told");
        outcome.remedy = "On bare metal nothing is wrong. In a virtual machine, give NCCL a topology file.";
    } else if (tree) {
        const bool named = hypervisor.value != "virtual machine";
        outcome = warn(
            fmt::format("this virtual machine{} shows a PCI tree without switches: near and far look alike",
                        named ? " (" + hypervisor.value + ")" : ""));
    } else {
        outcome = warn("this sandbox shows no PCI tree: near and far look alike");
    }
    outcome.saw(hypervisor.source, hypervisor.known() ? hypervisor.value : "not told");
    see_places(evidence, outcome);
    return outcome;
}

Outcome look_topology_file(const Evidence& evidence) {
    if (evidence.topology.gpu_count() == 0) return does_not_apply("there is no NVIDIA GPU");
    const auto file = topology_file(evidence);
    if (!file) return does_not_apply("no topology file is given to NCCL");
    const auto text = evidence.files.text(file->path, longest_file);
    Outcome outcome;
    if (!text) {
        const bool denied = evidence.files.state(file->path) == driver::FileState::denied;
        outcome = fail(fmt::format("NCCL's topology file {}",
                                   denied ? "may not be read by this user" : "does not exist"));
        outcome.saw(file->path, denied ? "permission denied" : "does not exist");
        outcome.remedy = "Write the file anew, or take the variable away.";
        outcome.command = denied ? "chmod a+r " + file->path : "";
    } else if (text->size() >= longest_file) {
        outcome = fail("NCCL's topology file is longer than any machine needs");
        outcome.saw(file->path, "16 MiB or more");
    } else {
        outcome = judge_file(evidence, *file, *text);
    }
    outcome.seen.insert(outcome.seen.begin(), file->seen);
    return outcome;
}

}  // namespace sidestep::diagnose
