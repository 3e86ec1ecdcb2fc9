#include <fmt/format.h>

#include <map>
#include <optional>
#include <string>

#include "topology/link_rates.hpp"
#include "topology/nvml_reader.hpp"
#include "topology/sysfs_reader.hpp"

namespace sidestep::topology {

namespace {

using driver::NvlinkRemote;

class Joiner {
public:
    Joiner(PartsBuilder& builder, const driver::Nvml& nvml, const std::vector<KnownGpu>& gpus)
        : builder_(builder), nvml_(nvml), gpus_(gpus) {}

    void join() {
        for (const KnownGpu& gpu : gpus_) join_gpu(gpu);
    }

private:
    struct Bundle {
        int links = 0;
        double gb_per_s = 0;
    };

    void join_gpu(const KnownGpu& gpu);
    std::optional<DeviceId> far_end(const KnownGpu& gpu, const driver::NvmlLink& link);
    std::optional<DeviceId> with_bus_id(const std::string& bus_id) const;
    DeviceId nvswitch(const std::string& bus_id);
    double rate_of(const KnownGpu& gpu, const driver::NvmlLink& link);

    PartsBuilder& builder_;
    const driver::Nvml& nvml_;
    const std::vector<KnownGpu>& gpus_;
    std::optional<DeviceId> hidden_switch_;
};

std::optional<DeviceId> Joiner::with_bus_id(const std::string& bus_id) const {
    for (DeviceId id = 0; !bus_id.empty() && id < builder_.parts().devices.size(); ++id) {
        if (builder_.device(id).bus_id == bus_id) return id;
    }
    return std::nullopt;
}

// The NVSwitch with that bus id, or the one that stands for all hidden ones.
DeviceId Joiner::nvswitch(const std::string& bus_id) {
    if (bus_id.empty() && hidden_switch_) return *hidden_switch_;
    if (const auto known = with_bus_id(bus_id)) return *known;
    const DeviceId made = builder_.add({DeviceKind::nvswitch, builder_.next_index(DeviceKind::nvswitch), "",
                                        "NVIDIA NVSwitch", bus_id, -1, 0});
    if (!bus_id.empty()) return made;
    hidden_switch_ = made;
    builder_.note(
        fmt::format("{}: the driver does not tell which NVSwitches the NVLinks go to (a virtual machine, "
                    "or NVL72): one device stands for all of them",
                    builder_.device(made).name));
    return made;
}

// What a link leads to; nullopt where that is nothing we can use, with a note.
std::optional<DeviceId> Joiner::far_end(const KnownGpu& gpu, const driver::NvmlLink& link) {
    const std::string& name = builder_.device(gpu.id).name;
    const auto seen = with_bus_id(link.remote_bus_id);
    const bool seen_switch = seen && builder_.device(*seen).kind == DeviceKind::nvswitch;
    if (link.remote == NvlinkRemote::nvswitch || seen_switch) return nvswitch(link.remote_bus_id);
    if (link.remote == NvlinkRemote::cpu) return cpu_of_node(builder_, builder_.device(gpu.id).numa_node);
    if (seen && builder_.device(*seen).kind == DeviceKind::gpu) return seen;
    // Neither a kind nor an address: an NVSwitch that is hidden from this machine.
    if (link.remote == NvlinkRemote::unknown && link.remote_bus_id.empty()) return nvswitch("");
    builder_.note(fmt::format("{}: an NVLink leads to {}, which this process does not see: left out", name,
                              link.remote_bus_id.empty() ? "an unknown GPU" : link.remote_bus_id));
    return std::nullopt;
}

double Joiner::rate_of(const KnownGpu& gpu, const driver::NvmlLink& link) {
    if (link.gb_per_s > 0) return link.gb_per_s;
    return driver::nvlink_gb_per_s(gpu.facts.cc_major, gpu.facts.cc_minor);
}

void Joiner::join_gpu(const KnownGpu& gpu) {
    const std::string name = builder_.device(gpu.id).name;
    const auto links = nvml_.links(builder_.device(gpu.id).index);
    if (!links.ok()) {
        builder_.note(fmt::format("{}: its NVLinks cannot be read: {}", name, links.error().message));
        return;
    }
    std::map<DeviceId, Bundle> bundles;
    std::size_t active = 0;
    bool rate_unknown = false;
    for (const driver::NvmlLink& link : *links) {
        if (!link.active) continue;
        ++active;
        const double rate = rate_of(gpu, link);
        rate_unknown = rate_unknown || rate <= 0;
        const auto end = rate > 0 ? far_end(gpu, link) : std::nullopt;
        if (!end) continue;
        Bundle& bundle = bundles[*end];
        ++bundle.links;
        bundle.gb_per_s += rate;
    }
    if (rate_unknown) {
        builder_.note(fmt::format("{}: the speed of some NVLinks is not known: left out", name));
    }
    if (active < links->size()) {
        builder_.note(fmt::format("{}: {} of {} NVLinks are active", name, active, links->size()));
    }
    if (gpu.facts.c2c_links > 0 && gpu.facts.c2c_gb_per_s > 0) {
        builder_.join({gpu.id, cpu_of_node(builder_, builder_.device(gpu.id).numa_node), LinkKind::c2c,
                       gpu.facts.c2c_links, gpu.facts.c2c_gb_per_s, c2c_latency_us});
    }
    for (const auto& [end, bundle] : bundles) {
        // Both GPUs report a link between them; the one with the lower number makes it.
        const Device& other = builder_.device(end);
        if (other.kind == DeviceKind::gpu && other.index <= builder_.device(gpu.id).index) continue;
        builder_.join({gpu.id, end, LinkKind::nvlink, bundle.links, bundle.gb_per_s, nvlink_latency_us});
    }
}

}  // namespace

void join_nvlinks(PartsBuilder& builder, const driver::Nvml& nvml, const std::vector<KnownGpu>& gpus) {
    Joiner(builder, nvml, gpus).join();
}

}  // namespace sidestep::topology
