// PCI access control that sends traffic between two devices below one switch up to the host bridge.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "diagnose/checks/gpu_pairs.hpp"
#include "diagnose/checks/looks.hpp"
#include "topology/machine_facts_reader.hpp"

namespace sidestep::diagnose {

namespace {

struct Found {
    int over_pcie = 0;     // pairs that are joined by PCIe alone
    int below_switch = 0;  // of these: below one switch
    std::vector<std::string> redirected;
    std::vector<std::string> unseen;
    std::set<std::string> ports;
    bool read = false;  // from the ports, not inferred
    double rate = 0;
};

// Of a topology alone: what the switch says of itself.
void look_at_switch(const Topology& topology, DeviceId a, DeviceId b, Found& found, Outcome& outcome) {
    const Pair pair = topology.pair(a, b);
    if (pair.pair.kind > PathClass::pxb) return;
    ++found.below_switch;
    if (!pair.redirected) return;
    found.redirected.push_back(pair_name(topology, a, b));
    found.read = true;
    found.rate = std::max(found.rate, pair.gb_per_s);
    if (outcome.seen.size() < max_seen)
        outcome.saw("topology", pair_name(topology, a, b) + ": the way turns at the host bridge");
}

// The ports of the switch at which the walks to two devices part.
std::vector<std::string> parting_ports(const driver::MachineFiles& files, const std::string& a,
                                       const std::string& b) {
    const auto walk_a = topology::pci_walk(files, a);
    const auto walk_b = topology::pci_walk(files, b);
    std::size_t common = 0;
    while (common < walk_a.size() && common < walk_b.size() && walk_a[common] == walk_b[common]) ++common;
    if (common == 0 || common + 1 >= walk_a.size() || common + 1 >= walk_b.size()) return {};
    return {walk_a[common], walk_b[common]};
}

void look_at_pair(const Evidence& evidence, DeviceId a, DeviceId b, Found& found, Outcome& outcome) {
    const Topology& topology = evidence.topology;
    if (topology.pair_class(a, b).kind == PathClass::nvlink) return;
    ++found.over_pcie;
    if (evidence.from_topology) return look_at_switch(topology, a, b, found, outcome);
    const std::string& id_a = topology.device(a).bus_id;
    const std::string& id_b = topology.device(b).bus_id;
    const auto ports = parting_ports(evidence.files, id_a, id_b);
    if (ports.empty()) return;
    ++found.below_switch;
    const topology::AcsBetween acs = topology::acs_between(evidence.files, id_a, id_b);
    if (acs.state == "off") return;
    (acs.state == "on" ? found.redirected : found.unseen).push_back(pair_name(topology, a, b));
    for (const topology::Fact& fact : acs.seen) {
        const Seen seen{fact.source, fact.value};
        const bool again = std::find(outcome.seen.begin(), outcome.seen.end(), seen) != outcome.seen.end();
        if (!again && outcome.seen.size() < max_seen) outcome.seen.push_back(seen);
    }
    if (acs.state != "on") return;
    found.read = found.read || acs.how == "read";
    const auto& redirecting = acs.ports.empty() ? ports : acs.ports;
    found.ports.insert(redirecting.begin(), redirecting.end());
    found.rate = std::max(found.rate, topology.pair(a, b).gb_per_s);
}

Outcome redirected(const Evidence& evidence, const Found& found, Outcome outcome) {
    outcome.verdict = Verdict::warn;
    outcome.summary =
        fmt::format("a PCIe switch sends what {} exchange up to the host bridge{}", listed(found.redirected),
                    found.read ? "" : " (inferred from the IOMMU groups)");
    // Both directions share the link to the host, which each has to itself where the switch turns them
    // around.
    if (found.rate > 0) outcome.cost_gb_per_s = found.rate / 2;
    if (is_guest(evidence)) {
        outcome.remedy =
            "This is a virtual machine: leave access control on, the host isolates its guests by it. What "
            "helps is address translation in the devices (ATS), which the host has to switch on at the "
            "network card.";
        outcome.command = "lspci -vv | grep -E '^[0-9a-f]|Address Translation|ATSCtl'";
        return outcome;
    }
    if (found.ports.empty()) return outcome;
    std::string ports;
    for (const std::string& port : found.ports) ports += " " + port;
    outcome.command = fmt::format("for port in{}; do setpci -s $port ECAP_ACS+0x6.w=0000; done", ports);
    return outcome;
}

}  // namespace

Outcome look_acs_redirect(const Evidence& evidence) {
    const std::size_t gpus = gpus_of(evidence.topology).size();
    if (gpus == 0) return does_not_apply("there is no GPU");
    const auto devices = pcie_partners(evidence);
    Outcome outcome;
    Found found;
    for (std::size_t a = 0; a < gpus; ++a) {
        for (std::size_t b = a + 1; b < devices.size(); ++b)
            look_at_pair(evidence, devices[a], devices[b], found, outcome);
    }
    const std::string pci = "/sys/bus/pci/devices";
    if (found.over_pcie == 0)
        return does_not_apply("no GPU exchanges bytes with another device over PCIe alone");
    if (!found.redirected.empty()) return redirected(evidence, found, outcome);
    if (!found.unseen.empty()) {
        outcome.verdict = Verdict::unknown;
        outcome.summary =
            "whether access control redirects is not shown to this process for " + listed(found.unseen);
        outcome.remedy =
            "Run the doctor as root, outside of containers: the control registers of PCIe ports are shown "
            "to root alone, and without IOMMU groups nothing can be inferred from.";
        outcome.command = "sudo sidestep doctor";
        return outcome;
    }
    if (found.below_switch > 0) {
        outcome.verdict = Verdict::pass;
        outcome.summary = "no switch between a GPU and its partners redirects";
        return outcome.saw("pairs below one switch", std::to_string(found.below_switch));
    }
    if (evidence.files.names(pci).empty() || is_guest(evidence)) {
        outcome.verdict = Verdict::unknown;
        outcome.summary = "the PCIe switches of this machine are hidden";
        outcome.remedy = "Look on the host of this virtual machine or sandbox.";
        outcome.command = "sudo sidestep doctor";
        return outcome.saw(pci, is_guest(evidence) ? "made up by a hypervisor" : "is empty");
    }
    return does_not_apply("no GPU shares a PCIe switch with another device it exchanges bytes with");
}

}  // namespace sidestep::diagnose
