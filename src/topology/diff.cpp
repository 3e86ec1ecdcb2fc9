// What changed between two topologies: first which device is which, then everything that is known of both.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <sidestep/topology_diff.hpp>

#include "topology/device_match.hpp"
#include "topology/outline.hpp"

namespace sidestep {

namespace {

using topology::DeviceMatch;

// Rates that differ by less are the same: files are written with fewer digits than are computed with.
constexpr double same_rate = 1e-3;
constexpr std::size_t max_across_machines = 64;
constexpr std::size_t max_in_a_machine = 256;

bool same(double a, double b) {
    return std::abs(a - b) <= same_rate * std::max(std::abs(a), std::abs(b));
}

// "NVIDIA H200, 0000:43:00.0"
std::string words_of(const Device& device) {
    std::string words = device.model;
    if (!device.bus_id.empty()) words += (words.empty() ? "" : ", ") + device.bus_id;
    return words.empty() ? std::string(to_string(device.kind)) : words;
}

// "79.6 GiB", or where that does not tell two apart, the bytes.
std::string memory_words(const Device& device, bool rounded) {
    return rounded ? format_bytes(device.memory) : fmt::format("{} B", device.memory);
}

// A property of which less is worse: "gen5 x16", "17 of 18". Of a link as it runs the lanes alone: idle devices slow down.
bool lost(const std::string& name, const std::string& before, const std::string& after) {
    const auto rate_of = [&](std::string words) {
        if (name == "pcie_now" && words.starts_with("gen")) words.replace(0, words.find(' '), "gen1");
        return topology::rate_of_pcie_words(words);
    };
    const auto a = rate_of(before);
    const auto b = rate_of(after);
    if (a && b) return *b < *a;
    if (before.find(" of ") != std::string::npos && after.find(" of ") != std::string::npos)
        return std::atoi(after.c_str()) < std::atoi(before.c_str());
    return false;
}

// All links of one kind between two devices, taken together.
struct Bundle {
    DeviceId a = 0;  // by the devices before, the lower id first
    DeviceId b = 0;
    LinkKind kind = LinkKind::pcie;
    int width = 0;
    double gb_per_s = 0;
    double latency_us = 0;

    auto key() const { return std::tuple(a, b, kind); }
};

class Comparison {
public:
    Comparison(const Topology& before, const Topology& after)
        : before_(before), after_(after), match_(topology::match_devices(before, after)) {}

    std::vector<Difference> run() {
        compare_devices();
        compare_links();
        compare_pairs();
        compare_properties();
        return std::move(found_);
    }

private:
    void report(DifferenceKind kind, std::string what, std::string aspect, std::string before,
                std::string after, bool worse) {
        found_.push_back(
            {kind, std::move(what), std::move(aspect), std::move(before), std::move(after), worse});
    }

    void compare_devices() {
        for (DeviceId id = 0; id < before_.devices().size(); ++id) {
            const Device& old = before_.device(id);
            if (!match_.after[id])
                report(DifferenceKind::device_gone, old.name, "", words_of(old), "", true);
            else
                compare_device(old, after_.device(*match_.after[id]));
        }
        for (DeviceId id = 0; id < after_.devices().size(); ++id) {
            const Device& device = after_.device(id);
            if (!match_.before[id])
                report(DifferenceKind::device_new, device.name, "", "", words_of(device), false);
        }
    }

    void compare_device(const Device& old, const Device& now) {
        const auto changed = [&](const char* aspect, const std::string& a, const std::string& b, bool worse) {
            if (a != b) report(DifferenceKind::device_changed, old.name, aspect, a, b, worse);
        };
        // Bridges and switches have no names of their own, only numbers in the order they were found in.
        if (!topology::is_numbered(old.kind) || old.kind == DeviceKind::gpu) {
            changed("name", old.name, now.name, false);
            if (old.name == now.name)
                changed("index", std::to_string(old.index), std::to_string(now.index), false);
        }
        changed("model", old.model, now.model, false);
        changed("bus_id", old.bus_id, now.bus_id, false);
        changed("numa_node", std::to_string(old.numa_node), std::to_string(now.numa_node), false);
        if (old.memory != now.memory) {
            const bool told = format_bytes(old.memory) != format_bytes(now.memory);
            report(DifferenceKind::device_changed, old.name, "memory", memory_words(old, told),
                   memory_words(now, told), now.memory < old.memory);
        }
        changed("node", std::to_string(old.node), std::to_string(now.node), false);
        changed("acs_redirect", old.acs_redirect ? "yes" : "no", now.acs_redirect ? "yes" : "no",
                now.acs_redirect);
    }

