#include "topology/faults.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "base/nearest_name.hpp"
#include "base/try.hpp"
#include "topology/link_rates.hpp"
#include "topology/parts_builder.hpp"
#include "topology/peer_reasons.hpp"

namespace sidestep::topology {

namespace {

using Parts = Topology::Parts;

// What a fault is put into, and how much of it there is.
struct Target {
    Parts& parts;
    DeviceId device = 0;
    int number = 0;
};

Device& device_of(const Target& target) {
    return target.parts.devices[target.device];
}

bool ends_at(const Link& link, DeviceId device) {
    return link.a == device || link.b == device;
}

Error no_link(const Target& target, const char* what) {
    return Error{ErrorCode::not_found, fmt::format("{} has no {}", device_of(target).name, what), "fault",
                 ""};
}

// A link of fewer lanes or of an older generation, which the card and its slot could do better.
Result<void> slow_link(const Target& target, bool width) {
    for (Link& link : target.parts.links) {
        if (link.kind != LinkKind::pcie || !ends_at(link, target.device)) continue;
        const auto generation = pcie_generation_of(link.gb_per_s, link.width);
        if (!generation) return no_link(target, "PCIe link whose generation is known");
        const int lanes = width ? target.number : link.width;
        const int now = width ? *generation : target.number;
        const double rate = pcie_gb_per_s(now, lanes);
        if (rate <= 0 || rate >= link.gb_per_s)
            return Error{ErrorCode::invalid_argument,
                         fmt::format("gen{} x{} is not slower than the gen{} x{} of {}", now, lanes,
                                     *generation, link.width, device_of(target).name),
                         "fault", ""};
        // Fewer lanes are a bad contact. An older generation is what a slot or a setting allows, so the link
        // claims no more; idle links of GPUs slow down too, and prove nothing.
        device_of(target).properties["pcie_max"] =
            fmt::format("gen{} x{}", width ? *generation : now, link.width);
        device_of(target).properties["pcie_now"] = fmt::format("gen{} x{}", now, lanes);
        link.width = lanes;
        link.gb_per_s = rate;
        return {};
    }
    return no_link(target, "PCIe link");
}

Result<void> width(const Target& target) {
    return slow_link(target, true);
}

Result<void> generation(const Target& target) {
    return slow_link(target, false);
}

// Only so many NVLinks of a GPU are up.
Result<void> fewer_nvlinks(const Target& target) {
    int before = 0;
    for (const Link& link : target.parts.links)
        if (link.kind == LinkKind::nvlink && ends_at(link, target.device)) before += link.width;
    if (before == 0) return no_link(target, "NVLinks");
    if (target.number >= before)
        return Error{
            ErrorCode::invalid_argument,
            fmt::format("{} has {} NVLinks, so fewer have to be left", device_of(target).name, before),
            "fault", ""};
    int left = target.number;
    std::erase_if(target.parts.links, [&](Link& link) {
        if (link.kind != LinkKind::nvlink || !ends_at(link, target.device)) return false;
        const int kept = std::min(left, link.width);
        left -= kept;
        link.gb_per_s *= static_cast<double>(kept) / link.width;
        link.width = kept;
        return kept == 0;
    });
    device_of(target).properties["nvlinks"] = fmt::format("{} of {}", target.number, before);
    return {};
}

Result<void> memory(const Target& target) {
    device_of(target).memory = Bytes(static_cast<unsigned>(target.number)) << 30;
    return {};
}

Result<void> replays(const Target& target) {
    device_of(target).properties["pcie_replays"] = std::to_string(target.number);
    return {};
}

// The GPU is in PCI, and the driver has lost it.
Result<void> lost(const Target& target) {
    PartsBuilder builder;
    builder.parts() = std::move(target.parts);
    std::string& all = builder.parts().properties["lost_gpus"];
    const Device gone = builder.device(target.device);
    all += (all.empty() ? "" : ", ") + (gone.bus_id.empty() ? gone.name : gone.bus_id);
    std::erase_if(builder.parts().peers,
                  [&](const Parts::Peer& peer) { return peer.from == gone.index || peer.to == gone.index; });
    builder.remove({target.device});
    // NVML numbers those that are left.
    const auto close_up = [&](int& index) { index -= index > gone.index ? 1 : 0; };
    for (Device& device : builder.parts().devices) {
        if (device.kind != DeviceKind::gpu || device.index < gone.index) continue;
        close_up(device.index);
        device.name = device_name(DeviceKind::gpu, device.index);
    }
    for (Parts::Peer& peer : builder.parts().peers) {
        close_up(peer.from);
        close_up(peer.to);
    }
    target.parts = std::move(builder.parts());
    return {};
}

Result<void> rate(const Target& target) {
    const std::string text = fmt::format("{} Gb/sec", target.number);
    device_of(target).properties["port1.rate"] = text;
    for (Link& link : target.parts.links)
        if (link.kind == LinkKind::network && ends_at(link, target.device))
            link.gb_per_s = std::min(link.gb_per_s, target.number / 8.0);
    return {};
}

// The first card that tells its rate, at half of it.
Result<void> first_rate(const Target& target) {
    for (DeviceId id = 0; id < target.parts.devices.size(); ++id) {
        const auto& properties = target.parts.devices[id].properties;
        const auto told = properties.find("port1.rate");
        const int number = told == properties.end() ? 0 : std::atoi(told->second.c_str());
        if (number > 1) return rate({target.parts, id, number / 2});
    }
    return Error{ErrorCode::not_found,
                 fmt::format("{} has no network card that tells its rate", target.parts.name), "fault", ""};
}

Result<void> port_down(const Target& target) {
    device_of(target).properties["port1.state"] = "1: DOWN";
    device_of(target).properties["port1.phys_state"] = "3: Disabled";
    return {};
}

template <typename Change>
void change_all(Parts& parts, DeviceKind kind, Change change) {
    for (Device& device : parts.devices)
        if (device.kind == kind) change(device);
}

void refuse_all_peers(Parts& parts, const PeerAccess& refusal) {
    parts.peers.clear();
    for (const Device& from : parts.devices) {
        for (const Device& to : parts.devices) {
            if (from.kind == DeviceKind::gpu && to.kind == DeviceKind::gpu && from.index != to.index)
                parts.peers.push_back({from.index, to.index, refusal});
        }
    }
}

PeerAccess not_supported() {
    return peer_access_of(driver::P2pStatus::not_supported, driver::P2pStatus::not_supported, false);
}

void remove_nvlinks(Parts& parts) {
    std::erase_if(parts.links, [](const Link& link) { return link.kind == LinkKind::nvlink; });
}

Result<void> acs(const Target& target) {
    change_all(target.parts, DeviceKind::pcie_switch, [](Device& device) { device.acs_redirect = true; });
    return {};
}

Result<void> driver_missing(const Target& target) {
    target.parts.properties["nvidia_driver"] = no_driver;
    remove_nvlinks(target.parts);
    refuse_all_peers(target.parts,
                     {false, false, "no NVIDIA driver is loaded", "install the driver, and load it"});
    return {};
}

Result<void> fabric_down(const Target& target) {
    remove_nvlinks(target.parts);
    change_all(target.parts, DeviceKind::gpu,
               [](Device& device) { device.properties["fabric"] = "not started"; });
    refuse_all_peers(target.parts, not_supported());
    return {};
}

Result<void> mig(const Target& target) {
    remove_nvlinks(target.parts);
    change_all(target.parts, DeviceKind::gpu, [](Device& device) { device.properties["mig"] = "on"; });
    refuse_all_peers(target.parts, not_supported());
    return {};
}

Result<void> confidential(const Target& target) {
    target.parts.properties["confidential_computing"] = "on";
    refuse_all_peers(target.parts, not_supported());
    return {};
}

Result<void> small_bar(const Target& target) {
    change_all(target.parts, DeviceKind::gpu,
               [](Device& device) { device.properties["bar1"] = std::to_string(Bytes{256} << 20); });
    return {};
}

// Of the whole machine: a word. Of a device: "gpu:N.NAME" or "nic:NAME.NAME", with "=NUMBER" where `max` > 0.
struct Fault {
    std::string_view name;
    std::string_view kind;  // "gpu", "nic", "gpu or nic"; empty: the machine
    int min;
    int max;
    std::string_view words;
    Result<void> (*put)(const Target& target);
};
constexpr std::array known_faults = {
    Fault{"width", "gpu or nic", 1, 16, "its PCIe link has fewer lanes", width},
    Fault{"gen", "gpu or nic", 1, 6, "its PCIe link is of an older generation", generation},
    Fault{"nvlinks", "gpu", 0, 36, "only so many of its NVLinks are up", fewer_nvlinks},
    Fault{"memory", "gpu", 1, 1 << 20, "it shows so many GiB of memory", memory},
    Fault{"replays", "gpu", 1, 1000000000, "its PCIe link sent so many packets again", replays},
    Fault{"lost", "gpu", 0, 0, "it is in PCI, and the driver has lost it", lost},
    Fault{"rate", "nic", 1, 1600, "its port runs at so many Gb/s", rate},
    Fault{"down", "nic", 0, 0, "its port is down", port_down},
    Fault{"acs", "", 0, 0, "PCIe switches send peer traffic up to the host", acs},
    Fault{"no-driver", "", 0, 0, "no NVIDIA driver is loaded", driver_missing},
    Fault{"fabric-down", "", 0, 0, "the Fabric Manager does not run", fabric_down},
    Fault{"nic-rate", "", 0, 0, "a network card runs at half its rate", first_rate},
    Fault{"mig", "", 0, 0, "MIG is on", mig},
    Fault{"confidential", "", 0, 0, "confidential computing is on", confidential},
    Fault{"bar1", "", 0, 0, "the GPUs show 256 MiB of their memory on PCIe", small_bar},
};

std::string example(const Fault& fault) {
    const std::string device = fault.kind == "nic" ? "nic:mlx5_0." : fault.kind.empty() ? "" : "gpu:3.";
    return fmt::format("{}{}{}", device, fault.name, fault.max > 0 ? "=N" : "");
}

Error bad_fault(std::string_view text, const std::string& why, const std::string& hint) {
    return Error{ErrorCode::invalid_argument, fmt::format("'{}' is no fault: {}", text, why), "fault", hint};
}

Error unknown_fault(std::string_view text, std::string_view name) {
    std::vector<std::string> names;
    for (const Fault& fault : known_faults) names.emplace_back(fault.name);
    return bad_fault(text, "there is none of that name",
                     base::did_you_mean(name, names, "the faults are: " + list_of_faults()));
}

Result<DeviceId> find_device(const Parts& parts, std::string_view name) {
    for (DeviceId id = 0; id < parts.devices.size(); ++id)
        if (parts.devices[id].name == name) return id;
    return Error{ErrorCode::not_found, fmt::format("{} has no {}", parts.name, name), "fault",
                 fmt::format("sidestep topo --machine {} lists its devices", parts.name)};
}

}  // namespace

std::string list_of_faults() {
    std::string all;
    for (const Fault& fault : known_faults)
        all += fmt::format("{}{} ({})", all.empty() ? "" : ", ", example(fault), fault.words);
    return all;
}

Result<void> put_fault(Topology::Parts& parts, std::string_view text) {
    const auto equals = text.find('=');
    const std::string_view left = text.substr(0, equals);
    const auto dot = left.rfind('.');
    const std::string_view device = dot == std::string_view::npos ? "" : left.substr(0, dot);
    const std::string_view name = dot == std::string_view::npos ? left : left.substr(dot + 1);
    const auto* const fault = std::find_if(known_faults.begin(), known_faults.end(),
                                           [&](const Fault& known) { return known.name == name; });
    if (fault == known_faults.end()) return unknown_fault(text, name);
    const std::string_view kind = device.substr(0, device.find(':'));
    if (fault->kind.empty() != device.empty() || fault->kind.find(kind) == std::string_view::npos)
        return bad_fault(text,
                         fmt::format("{} is of {}", name, fault->kind.empty() ? "the machine" : fault->kind),
                         "write it as " + example(*fault));
    Target target{parts};
    const std::string_view number = equals == std::string_view::npos ? "" : text.substr(equals + 1);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), target.number);
    const bool told = error == std::errc() && end == number.data() + number.size();
    if (fault->max == 0 ? equals != std::string_view::npos
                        : !told || target.number < fault->min || target.number > fault->max)
        return bad_fault(text,
                         fault->max == 0
                             ? "it takes no number"
                             : fmt::format("it takes a number from {} to {}", fault->min, fault->max),
                         "write it as " + example(*fault));
    if (!device.empty()) {
        SIDESTEP_TRY(target.device, find_device(parts, device));
    }
    return fault->put(target);
}

}  // namespace sidestep::topology
