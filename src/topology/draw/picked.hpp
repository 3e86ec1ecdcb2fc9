// Which part of a topology is drawn: one machine, within bounds.
#pragma once

#include <map>
#include <vector>

#include "topology/outline.hpp"

namespace sidestep::topology::draw {

// How many of a kind are drawn at most.
constexpr std::size_t max_cpus = 16;
constexpr std::size_t max_bars = 96;  // host bridges and PCIe switches together
constexpr std::size_t max_gpus = 32;
constexpr std::size_t max_cards = 48;
constexpr std::size_t max_drives = 48;
constexpr std::size_t max_nvswitches = 24;

struct Picked {
    int node = 0;                      // -1 where the topology has only what machines share
    std::vector<DeviceId> cpus;        // each with its tree
    std::vector<DeviceId> loose;       // tops of trees without a cpu
    std::vector<DeviceId> gpus;        // all that are drawn, by index
    std::vector<DeviceId> nvswitches;  // the machine's own and those it shares, by index
    std::vector<bool> drawn;           // by device
    std::map<DeviceKind, std::size_t> left_out;

    bool has(DeviceId id) const { return drawn[id]; }
};

// Picks machine `node`, or the first where there is none of that number. What hangs below something that is
// left out is left out too.
Picked pick(const Outline& outline, int node);

// "8 GPUs and 12 drives are not drawn"; empty where everything is.
std::string left_out_words(const Picked& picked);

}  // namespace sidestep::topology::draw
