// What a pointer over a part of a drawing is told, and the short words inside of boxes.
#pragma once

#include <string>

#include "topology/outline.hpp"

namespace sidestep::topology::draw {

// Several lines: name, model, bus id, memory, link, properties.
std::string device_details(const Outline& outline, DeviceId id);
// "gpu:0 - pcie_switch:1: PCIe gen5 x16, 63.0 GB/s, 0.4 us a crossing"
std::string link_details(const Outline& outline, std::uint32_t position);
// "gpu:0 - gpu:5: NV18, 396 GB/s expected; NVLink (18 links through NVSwitch); peer access: yes"
std::string pair_details(const Outline& outline, DeviceId a, DeviceId b);

// "gen5 x16": the PCIe link up, or "C2C"; empty without one.
std::string short_link(const Outline& outline, DeviceId id);
// "only x8 of x16", "only gen1 of gen5", "only gen1 x8 of gen5 x16": pcie_shortfall() for a small box.
std::string short_shortfall(const Device& device);
// "400 Gb/s": the rate of a network card, from its properties or its link to the network; may be empty.
std::string card_rate(const Outline& outline, DeviceId id);

}  // namespace sidestep::topology::draw