    // The links between devices that both have, by the ids before; sorted.
    std::vector<Bundle> bundles(const Topology& topology, bool after) const {
        std::vector<Bundle> all;
        for (const Link& link : topology.links()) {
            const auto a = after ? match_.before[link.a] : std::optional(link.a);
            const auto b = after ? match_.before[link.b] : std::optional(link.b);
            if (!a || !b || (!after && (!match_.after[*a] || !match_.after[*b]))) continue;
            all.push_back(
                {std::min(*a, *b), std::max(*a, *b), link.kind, link.width, link.gb_per_s, link.latency_us});
        }
        std::stable_sort(all.begin(), all.end(),
                         [](const Bundle& x, const Bundle& y) { return x.key() < y.key(); });
        std::vector<Bundle> merged;
        for (const Bundle& bundle : all) {
            if (merged.empty() || merged.back().key() != bundle.key()) {
                merged.push_back(bundle);
                continue;
            }
            merged.back().width += bundle.width;
            merged.back().gb_per_s += bundle.gb_per_s;
            merged.back().latency_us = std::max(merged.back().latency_us, bundle.latency_us);
        }
        return merged;
    }

    std::string pair_name(DeviceId a, DeviceId b, const char* between) const {
        return before_.device(a).name + between + before_.device(b).name;
    }

    static std::string words_of(const Bundle& bundle) {
        const Link link{bundle.a, bundle.b, bundle.kind, bundle.width, bundle.gb_per_s, bundle.latency_us};
        return topology::link_words(link) + ", " + format_rate(bundle.gb_per_s);
    }
    static std::string words_of(const Device& device) { return sidestep::words_of(device); }

    void compare_links() {
        const auto old = bundles(before_, false);
        const auto now = bundles(after_, true);
        auto b = now.begin();
        const auto fresh = [&](const Bundle& bundle) {
            report(DifferenceKind::link_new, pair_name(bundle.a, bundle.b, " - "), "", "", words_of(bundle),
                   false);
        };
        for (const Bundle& bundle : old) {
            while (b != now.end() && b->key() < bundle.key()) fresh(*b++);
            if (b != now.end() && b->key() == bundle.key())
                compare_link(bundle, *b++);
            else
                report(DifferenceKind::link_gone, pair_name(bundle.a, bundle.b, " - "), "", words_of(bundle),
                       "", true);
        }
        while (b != now.end()) fresh(*b++);
    }

    void compare_link(const Bundle& old, const Bundle& now) {
        const std::string what = pair_name(old.a, old.b, " - ");
        if (old.width != now.width)
            report(DifferenceKind::link_changed, what, "width", std::to_string(old.width),
                   std::to_string(now.width), now.width < old.width);
        if (!same(old.gb_per_s, now.gb_per_s))
            report(DifferenceKind::link_changed, what, "gb_per_s", fmt::format("{:.6g}", old.gb_per_s),
                   fmt::format("{:.6g}", now.gb_per_s), now.gb_per_s < old.gb_per_s);
        if (!same(old.latency_us, now.latency_us))
            report(DifferenceKind::link_changed, what, "latency_us", fmt::format("{:.6g}", old.latency_us),
                   fmt::format("{:.6g}", now.latency_us), now.latency_us > old.latency_us);
    }

    void compare_pairs() {
        std::map<int, std::vector<DeviceId>> by_node;
        std::vector<DeviceId> all;
        for (DeviceId id = 0; id < before_.devices().size(); ++id) {
            if (!topology::is_matrix_kind(before_.device(id).kind) || !match_.after[id]) continue;
            by_node[before_.device(id).node].push_back(id);
            all.push_back(id);
        }
        if (all.size() <= max_across_machines) {
            compare_pairs(all);
            return;
        }
        for (const auto& [node, ids] : by_node)
            if (ids.size() <= max_in_a_machine) compare_pairs(ids);
    }

    void compare_pairs(const std::vector<DeviceId>& ids) {
        for (std::size_t i = 0; i < ids.size(); ++i)
            for (std::size_t j = i + 1; j < ids.size(); ++j) compare_class(ids[i], ids[j]);
        for (const DeviceId a : ids) {
            for (const DeviceId b : ids) {
                const bool gpus =
                    before_.device(a).kind == DeviceKind::gpu && before_.device(b).kind == DeviceKind::gpu;
                if (a != b && gpus) compare_access(a, b);
            }
        }
    }

    void compare_class(DeviceId a, DeviceId b) {
        const PairClass old = before_.pair_class(a, b);
        const PairClass now = after_.pair_class(*match_.after[a], *match_.after[b]);
        if (old == now) return;
        const bool worse = now.kind > old.kind || (now.kind == old.kind && now.links < old.links);
        report(DifferenceKind::class_changed, pair_name(a, b, " - "), "", with_links(old), with_links(now),
               worse);
    }

