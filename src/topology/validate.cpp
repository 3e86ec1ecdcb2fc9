#include "topology/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/printable.hpp"
#include "base/try.hpp"

namespace sidestep::topology {

namespace {

// Far above anything built; what lies beyond is a mistake in a file, not a machine.
constexpr int max_lanes = 65536;
constexpr double max_gb_per_s = 1e7;
constexpr double max_latency_us = 1e9;
constexpr int highest_index = 1 << 30;
constexpr std::size_t longest_name = 256;

Error wrong(std::string where, std::string message, std::string hint = "") {
    return Error{ErrorCode::invalid_argument, std::move(message), std::move(where), std::move(hint)};
}

bool is_plain(std::string_view name) {
    for (const char c : name) {
        if (static_cast<unsigned char>(c) <= ' ' || c == 0x7f) return false;
    }
    return true;
}

Result<void> check_device(const Device& device, std::size_t position) {
    // Made on failure only: a cluster has a million devices.
    const auto where = [position](const char* member) {
        return fmt::format("devices[{}].{}", position, member);
    };
    if (device.name.empty()) return wrong(where("name"), "a device has no name", "name it like gpu:0");
    if (device.name.size() > longest_name || !is_plain(device.name)) {
        return wrong(where("name"),
                     fmt::format("the name of {}:{} is too long, or holds blanks or control characters",
                                 to_string(device.kind), device.index),
                     fmt::format("use up to {} printable characters", longest_name));
    }
    if (device.index < 0 || device.index > highest_index) {
        return wrong(where("index"), fmt::format("{} has index {}", device.name, device.index),
                     fmt::format("an index lies between 0 and {}", highest_index));
    }
    if (device.numa_node < -1 || device.numa_node > highest_index) {
        return wrong(where("numa_node"), fmt::format("{} is on NUMA node {}", device.name, device.numa_node),
                     "use -1 where the node is not known");
    }
    if (device.node < -1 || device.node > highest_index) {
        return wrong(where("node"), fmt::format("{} is in machine {}", device.name, device.node),
                     "machines of a cluster count from 0; -1 stands for what they share");
    }
    return {};
}

// Names and indices are compared in sorted order: a table of a cluster's devices would be larger than the
// processor's caches, and take longer than everything else here.
struct Key {
    std::uint64_t key;
    std::uint32_t position;
};

// The first device that is the same as an earlier one, and that one: equal in key, and neither `before` the
// other. Keys may collide (they are hashes of names).
template <typename Before>
std::optional<std::pair<std::size_t, std::size_t>> first_twins(std::vector<Key> keys, Before before) {
    std::sort(keys.begin(), keys.end(), [&](const Key& a, const Key& b) {
        if (a.key != b.key) return a.key < b.key;
        if (before(a.position, b.position)) return true;
        return !before(b.position, a.position) && a.position < b.position;
    });
    std::optional<std::pair<std::size_t, std::size_t>> first;
    for (std::size_t i = 1; i < keys.size(); ++i) {
        if (keys[i - 1].key != keys[i].key || before(keys[i - 1].position, keys[i].position)) continue;
        if (!first || keys[i].position < first->first) first = {keys[i].position, keys[i - 1].position};
    }
    return first;
}

Result<void> check_devices(const std::vector<Device>& devices) {
    if (devices.size() > static_cast<std::size_t>(highest_index)) {
        return wrong("devices", fmt::format("{} devices are too many", devices.size()));
    }
    std::vector<Key> names;
    std::vector<Key> indices;
    names.reserve(devices.size());
    indices.reserve(devices.size());
    for (std::uint32_t i = 0; i < devices.size(); ++i) {
        const Device& device = devices[i];
        SIDESTEP_CHECK(check_device(device, i));
        names.push_back({std::hash<std::string_view>{}(device.name), i});
        indices.push_back(
            {(static_cast<std::uint64_t>(device.kind) << 32) | static_cast<std::uint32_t>(device.index), i});
    }
    const auto by_name = [&](std::uint32_t a, std::uint32_t b) { return devices[a].name < devices[b].name; };
    if (const auto twins = first_twins(std::move(names), by_name)) {
        return wrong(
            fmt::format("devices[{}].name", twins->first),
            fmt::format("the name {} is taken by devices[{}]", devices[twins->first].name, twins->second));
    }
    const auto never = [](std::uint32_t, std::uint32_t) { return false; };
    if (const auto twins = first_twins(std::move(indices), never)) {
        const Device& device = devices[twins->first];
        return wrong(fmt::format("devices[{}].index", twins->first),
                     fmt::format("{} and {} are both {} number {}", devices[twins->second].name, device.name,
                                 to_string(device.kind), device.index));
    }
    return {};
}

Result<void> check_link(const Link& link, std::size_t position, const std::vector<Device>& devices) {
    const auto where = [position](std::string_view member) {
        return fmt::format("links[{}]{}", position, member);
    };
    for (const auto& [end, id] : {std::pair{"a", link.a}, std::pair{"b", link.b}}) {
        if (id >= devices.size()) {
            return wrong(
                where(fmt::format(".{}", end)),
                fmt::format("the link ends at device {}, and there are only {}", id, devices.size()));
        }
    }
    const auto ends = [&] { return devices[link.a].name + " to " + devices[link.b].name; };
    if (link.a == link.b)
        return wrong(where(""), fmt::format("a link joins {} to itself", devices[link.a].name));
    if (link.width < 1 || link.width > max_lanes) {
        return wrong(where(".width"), fmt::format("the link {} has width {}", ends(), link.width),
                     fmt::format("a width lies between 1 and {}", max_lanes));
    }
    if (!std::isfinite(link.gb_per_s) || link.gb_per_s <= 0 || link.gb_per_s > max_gb_per_s) {
        return wrong(where(".gb_per_s"), fmt::format("the link {} carries {} GB/s", ends(), link.gb_per_s),
                     "a rate is above 0; it counts 10^9 bytes a second, one direction, the whole bundle");
    }
    if (!std::isfinite(link.latency_us) || link.latency_us < 0 || link.latency_us > max_latency_us) {
        return wrong(where(".latency_us"), fmt::format("the link {} takes {} us", ends(), link.latency_us),
                     "a latency is 0 or above, in microseconds");
    }
    return {};
}

Result<void> check_peers(const Topology::Parts& parts) {
    std::set<int> gpus;
    for (const Device& device : parts.devices) {
        if (device.kind == DeviceKind::gpu) gpus.insert(device.index);
    }
    std::set<std::pair<int, int>> pairs;
    for (std::size_t i = 0; i < parts.peers.size(); ++i) {
        const auto& peer = parts.peers[i];
        const std::string where = fmt::format("peers[{}]", i);
        for (const auto& [end, gpu] : {std::pair{"from", peer.from}, std::pair{"to", peer.to}}) {
            if (gpus.count(gpu) == 0) {
                return wrong(where + "." + end,
                             fmt::format("peer access names gpu:{}, which does not exist", gpu));
            }
        }
        if (peer.from == peer.to)
            return wrong(where, fmt::format("gpu:{} is named as its own peer", peer.from));
        if (!pairs.emplace(peer.from, peer.to).second) {
            return wrong(
                where, fmt::format("peer access from gpu:{} to gpu:{} is listed twice", peer.from, peer.to));
        }
    }
    return {};
}

}  // namespace

void make_printable(Topology::Parts& parts) {
    // Of names that differ in what cannot be printed the first stays.
    const auto each = [](Properties& properties) {
        Properties printable;
        for (auto& [name, value] : properties) {
            std::string shown = name;
            base::make_printable(shown);
            base::make_printable(value);
            printable.emplace(std::move(shown), std::move(value));
        }
        properties = std::move(printable);
    };
    base::make_printable(parts.name);
    each(parts.properties);
    for (std::string& note : parts.notes) base::make_printable(note);
    for (Device& device : parts.devices) {
        base::make_printable(device.name);
        base::make_printable(device.model);
        base::make_printable(device.bus_id);
        each(device.properties);
    }
    for (Topology::Parts::Peer& peer : parts.peers) {
        base::make_printable(peer.access.reason);
        base::make_printable(peer.access.remedy);
    }
}

Result<void> validate(const Topology::Parts& parts) {
    SIDESTEP_CHECK(check_devices(parts.devices));
    for (std::size_t i = 0; i < parts.links.size(); ++i)
        SIDESTEP_CHECK(check_link(parts.links[i], i, parts.devices));
    return check_peers(parts);
}

}  // namespace sidestep::topology
