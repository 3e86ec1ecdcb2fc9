#include "topology/device_match.hpp"

#include <fmt/format.h>

#include <string>
#include <unordered_map>

namespace sidestep::topology {

namespace {

class Matcher {
public:
    Matcher(const Topology& before, const Topology& after) : before_(before), after_(after) {
        match_.after.resize(before.devices().size());
        match_.before.resize(after.devices().size());
    }

    DeviceMatch run() {
        const auto bus_id = [](const Device& device) {
            return device.bus_id.empty() ? std::string() : fmt::format("{} {}", device.node, device.bus_id);
        };
        const auto name = [](const Device& device) { return device.name; };
        match([](DeviceKind kind) { return is_numbered(kind); }, bus_id);
        match([](DeviceKind) { return true; }, name);
        match([](DeviceKind kind) { return !is_numbered(kind); }, bus_id);
        return std::move(match_);
    }

private:
    // Pairs what is not paired yet and has the same key; an empty key, and one that two devices have, pairs
    // nothing.
    template <typename Wanted, typename Key>
    void match(const Wanted& wanted, const Key& key) {
        struct Found {
            std::optional<DeviceId> before;
            std::optional<DeviceId> after;
            bool twice = false;
        };
        std::unordered_map<std::string, Found> found;
        const auto look = [&](const Topology& topology, const auto& taken, auto side) {
            for (DeviceId id = 0; id < topology.devices().size(); ++id) {
                const Device& device = topology.device(id);
                if (taken[id] || !wanted(device.kind)) continue;
                const std::string words = key(device);
                if (words.empty()) continue;
                Found& entry = found[fmt::format("{} {}", static_cast<int>(device.kind), words)];
                entry.twice = entry.twice || (entry.*side).has_value();
                entry.*side = id;
            }
        };
        look(before_, match_.after, &Found::before);
        look(after_, match_.before, &Found::after);
        for (const auto& [words, entry] : found) {
            if (entry.twice || !entry.before || !entry.after) continue;
            match_.after[*entry.before] = entry.after;
            match_.before[*entry.after] = entry.before;
        }
    }

    const Topology& before_;
    const Topology& after_;
    DeviceMatch match_;
};

}  // namespace

bool is_numbered(DeviceKind kind) {
    return kind == DeviceKind::gpu || kind == DeviceKind::host_bridge || kind == DeviceKind::pcie_switch ||
           kind == DeviceKind::nvswitch;
}

DeviceMatch match_devices(const Topology& before, const Topology& after) {
    return Matcher(before, after).run();
}

}  // namespace sidestep::topology
