// Which device of one topology is which of another.
#pragma once

#include <optional>
#include <vector>

#include <sidestep/topology.hpp>

namespace sidestep::topology {

struct DeviceMatch {
    std::vector<std::optional<DeviceId>> after;   // by device before
    std::vector<std::optional<DeviceId>> before;  // by device after
};

// GPUs, bridges and switches: numbered in the order they are found in, so that a name means less than a bus
// id.
bool is_numbered(DeviceKind kind);

// Pairs of one kind, each device at most once; linear, less the hashing.
DeviceMatch match_devices(const Topology& before, const Topology& after);

}  // namespace sidestep::topology
