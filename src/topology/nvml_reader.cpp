#include "topology/nvml_reader.hpp"

#include <fmt/format.h>

#include <set>
#include <string>
#include <utility>

#include "topology/link_rates.hpp"
#include "topology/peer_reasons.hpp"
#include "topology/sysfs_reader.hpp"
#include "topology/unseen_gpus.hpp"

namespace sidestep::topology {

namespace {

using driver::Nvml;

// The GPUs NVML lists, by their numbers. NVML counts every GPU this process is given;
// CUDA_VISIBLE_DEVICES changes CUDA's numbers only, so it does not matter here.
std::vector<std::pair<int, driver::NvmlGpu>> listed_gpus(PartsBuilder& builder, const Nvml& nvml, int count) {
    std::vector<std::pair<int, driver::NvmlGpu>> listed;
    for (int index = 0; index < count; ++index) {
        auto gpu = nvml.gpu(index);
        if (gpu.ok()) {
            listed.emplace_back(index, std::move(*gpu));
        } else {
            builder.note(fmt::format("gpu:{}: left out: {}", index, gpu.error().message));
        }
    }
    return listed;
}

void remove_unlisted(PartsBuilder& builder, const std::vector<std::pair<int, driver::NvmlGpu>>& listed) {
    std::set<std::string> known;
    for (const auto& entry : listed) known.insert(entry.second.bus_id);
    std::set<DeviceId> unlisted;
    for (DeviceId id = 0; id < builder.parts().devices.size(); ++id) {
        const Device& device = builder.device(id);
        if (device.kind != DeviceKind::gpu || known.count(device.bus_id) != 0) continue;
        builder.note(
            fmt::format("the GPU at {} is left out: NVML does not list it, so it is not given to this "
                        "process or has no driver",
                        device.bus_id));
        unlisted.insert(id);
    }
    builder.remove(unlisted);
}

void apply_facts(Device& device, int index, const driver::NvmlGpu& facts) {
    device.index = index;
    device.name = device_name(DeviceKind::gpu, index);
    if (!facts.name.empty()) device.model = facts.name;
    device.memory = facts.memory;
    if (device.numa_node < 0) device.numa_node = facts.numa_node;
}

// Renumbers the GPUs that sysfs showed and adds the others.
std::vector<KnownGpu> match_gpus(PartsBuilder& builder, const Nvml& nvml,
                                 const std::vector<std::pair<int, driver::NvmlGpu>>& listed) {
    std::vector<KnownGpu> known;
    std::vector<KnownGpu> unseen;
    for (const auto& [index, facts] : listed) {
        std::optional<DeviceId> seen;
        for (DeviceId id = 0; id < builder.parts().devices.size(); ++id) {
            const Device& device = builder.device(id);
            if (device.kind == DeviceKind::gpu && !facts.bus_id.empty() && device.bus_id == facts.bus_id)
                seen = id;
        }
        if (seen) {
            apply_facts(builder.device(*seen), index, facts);
            known.push_back({*seen, facts});
            continue;
        }
        const DeviceId made =
            builder.add({DeviceKind::gpu, index, fmt::format("new-gpu:{}", index), "", facts.bus_id, -1, 0});
        apply_facts(builder.device(made), index, facts);
        known.push_back({made, facts});
        unseen.push_back({made, facts});
    }
    place_unseen_gpus(builder, nvml, unseen);
    return known;
}

// Where NVML cannot tell, nothing is recorded and Topology::peer_access() goes by the links.
void read_peers(PartsBuilder& builder, const Nvml& nvml, const std::vector<KnownGpu>& gpus) {
    std::string untold;
    for (const KnownGpu& from : gpus) {
        for (const KnownGpu& to : gpus) {
            if (from.id == to.id) continue;
            const int a = builder.device(from.id).index;
            const int b = builder.device(to.id).index;
            const auto reads = nvml.p2p(a, b, driver::P2pCapability::read);
            const auto writes = nvml.p2p(a, b, driver::P2pCapability::write);
            if (!reads.ok() || !writes.ok()) {
                untold = reads.ok() ? writes.error().message : reads.error().message;
                continue;
            }
            const auto atomics = nvml.p2p(a, b, driver::P2pCapability::atomics);
            const bool with_atomics = atomics.ok() && *atomics == driver::P2pStatus::ok;
            builder.parts().peers.push_back({a, b, peer_access_of(*reads, *writes, with_atomics)});
        }
    }
    if (!untold.empty())
        builder.note("peer access between some GPUs is not told by NVML and is taken from the links: " +
                     untold);
}

}  // namespace

void merge_nvml(PartsBuilder& builder, const Nvml& nvml) {
    const auto count = nvml.gpu_count();
    if (!count.ok()) {
        builder.note("the GPUs are as sysfs shows them: " + count.error().message);
        return;
    }
    const auto listed = listed_gpus(builder, nvml, *count);
    remove_unlisted(builder, listed);
    const auto known = match_gpus(builder, nvml, listed);
    join_nvlinks(builder, nvml, known);
    read_peers(builder, nvml, known);
}

}  // namespace sidestep::topology
