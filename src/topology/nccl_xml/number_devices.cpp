// Numbers and names for the devices of a file. NVML numbers GPUs by their bus ids, so that is what counts
// where a file gives no numbers.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_set>

#include "topology/nccl_xml/attributes.hpp"
#include "topology/nccl_xml/draft.hpp"
#include "topology/parts_builder.hpp"

namespace sidestep::topology::nccl_xml {

namespace {

using Group = std::vector<DeviceId>;  // of one machine and kind, in the order of the file

class Numbering {
public:
    explicit Numbering(Draft& draft) : draft_(draft), local_(draft.parts.devices.size(), 0) {}

    void run() {
        // By kind and machine; what machines share (-1) comes last.
        std::map<std::pair<DeviceKind, std::uint32_t>, Group> groups;
        for (DeviceId id = 0; id < local_.size(); ++id) {
            const Device& device = draft_.parts.devices[id];
            groups[{device.kind, static_cast<std::uint32_t>(device.node)}].push_back(id);
        }
        std::map<DeviceKind, int> start;
        for (auto& [kind_and_node, group] : groups) {
            int& first = start[kind_and_node.first];
            const int highest = number(group);
            for (const DeviceId id : group) draft_.parts.devices[id].index = first + local_[id];
            first += highest + 1;
        }
        for (DeviceId id = 0; id < local_.size(); ++id) name(id);
    }

private:
    auto by_bus_id() const {
        return [this](DeviceId a, DeviceId b) {
            const std::string& first = draft_.parts.devices[a].bus_id;
            const std::string& second = draft_.parts.devices[b].bus_id;
            return std::pair(first.size(), first) < std::pair(second.size(), second);
        };
    }

    // Gives every device of a group its number; returns the highest.
    int number(const Group& group) {
        std::unordered_set<int> taken;
        Group rest;
        bool twice = false;
        for (const DeviceId id : group) {
            const int wanted = draft_.about[id].wanted;
            if (wanted >= 0 && taken.insert(wanted).second) {
                local_[id] = wanted;
            } else {
                twice = twice || wanted >= 0;
                rest.push_back(id);
            }
        }
        const DeviceKind kind = draft_.parts.devices[group.front()].kind;
        if (twice) {
            draft_.notes.add(
                "the file gives the same number to several of kind {}: the later ones "
                "take what is free",
                to_string(kind));
        }
        if (kind == DeviceKind::gpu) std::stable_sort(rest.begin(), rest.end(), by_bus_id());
        int next = 0;
        for (const DeviceId id : rest) {
            while (!taken.insert(next).second) ++next;
            local_[id] = next;
        }
        return taken.empty() ? -1 : *std::max_element(taken.begin(), taken.end());
    }

    void name(DeviceId id) {
        Device& device = draft_.parts.devices[id];
        std::string own = device_name(device.kind, local_[id]);
        const std::string& told = draft_.about[id].name;
        if (device.kind == DeviceKind::nic && is_usable(told)) own = fmt::format("nic:{}", told);
        if (draft_.hosts > 1 && device.node >= 0) own = fmt::format("node{}/{}", device.node, own);
        device.name = own;
        for (int more = 1; !names_.insert(device.name).second; ++more)
            device.name = fmt::format("{}#{}", own, device.index + more - 1);
        // What the file calls it, where its name does not tell: "nic:3" is what a nameless one is called.
        const bool digits = told.find_first_not_of("0123456789") == std::string::npos;
        const bool tells = !digits && device.name.substr(device.name.find(':') + 1) == told;
        if (device.kind == DeviceKind::nic && !tells)
            device.properties[property_name("name")] = told.empty() ? std::string(absent) : told;
    }

    static bool is_usable(std::string_view name) {
        const auto plain = [](char c) { return static_cast<unsigned char>(c) > ' ' && c != 0x7f; };
        return !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), plain);
    }

    Draft& draft_;
    std::vector<int> local_;  // within the machine
    std::unordered_set<std::string> names_;
};

}  // namespace

void number_devices(Draft& draft) {
    Numbering(draft).run();
}

}  // namespace sidestep::topology::nccl_xml
