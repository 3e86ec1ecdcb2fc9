#include "diagnose/topology_evidence.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <tuple>
#include <utility>

#include "topology/faults.hpp"
#include "topology/link_rates.hpp"
#include "topology/numbers.hpp"
#include "topology/peer_reasons.hpp"

namespace sidestep::diagnose {

namespace {

using driver::NvmlFabric;
using driver::NvmlGpu;
using driver::NvmlLink;
using driver::P2pCapability;
using driver::P2pStatus;

// Below a file that is no folder there is nothing.
constexpr const char* no_files = "/dev/null";

Error not_told() {
    return Error{ErrorCode::not_found, "the topology does not tell", "topology", ""};
}

std::string property(const Properties& properties, std::string_view name) {
    const auto found = properties.find(name);
    return found == properties.end() ? "" : found->second;
}

// "gen5 x16".
std::pair<int, int> pcie_of(const std::string& words) {
    std::pair<int, int> pcie;
    if (std::sscanf(words.c_str(), "gen%d x%d", &pcie.first, &pcie.second) != 2) return {};
    return pcie;
}

// The status for which peer_access_of() gives this reason.
P2pStatus status_of(const PeerAccess& access) {
    if (access.allowed) return P2pStatus::ok;
    for (const P2pStatus status :
         {P2pStatus::chipset_not_supported, P2pStatus::gpu_not_supported,
          P2pStatus::ioh_topology_not_supported, P2pStatus::disabled_by_regkey, P2pStatus::not_supported}) {
        if (topology::peer_access_of(status, status, false).reason == access.reason) return status;
    }
    return P2pStatus::unknown;
}

class TopologyNvml final : public driver::Nvml {
public:
    explicit TopologyNvml(Topology topology) : topology_(std::move(topology)) {}

    std::string driver_version() const override {
        return property(topology_.parts().properties, "nvml_driver");
    }
    // With those that are lost, as NVML counts.
    Result<int> gpu_count() const override {
        const auto numbers = topology::numbers_of(topology_, DeviceKind::gpu);
        return numbers.empty() ? 0 : numbers.back() + 1;
    }
    Result<NvmlGpu> gpu(int index) const override;
    Result<std::vector<NvmlLink>> links(int index) const override;
    Result<P2pStatus> p2p(int from, int to, P2pCapability capability) const override;
    Result<driver::CommonAncestor> common_ancestor(int, int) const override { return not_told(); }
    Result<NvmlFabric> fabric(int index) const override;
    Result<bool> confidential_computing() const override {
        const std::string said = property(topology_.parts().properties, "confidential_computing");
        if (said.empty()) return not_told();
        return said == "on";
    }

private:
    // Calls `take` with every link of that kind at the GPU, and with the device at its other end.
    template <typename Take>
    void each_link(DeviceId gpu, LinkKind kind, Take take) const {
        for (const Link& link : topology_.links())
            if (link.kind == kind && (link.a == gpu || link.b == gpu))
                take(link, topology_.device(link.a == gpu ? link.b : link.a));
    }

