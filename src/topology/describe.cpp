#include <fmt/format.h>

#include <algorithm>
#include <string>

#include <sidestep/topology.hpp>

#include "topology/link_rates.hpp"

namespace sidestep {

namespace {

std::string pcie_words(const Link& link) {
    if (const auto generation = topology::pcie_generation_of(link.gb_per_s, link.width)) {
        return fmt::format("PCIe gen{} x{}", *generation, link.width);
    }
    return fmt::format("PCIe x{} ({})", link.width, format_rate(link.gb_per_s));
}

std::string nvlink_words(const Topology& topology, const Path& path) {
    const auto at_switch = [&](std::uint32_t position) {
        const Link& link = topology.links()[position];
        return topology.device(link.a).kind == DeviceKind::nvswitch ||
               topology.device(link.b).kind == DeviceKind::nvswitch;
    };
    const bool through_switch = std::any_of(path.links.begin(), path.links.end(), at_switch);
    const bool xgmi = topology.links()[path.links.front()].kind == LinkKind::xgmi;
    return fmt::format("{} ({} link{}{})", xgmi ? "Infinity Fabric" : "NVLink", path.nvlinks,
                       path.nvlinks == 1 ? "" : "s", through_switch ? " through NVSwitch" : "");
}

}  // namespace

// Names the narrowest link of each kind the path crosses, in the order of the kinds' first links.
std::string Topology::describe(const Path& path) const {
    if (path.links.empty()) return "inside one device";
    if (path.all_nvlink) return nvlink_words(*this, path);

    std::vector<const Link*> narrowest;
    for (const std::uint32_t position : path.links) {
        const Link& link = links()[position];
        const auto same = std::find_if(narrowest.begin(), narrowest.end(),
                                       [&](const Link* other) { return other->kind == link.kind; });
        if (same == narrowest.end()) {
            narrowest.push_back(&link);
        } else if (link.gb_per_s < (*same)->gb_per_s) {
            *same = &link;
        }
    }
    std::string words;
    for (const Link* link : narrowest) {
        if (!words.empty()) words += " + ";
        switch (link->kind) {
            case LinkKind::pcie:
                words += pcie_words(*link);
                break;
            case LinkKind::nvlink:
                words += fmt::format("NVLink x{}", link->width);
                break;
            case LinkKind::c2c:
                words += "NVLink-C2C";
                break;
            case LinkKind::socket:
                words += "socket link";
                break;
            case LinkKind::xgmi:
                words += fmt::format("Infinity Fabric x{}", link->width);
                break;
            case LinkKind::network:
                words += fmt::format("network {:.0f} Gb/s", link->gb_per_s * 8);
                break;
        }
    }
    return words;
}

}  // namespace sidestep
