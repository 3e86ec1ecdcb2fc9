// What a built-in machine lends to a file without NVLinks.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "topology/nccl_xml/attributes.hpp"
#include "topology/nccl_xml/draft.hpp"
#include "topology/parts_builder.hpp"

namespace sidestep::topology::nccl_xml {

namespace {

// Of the built-in machines.
constexpr std::size_t largest_lender = 16;

bool is_fabric(LinkKind kind) {
    return kind == LinkKind::nvlink || kind == LinkKind::xgmi;
}

Error refused(const Topology& from, std::string message, std::string hint) {
    return Error{ErrorCode::invalid_argument, std::move(message), fmt::format("as {}", from.name()),
                 std::move(hint)};
}

// In the order of their numbers.
std::vector<DeviceId> gpus_of(const std::vector<Device>& devices) {
    std::vector<DeviceId> gpus;
    for (DeviceId id = 0; id < devices.size(); ++id) {
        if (devices[id].kind == DeviceKind::gpu) gpus.push_back(id);
    }
    std::sort(gpus.begin(), gpus.end(),
              [&](DeviceId a, DeviceId b) { return devices[a].index < devices[b].index; });
    return gpus;
}

bool has_fabric(const std::vector<Link>& links) {
    return std::any_of(links.begin(), links.end(), [](const Link& link) { return is_fabric(link.kind); });
}

// The built-in machines with NVLinks that have as many GPUs, of the same kind where the file tells it.
std::string lenders(const Topology::Parts& parts) {
    const std::vector<DeviceId> own = gpus_of(parts.devices);
    if (own.size() < 2 || own.size() > largest_lender) return {};
    const Properties& properties = parts.devices[own.front()].properties;
    const auto told = properties.find(compute_capability);
    std::string names;
    for (const std::string& name : Topology::model_names()) {
        const auto model = Topology::model(name);
        if (!model || !has_fabric(model->links())) continue;
        const std::vector<DeviceId> lent = gpus_of(model->devices());
        const Properties& of_model = model->device(lent.front()).properties;
        const auto same = of_model.find(compute_capability);
        if (lent.size() != own.size() || properties.count(gfx) != of_model.count(gfx)) continue;
        if (told != properties.end() && (same == of_model.end() || same->second != told->second)) continue;
        names += (names.empty() ? "" : ", ") + name;
    }
    return names;
}

}  // namespace

void note_what_is_missing(Topology::Parts& parts) {
    if (gpus_of(parts.devices).empty()) {
        parts.notes.insert(parts.notes.begin(),
                           "the file holds no GPU: one is a <pci> with a <gpu> in it, or of class 0x0302");
        return;
    }
    if (has_fabric(parts.links)) return;
    const std::string names = lenders(parts);
    if (names.empty()) return;
    parts.properties["lenders"] = names;
    parts.notes.insert(
        parts.notes.begin(),
        fmt::format("the file tells of no NVLinks, as files of cloud vendors mostly do not: --as MODEL lends "
                    "those of a built-in machine ({})",
                    names));
}

Result<void> overlay(Topology::Parts& parts, const Topology& from) {
    const auto machines = [](const std::vector<Device>& devices) {
        return std::any_of(devices.begin(), devices.end(), [](const Device& d) { return d.node > 0; });
    };
    if (machines(from.devices()) || machines(parts.devices)) {
        return refused(from, "the file, or the machine that should lend NVLinks to it, is a cluster",
                       "lend a single machine to the file of a single machine");
    }
    for (const Link& link : parts.links) {
        if (!is_fabric(link.kind)) continue;
        return refused(from,
                       fmt::format("the file has links of its own between GPUs, such as that of {}",
                                   parts.devices[link.a].name),
                       "read it without another machine's");
    }
    const std::vector<DeviceId> own = gpus_of(parts.devices);
    const std::vector<DeviceId> lent = gpus_of(from.devices());
    if (own.size() != lent.size()) {
        return refused(from,
                       fmt::format("the file has {} GPUs, {} has {}", own.size(), from.name(), lent.size()),
                       "choose a machine with as many GPUs");
    }
    std::map<DeviceId, DeviceId> here;  // of the lender's devices
    for (std::size_t i = 0; i < own.size(); ++i) {
        const Device& model = from.device(lent[i]);
        Device& gpu = parts.devices[own[i]];
        if (gpu.model.empty()) {
            gpu.model = model.model;
            for (const std::string_view name : {compute_capability, gfx}) {
                const auto told = model.properties.find(name);
                if (told != model.properties.end()) gpu.properties.insert(*told);
            }
        }
        if (gpu.memory == 0) gpu.memory = model.memory;
        here[lent[i]] = own[i];
    }
    int next = 0;
    for (const Device& device : parts.devices) {
        if (device.kind == DeviceKind::nvswitch) next = std::max(next, device.index + 1);
    }
    for (DeviceId id = 0; id < from.devices().size(); ++id) {
        if (from.device(id).kind != DeviceKind::nvswitch) continue;
        Device made = from.device(id);
        made.index = next++;
        made.name = device_name(made.kind, made.index);
        made.bus_id.clear();  // the file's machine has its own, if it shows them at all
        made.node = 0;
        here[id] = static_cast<DeviceId>(parts.devices.size());
        parts.devices.push_back(std::move(made));
    }
    for (Link link : from.links()) {
        if (!is_fabric(link.kind) || here.count(link.a) == 0 || here.count(link.b) == 0) continue;
        link.a = here[link.a];
        link.b = here[link.b];
        parts.links.push_back(link);
    }
    parts.notes.push_back(
        fmt::format("NVLinks, and GPU names and memory that the file lacks, are those of {}", from.name()));
    parts.properties["nccl.as"] = from.name();
    return {};
}

}  // namespace sidestep::topology::nccl_xml
