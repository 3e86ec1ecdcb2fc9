// What tests of built-in machines ask about.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <sidestep/topology.hpp>

namespace sidestep {

inline Topology built_in(const char* name) {
    return Topology::model(name).value();
}

inline int count(const Topology& machine, DeviceKind kind) {
    const auto same = [kind](const Device& device) { return device.kind == kind; };
    return static_cast<int>(std::count_if(machine.devices().begin(), machine.devices().end(), same));
}

// The classes from a GPU to all devices of a kind, in the order of their indices: "X NV1 NV1 NV2".
inline std::string row(const Topology& machine, int gpu, DeviceKind kind) {
    std::string classes;
    const DeviceId from = machine.find(DeviceKind::gpu, gpu).value();
    for (int index = 0; index < count(machine, kind); ++index) {
        const DeviceId to = machine.find(kind, index).value();
        if (!classes.empty()) classes += ' ';
        classes += to_string(machine.pair_class(from, to));
    }
    return classes;
}

inline std::vector<std::string> rows(const Topology& machine, DeviceKind kind) {
    std::vector<std::string> all;
    for (int gpu = 0; gpu < machine.gpu_count(); ++gpu) all.push_back(row(machine, gpu, kind));
    return all;
}

// The classes between all GPUs of a machine where every pair is the same: "NV18".
inline std::string all_pairs(const Topology& machine) {
    std::string same;
    for (int from = 0; from < machine.gpu_count(); ++from) {
        for (int to = 0; to < machine.gpu_count(); ++to) {
            if (from == to) continue;
            const std::string pair = to_string(
                machine.pair_class(*machine.find(DeviceKind::gpu, from), *machine.find(DeviceKind::gpu, to)));
            if (same.empty()) same = pair;
            if (pair != same) return fmt::format("{} and {}", same, pair);
        }
    }
    return same;
}

// The NVLinks of a GPU: how many, and their rates together.
struct Nvlinks {
    int links = 0;
    double gb_per_s = 0;
};

inline Nvlinks nvlinks(const Topology& machine, int gpu) {
    const DeviceId id = machine.find(DeviceKind::gpu, gpu).value();
    Nvlinks all;
    for (const Link& link : machine.links()) {
        if (link.kind != LinkKind::nvlink && link.kind != LinkKind::xgmi) continue;
        if (link.a != id && link.b != id) continue;
        all.links += link.width;
        all.gb_per_s += link.gb_per_s;
    }
    return all;
}

inline Pair pair(const Topology& machine, const char* from, const char* to) {
    return machine.pair(machine.find(from).value(), machine.find(to).value());
}

}  // namespace sidestep
