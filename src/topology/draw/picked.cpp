#include "topology/draw/picked.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace sidestep::topology::draw {

namespace {

std::size_t max_of(DeviceKind kind) {
    switch (kind) {
        case DeviceKind::cpu:
            return max_cpus;
        case DeviceKind::gpu:
            return max_gpus;
        case DeviceKind::nic:
            return max_cards;
        case DeviceKind::drive:
            return max_drives;
        case DeviceKind::nvswitch:
            return max_nvswitches;
        case DeviceKind::host_bridge:
        case DeviceKind::pcie_switch:
        case DeviceKind::net_switch:
            break;
    }
    return max_bars;
}

class Picker {
public:
    Picker(const Outline& outline, int node) : outline_(outline) {
        picked_.drawn.assign(outline.topology().devices().size(), false);
        const auto& nodes = outline.nodes();
        const bool known = std::find(nodes.begin(), nodes.end(), node) != nodes.end();
        picked_.node = known ? node : nodes.empty() ? -1 : nodes.front();
    }

    Picked run() {
        for (const DeviceId id : outline_.of(DeviceKind::cpu, picked_.node)) {
            if (take_tree(id)) picked_.cpus.push_back(id);
        }
        for (const DeviceKind kind : {DeviceKind::host_bridge, DeviceKind::pcie_switch, DeviceKind::gpu,
                                      DeviceKind::nic, DeviceKind::drive}) {
            for (const DeviceId id : outline_.of(kind, picked_.node)) {
                if (outline_.topology().parent(id)) continue;
                if (take_tree(id)) picked_.loose.push_back(id);
            }
        }
        for (const DeviceId id : outline_.of(DeviceKind::gpu, picked_.node))
            if (picked_.has(id)) picked_.gpus.push_back(id);
        take_nvswitches();
        return std::move(picked_);
    }

private:
    // Host bridges and switches are counted together, as pcie_switch.
    static DeviceKind counted(DeviceKind kind) {
        return kind == DeviceKind::host_bridge ? DeviceKind::pcie_switch : kind;
    }

    bool take(DeviceId id) {
        const DeviceKind kind = outline_.device(id).kind;
        if (counts_[counted(kind)] >= max_of(kind)) {
            ++picked_.left_out[kind];
            return false;
        }
        ++counts_[counted(kind)];
        picked_.drawn[id] = true;
        return true;
    }

    // As deep as there are bars at most.
    bool take_tree(DeviceId id) {
        if (!take(id)) {
            leave_out_below(id);
            return false;
        }
        for (const DeviceId below : outline_.below(id)) take_tree(below);
        return true;
    }

    // Not by recursion: nothing bounds the depth here.
    void leave_out_below(DeviceId top) {
        std::vector<DeviceId> open{top};
        while (!open.empty()) {
            const DeviceId id = open.back();
            open.pop_back();
            for (const DeviceId below : outline_.below(id)) {
                ++picked_.left_out[outline_.device(below).kind];
                open.push_back(below);
            }
        }
    }

    // Those with a link to a GPU that is drawn, and those such a one is joined to.
    void take_nvswitches() {
        std::set<std::pair<int, DeviceId>> found;  // by index
        std::vector<DeviceId> order;
        const auto look = [&](DeviceId from) {
            for (const std::uint32_t position : outline_.links_of(from)) {
                const DeviceId far = outline_.far_end(position, from);
                const Device& device = outline_.device(far);
                if (device.kind != DeviceKind::nvswitch || !is_fabric(outline_.link(position).kind)) continue;
                if (found.emplace(device.index, far).second) order.push_back(far);
            }
        };
        for (const DeviceId gpu : picked_.gpus) look(gpu);
        for (std::size_t i = 0; i < order.size(); ++i) look(order[i]);
        for (const DeviceId id : outline_.of(DeviceKind::nvswitch, picked_.node))
            found.emplace(outline_.device(id).index, id);
        for (const auto& [index, id] : found)
            if (take(id)) picked_.nvswitches.push_back(id);
    }

    const Outline& outline_;
    Picked picked_;
    std::map<DeviceKind, std::size_t> counts_;
};

}  // namespace

Picked pick(const Outline& outline, int node) {
    return Picker(outline, node).run();
}

std::string left_out_words(const Picked& picked) {
    std::string words;
    for (const auto& [kind, count] : picked.left_out)
        words += (words.empty() ? "" : ", ") + count_words(count, kind);
    return words.empty() ? "" : words + " not drawn";
}

}  // namespace sidestep::topology::draw
