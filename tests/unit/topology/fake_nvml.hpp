// An NVML that says what a test tells it to.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "driver/nvml.hpp"

namespace sidestep::topology {

class FakeNvml final : public driver::Nvml {
public:
    struct Gpu {
        driver::NvmlGpu facts;
        std::vector<driver::NvmlLink> links;
        bool lost = false;
        std::optional<driver::NvmlFabric> fabric;
        std::optional<driver::NvmlCounters> counters{};
    };
    std::optional<bool> confidential;
    std::vector<Gpu> gpus;
    std::map<std::tuple<int, int, driver::P2pCapability>, driver::P2pStatus> p2p_status;  // others: ok
    std::map<std::pair<int, int>, driver::CommonAncestor> ancestors;                      // others: system
    bool tells_p2p = true;
    bool tells_count = true;

    std::string driver_version() const override { return "580.159.04"; }
    Result<int> gpu_count() const override {
        if (!tells_count) return refusal();
        return static_cast<int>(gpus.size());
    }
    Result<driver::NvmlGpu> gpu(int index) const override {
        const Gpu& gpu = gpus.at(static_cast<std::size_t>(index));
        if (gpu.lost) return Error{ErrorCode::device_error, "NVML cannot open the GPU: lost", "", ""};
        return gpu.facts;
    }
    Result<std::vector<driver::NvmlLink>> links(int index) const override {
        return gpus.at(static_cast<std::size_t>(index)).links;
    }
    Result<driver::P2pStatus> p2p(int from, int to, driver::P2pCapability capability) const override {
        if (!tells_p2p) return refusal();
        const auto found = p2p_status.find({from, to, capability});
        return found == p2p_status.end() ? driver::P2pStatus::ok : found->second;
    }
    Result<driver::CommonAncestor> common_ancestor(int a, int b) const override {
        const auto found = ancestors.find({std::min(a, b), std::max(a, b)});
        return found == ancestors.end() ? driver::CommonAncestor::system : found->second;
    }
    Result<driver::NvmlFabric> fabric(int index) const override {
        const auto& told = gpus.at(static_cast<std::size_t>(index)).fabric;
        if (!told) return refusal();
        return *told;
    }
    Result<driver::NvmlCounters> counters(int index) const override {
        const auto& told = gpus.at(static_cast<std::size_t>(index)).counters;
        if (!told) return refusal();
        return *told;
    }
    Result<bool> confidential_computing() const override {
        if (!confidential) return refusal();
        return *confidential;
    }

private:
    static Error refusal() { return Error{ErrorCode::unsupported, "NVML cannot tell", "", ""}; }
};

// One H200: 141 GB, 18 NVLinks that lead to switches whose bus ids the driver does not tell.
inline FakeNvml::Gpu h200(const std::string& bus_id) {
    FakeNvml::Gpu gpu;
    gpu.facts.name = "NVIDIA H200";
    gpu.facts.bus_id = bus_id;
    gpu.facts.memory = Bytes{143771} << 20;
    gpu.facts.cc_major = 9;
    gpu.facts.pcie_generation = 5;
    gpu.facts.pcie_width = 16;
    gpu.links.assign(18, driver::NvmlLink{true, driver::NvlinkRemote::nvswitch, "", 26.562});
    return gpu;
}

}  // namespace sidestep::topology
