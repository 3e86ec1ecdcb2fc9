#include "topology/link_rates.hpp"

#include <array>
#include <cmath>
#include <cstddef>

namespace sidestep::topology {

namespace {

struct Generation {
    double gigatransfers;  // a second and lane, one bit each
    double coding;         // the part of the bits that is not line coding
};

constexpr std::array<Generation, 6> generations = {{
    {2.5, 8.0 / 10},
    {5, 8.0 / 10},
    {8, 128.0 / 130},
    {16, 128.0 / 130},
    {32, 128.0 / 130},
    {64, 242.0 / 256},
}};

}  // namespace

double pcie_gb_per_s(int generation, int lanes) {
    if (generation < 1 || generation > static_cast<int>(generations.size())) return 0;
    const Generation& at = generations[static_cast<std::size_t>(generation - 1)];
    return at.gigatransfers * at.coding / 8 * lanes;
}

std::optional<int> pcie_generation(double gigatransfers) {
    for (std::size_t i = 0; i < generations.size(); ++i) {
        if (std::abs(generations[i].gigatransfers - gigatransfers) < 0.01) return static_cast<int>(i) + 1;
    }
    return std::nullopt;
}

std::optional<int> pcie_generation_of(double gb_per_s, int lanes) {
    for (int generation = 1; generation <= static_cast<int>(generations.size()); ++generation) {
        const double expected = pcie_gb_per_s(generation, lanes);
        if (expected > 0 && std::abs(gb_per_s / expected - 1) < 0.01) return generation;
    }
    return std::nullopt;
}

namespace {

// Published figures as parts of what the links signal: docs/topology.md, the table of the section Classes.
struct Reached {
    double each;  // GB/s of one NVLink
    double part;
};
constexpr std::array<Reached, 5> nvlink_generations = {{
    {20, 36.4 / 40},             // 1: two of a P100
    {25.78125, 47.9 / 51.5625},  // 2: two of a V100
    {25, 270.0 / 300},           // 3: A100
    {26.5625, 396 / 478.1},      // 4: H200, measured here
    {53.125, 770 / 956.25},      // 5: GB200
}};
constexpr std::array<double, 6> pcie_parts = {12.15 / 15.754, 12.15 / 15.754, 12.15 / 15.754,
                                              26.3 / 31.508,  55.5 / 63.015,  55.5 / 63.015};

}  // namespace

double reached_part(const Link& link) {
    if (link.kind == LinkKind::nvlink) {
        for (const Reached& generation : nvlink_generations)
            if (std::abs(link.gb_per_s / link.width / generation.each - 1) < 0.01) return generation.part;
    }
    if (link.kind == LinkKind::pcie) {
        const auto generation = pcie_generation_of(link.gb_per_s, link.width);
        if (generation) return pcie_parts[static_cast<std::size_t>(*generation - 1)];
    }
    return reached_part(link.kind);
}

double reached_part(LinkKind kind) {
    switch (kind) {
        case LinkKind::nvlink:
            return 396 / 478.1;
        case LinkKind::xgmi:
            return 48.0 / 64;
        case LinkKind::network:
            return 0.97;
        case LinkKind::pcie:
        case LinkKind::c2c:
        case LinkKind::socket:
            break;
    }
    return 55.5 / 63.015;
}

}  // namespace sidestep::topology