    // XGMI has no number of links in it.
    static std::string with_links(const PairClass& pair) {
        std::string words = to_string(pair);
        if (pair.kind == PathClass::xgmi) words += fmt::format(" x{}", pair.links);
        return words;
    }

    void compare_access(DeviceId a, DeviceId b) {
        const PeerAccess old = before_.peer_access(before_.device(a).index, before_.device(b).index);
        const PeerAccess now =
            after_.peer_access(after_.device(*match_.after[a]).index, after_.device(*match_.after[b]).index);
        const std::string what = pair_name(a, b, " -> ");
        const auto changed = [&](const char* aspect, bool from, bool to) {
            if (from != to)
                report(DifferenceKind::peer_changed, what, aspect, from ? "yes" : "no", to ? "yes" : "no",
                       from && !to);
        };
        changed("allowed", old.allowed, now.allowed);
        changed("atomics", old.atomics, now.atomics);
        // A reason names the GPUs, which may have got other numbers.
        const bool renamed = before_.device(a).name != after_.device(*match_.after[a]).name ||
                             before_.device(b).name != after_.device(*match_.after[b]).name;
        if (!old.allowed && !now.allowed && !renamed && old.reason != now.reason)
            report(DifferenceKind::peer_changed, what, "reason", old.reason, now.reason, false);
    }

    void compare_properties() {
        for (DeviceId id = 0; id < before_.devices().size(); ++id) {
            if (match_.after[id])
                compare_properties(before_.device(id).name, before_.device(id).properties,
                                   after_.device(*match_.after[id]).properties);
        }
        compare_properties("machine", before_.parts().properties, after_.parts().properties);
    }

    void compare_properties(const std::string& what, const Properties& old, const Properties& now) {
        auto b = now.begin();
        const auto fresh = [&] {
            report(DifferenceKind::property_changed, what, b->first, "", b->second, false);
            ++b;
        };
        for (const auto& [name, value] : old) {
            while (b != now.end() && b->first < name) fresh();
            if (b == now.end() || b->first != name) {
                report(DifferenceKind::property_changed, what, name, value, "", false);
                continue;
            }
            if (b->second != value)
                report(DifferenceKind::property_changed, what, name, value, b->second,
                       lost(name, value, b->second));
            ++b;
        }
        while (b != now.end()) fresh();
    }

    const Topology& before_;
    const Topology& after_;
    DeviceMatch match_;
    std::vector<Difference> found_;
};

std::string change_words(const Difference& difference) {
    const auto shown = [](const std::string& value) { return value.empty() ? "nothing" : value; };
    return fmt::format("{} -> {}{}", shown(difference.before), shown(difference.after),
                       difference.worse ? ", worse" : "");
}

}  // namespace

std::string_view to_string(DifferenceKind kind) {
    switch (kind) {
        case DifferenceKind::device_gone:
            return "device-gone";
        case DifferenceKind::device_new:
            return "device-new";
        case DifferenceKind::device_changed:
            return "device-changed";
        case DifferenceKind::link_gone:
            return "link-gone";
        case DifferenceKind::link_new:
            return "link-new";
        case DifferenceKind::link_changed:
            return "link-changed";
        case DifferenceKind::class_changed:
            return "class-changed";
        case DifferenceKind::peer_changed:
            return "peer-changed";
        case DifferenceKind::property_changed:
            return "property-changed";
    }
    return "";
}

std::string to_string(const Difference& difference) {
    switch (difference.kind) {
        case DifferenceKind::device_gone:
            return fmt::format("{} is gone ({})", difference.what, difference.before);
        case DifferenceKind::device_new:
            return fmt::format("{} is new ({})", difference.what, difference.after);
        case DifferenceKind::link_gone:
            return fmt::format("{}: the link is gone ({})", difference.what, difference.before);
        case DifferenceKind::link_new:
            return fmt::format("{}: the link is new ({})", difference.what, difference.after);
        case DifferenceKind::class_changed:
            return fmt::format("{}: {}", difference.what, change_words(difference));
        case DifferenceKind::peer_changed:
            return fmt::format("{}: peer access {} {}", difference.what, difference.aspect,
                               change_words(difference));
        case DifferenceKind::device_changed:
        case DifferenceKind::link_changed:
        case DifferenceKind::property_changed:
            break;
    }
    return fmt::format("{}: {} {}", difference.what, difference.aspect, change_words(difference));
}

std::vector<Difference> diff(const Topology& before, const Topology& after) {
    return Comparison(before, after).run();
}

}  // namespace sidestep
