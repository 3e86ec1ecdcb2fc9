// What changed between two machines, or between two looks at one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <sidestep/api.h>
#include <sidestep/topology.hpp>

namespace sidestep {

enum class DifferenceKind {
    device_gone,     // there before, not after
    device_new,      // there after, not before
    device_changed,  // `aspect` of a device: "name", "index", "model", "bus_id", "memory", ...
    link_gone,       // between two devices that are both still there
    link_new,
    link_changed,      // `aspect`: "width", "gb_per_s", "latency_us"
    class_changed,     // of a pair of GPUs, network cards or drives: "NV18" to "SYS"
    peer_changed,      // `aspect` of the access from one GPU to another: "allowed", "atomics", "reason"
    property_changed,  // `aspect` is the name; an empty `before` or `after` says that it was not there
};

// "device-gone", ...: as JSON has it.
SIDESTEP_API std::string_view to_string(DifferenceKind kind);

struct Difference {
    DifferenceKind kind = DifferenceKind::device_changed;
    std::string what;    // "gpu:3", "gpu:3 - pcie_switch:1", "gpu:0 -> gpu:1"; "machine" for its properties.
                         // By the names before, or the new ones of what was not there before
    std::string aspect;  // which side of it, where it has several; else empty
    std::string before;  // as text; empty where there was nothing
    std::string after;
    bool worse = false;  // something was lost or became slower

    bool operator==(const Difference&) const = default;
};

// "gpu:3 is gone (NVIDIA H200, 0000:43:00.0)", "gpu:0 - pcie_switch:0: width 16 -> 8, worse".
SIDESTEP_API std::string to_string(const Difference& difference);

// Everything that differs, devices first; nothing where both are the same but for their names and notes.
//
// GPUs, bridges and switches, which are numbered as they are found, are the same where their bus ids are
// equal, else where their names are; other devices where their names are equal, else their bus ids. So a
// machine whose GPUs were renumbered shows new names, not new GPUs. Links, pairs and peer access are compared
// between devices that are in both. Pairs are compared within each machine of up to 256 GPUs, cards and
// drives, and across machines where there are up to 64 in all; the rest of the work is linear (less the
// sorting) in what both have.
SIDESTEP_API std::vector<Difference> diff(const Topology& before, const Topology& after);

}  // namespace sidestep
