#include "topology/unseen_gpus.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "topology/link_rates.hpp"
#include "topology/sysfs_reader.hpp"

namespace sidestep::topology {

namespace {

using driver::CommonAncestor;
using Members = std::vector<std::size_t>;  // positions among the unseen GPUs

class UnseenGpuPlacer {
public:
    UnseenGpuPlacer(PartsBuilder& builder, const driver::Nvml& nvml, const std::vector<KnownGpu>& gpus)
        : builder_(builder), nvml_(nvml), gpus_(gpus) {}

    void place() {
        Members all;
        for (std::size_t i = 0; i < gpus_.size(); ++i) all.push_back(i);
        for (const Members& members : groups(all, CommonAncestor::host_bridge)) place_below_bridge(members);
        if (assumed_ > 0)
            builder_.note(fmt::format(
                "GPUs whose PCIe link NVML does not tell and that are counted as gen3 x16: {}", assumed_));
    }

private:
    std::vector<Members> groups(const Members& members, CommonAncestor at_most) const;
    bool share(std::size_t a, std::size_t b, CommonAncestor at_most) const;
    void place_below_bridge(const Members& members);
    DeviceId add_switch(DeviceId parent, const Members& members);
    void join(DeviceId device, DeviceId parent, const driver::NvmlGpu& facts);
    void join_gpus(const Members& members, DeviceId parent);

    PartsBuilder& builder_;
    const driver::Nvml& nvml_;
    const std::vector<KnownGpu>& gpus_;
    int assumed_ = 0;
};

bool UnseenGpuPlacer::share(std::size_t a, std::size_t b, CommonAncestor at_most) const {
    const auto level =
        nvml_.common_ancestor(builder_.device(gpus_[a].id).index, builder_.device(gpus_[b].id).index);
    return level.ok() && *level <= at_most;
}

// Splits the members into those that have something at most that far up in common. Having an ancestor in
// common is transitive in a tree, so comparing with the first of a group is enough.
std::vector<Members> UnseenGpuPlacer::groups(const Members& members, CommonAncestor at_most) const {
    std::vector<Members> found;
    for (const std::size_t member : members) {
        const auto group = std::find_if(found.begin(), found.end(), [&](const Members& other) {
            return share(other.front(), member, at_most);
        });
        if (group != found.end()) {
            group->push_back(member);
        } else {
            found.push_back({member});
        }
    }
    return found;
}

void UnseenGpuPlacer::join(DeviceId device, DeviceId parent, const driver::NvmlGpu& facts) {
    const bool told = pcie_gb_per_s(facts.pcie_generation, facts.pcie_width) > 0;
    builder_.join_pcie(device, parent, told ? facts.pcie_generation : 3, told ? facts.pcie_width : 16);
}

void UnseenGpuPlacer::join_gpus(const Members& members, DeviceId parent) {
    for (const std::size_t member : members) {
        const KnownGpu& gpu = gpus_[member];
        if (pcie_gb_per_s(gpu.facts.pcie_generation, gpu.facts.pcie_width) <= 0) ++assumed_;
        join(gpu.id, parent, gpu.facts);
    }
}

DeviceId UnseenGpuPlacer::add_switch(DeviceId parent, const Members& members) {
    const DeviceId made = builder_.add({DeviceKind::pcie_switch, builder_.next_index(DeviceKind::pcie_switch),
                                        "", "told by NVML", "", builder_.device(parent).numa_node, 0});
    join(made, parent, gpus_[members.front()].facts);
    return made;
}

void UnseenGpuPlacer::place_below_bridge(const Members& members) {
    const int node = builder_.device(gpus_[members.front()].id).numa_node;
    const DeviceId bridge =
        builder_.add({DeviceKind::host_bridge, builder_.next_index(DeviceKind::host_bridge), "",
                      "told by NVML", "", node, 0});
    for (const Members& below : groups(members, CommonAncestor::several_switches)) {
        if (below.size() == 1) {
            join_gpus(below, bridge);
            continue;
        }
        const DeviceId upper = add_switch(bridge, below);
        const auto lower = groups(below, CommonAncestor::single_switch);
        for (const Members& together : lower) {
            join_gpus(together, lower.size() == 1 ? upper : add_switch(upper, together));
        }
    }
    join_host_bridge(builder_, bridge, cpu_of_node(builder_, node));
}

}  // namespace

void place_unseen_gpus(PartsBuilder& builder, const driver::Nvml& nvml, const std::vector<KnownGpu>& gpus) {
    if (gpus.empty()) return;
    UnseenGpuPlacer(builder, nvml, gpus).place();
    std::string names;
    for (const KnownGpu& gpu : gpus) names += (names.empty() ? "" : ", ") + builder.device(gpu.id).name;
    builder.note(names +
                 ": seen through NVML only; sysfs does not show them, so bridges and switches are made up "
                 "from what NVML says the GPUs have in common");
}

}  // namespace sidestep::topology