    Topology topology_;
};

Result<NvmlGpu> TopologyNvml::gpu(int index) const {
    const auto id = topology_.find(DeviceKind::gpu, index);
    if (!id) return not_told();
    const Device& device = topology_.device(*id);
    NvmlGpu gpu;
    gpu.name = device.model;
    gpu.bus_id = device.bus_id;
    gpu.memory = device.memory;
    gpu.numa_node = device.numa_node;
    gpu.bar1 = std::strtoull(property(device.properties, "bar1").c_str(), nullptr, 10);
    std::sscanf(property(device.properties, "cc").c_str(), "%d.%d", &gpu.cc_major, &gpu.cc_minor);
    each_link(*id, LinkKind::pcie, [&](const Link& link, const Device&) {
        gpu.pcie_generation = topology::pcie_generation_of(link.gb_per_s, link.width).value_or(0);
        gpu.pcie_width = link.width;
    });
    gpu.pcie_generation_now = gpu.pcie_generation;
    gpu.pcie_width_now = gpu.pcie_width;
    if (const auto told = pcie_of(property(device.properties, "pcie_max")); told.first > 0)
        std::tie(gpu.pcie_generation, gpu.pcie_width) = told;
    if (const auto told = pcie_of(property(device.properties, "pcie_now")); told.first > 0)
        std::tie(gpu.pcie_generation_now, gpu.pcie_width_now) = told;
    const std::string replays = property(device.properties, "pcie_replays");
    if (!replays.empty())
        gpu.pcie_replays = static_cast<unsigned>(std::strtoul(replays.c_str(), nullptr, 10));
    const std::string mig = property(device.properties, "mig");
    if (!mig.empty()) gpu.mig = mig == "on";
    return gpu;
}

// "16 of 18", or else all that the topology has are active, and there are no others.
Result<std::vector<NvmlLink>> TopologyNvml::links(int index) const {
    const auto id = topology_.find(DeviceKind::gpu, index);
    if (!id) return not_told();
    std::vector<NvmlLink> links;
    each_link(*id, LinkKind::nvlink, [&](const Link& link, const Device&) {
        NvmlLink one;
        one.active = true;
        one.gb_per_s = link.gb_per_s / link.width;
        links.insert(links.end(), static_cast<std::size_t>(link.width), one);
    });
    int active = 0;
    int all = 0;
    const std::string told = property(topology_.device(*id).properties, "nvlinks");
    // Cloud files and lists of PCI devices leave NVLinks out: that is no sign that they are down.
    if (links.empty() && told.empty()) return not_told();
    if (std::sscanf(told.c_str(), "%d of %d", &active, &all) == 2 && all <= 64 &&
        all > static_cast<int>(links.size()))
        links.resize(static_cast<std::size_t>(all));
    return links;
}

Result<P2pStatus> TopologyNvml::p2p(int from, int to, P2pCapability capability) const {
    const bool asked = capability == P2pCapability::read || capability == P2pCapability::write;
    if (!asked) return not_told();
    const PeerAccess access = topology_.peer_access(from, to);
    if (access.allowed) return P2pStatus::ok;
    // What only follows from the links is no answer of a driver.
    const auto& peers = topology_.parts().peers;
    const bool told = std::any_of(peers.begin(), peers.end(), [&](const Topology::Parts::Peer& peer) {
        return peer.from == from && peer.to == to;
    });
    if (!told) return not_told();
    return status_of(access);
}

// Where the topology has NVLinks that lead to an NVSwitch, the fabric let them be used.
Result<NvmlFabric> TopologyNvml::fabric(int index) const {
    const auto id = topology_.find(DeviceKind::gpu, index);
    if (!id) return not_told();
    NvmlFabric fabric;
    bool switched = false;
    each_link(*id, LinkKind::nvlink, [&](const Link&, const Device& other) {
        switched = switched || other.kind == DeviceKind::nvswitch;
    });
    const std::string said = property(topology_.device(*id).properties, "fabric");
    if (said.empty() && !switched) return not_told();
    fabric.state = said == "not started"     ? driver::FabricState::not_started
                   : said == "in progress"   ? driver::FabricState::in_progress
                   : said == "not supported" ? driver::FabricState::not_supported
                                             : driver::FabricState::completed;
    return fabric;
}

}  // namespace

Evidence evidence_of(Topology topology) {
    Evidence evidence{std::move(topology), driver::MachineFiles(no_files), nullptr, "", {}, {}, std::nullopt};
    evidence.from_topology = true;
    if (property(evidence.topology.parts().properties, "nvidia_driver") == topology::no_driver) {
        evidence.no_nvml = "no NVIDIA driver is loaded";
    } else {
        evidence.nvml = std::make_shared<TopologyNvml>(evidence.topology);
    }
    return evidence;
}

}  // namespace sidestep::diagnose
