#include "topology/draw/scene.hpp"

#include <cmath>

namespace sidestep::topology::draw {

double stroke_width(double gb_per_s) {
    constexpr double thinnest = 1.2;
    constexpr double widest = 12;
    return std::clamp(0.4 * std::sqrt(std::max(gb_per_s, 0.0)), thinnest, widest);
}

Ink ink_of(PathClass kind) {
    switch (kind) {
        case PathClass::nvlink:
            return Ink::nvlink;
        case PathClass::xgmi:
            return Ink::xgmi;
        case PathClass::pix:
            return Ink::pix;
        case PathClass::pxb:
            return Ink::pxb;
        case PathClass::phb:
            return Ink::phb;
        case PathClass::node:
            return Ink::node;
        case PathClass::sys:
            return Ink::sys;
        case PathClass::net:
            return Ink::net;
        case PathClass::self:
            break;
    }
    return Ink::none;
}

const char* ink_name(Ink ink) {
    switch (ink) {
        case Ink::nvlink:
            return "NV#";
        case Ink::xgmi:
            return "XGMI";
        case Ink::c2c:
            return "C2C";
        case Ink::pix:
            return "PIX";
        case Ink::pxb:
            return "PXB";
        case Ink::phb:
            return "PHB";
        case Ink::node:
            return "NODE";
        case Ink::sys:
            return "SYS";
        case Ink::net:
            return "NET";
        case Ink::none:
            break;
    }
    return "";
}

// Shorter than class_words(): a legend stands beside other things.
const char* ink_words(Ink ink) {
    switch (ink) {
        case Ink::nvlink:
            return "NVLink all the way, # links side by side";
        case Ink::xgmi:
            return "Infinity Fabric between GPUs";
        case Ink::c2c:
            return "NVLink-C2C between a CPU and its GPU";
        case Ink::pix:
            return "PCIe, at most one switch";
        case Ink::pxb:
            return "PCIe, several switches, no host bridge";
        case Ink::phb:
            return "PCIe, through one host bridge";
        case Ink::node:
            return "several host bridges, one NUMA node";
        case Ink::sys:
            return "across NUMA nodes, or not known";
        case Ink::net:
            return "in different machines, by the network";
        case Ink::none:
            break;
    }
    return "";
}

Ink ink_of_link(LinkKind kind) {
    switch (kind) {
        case LinkKind::nvlink:
            return Ink::nvlink;
        case LinkKind::xgmi:
            return Ink::xgmi;
        case LinkKind::c2c:
            return Ink::c2c;
        case LinkKind::socket:
            return Ink::sys;
        case LinkKind::network:
            return Ink::net;
        case LinkKind::pcie:
            break;
    }
    return Ink::pix;
}

Ink ink_of_link_up(const Topology& topology, DeviceId below, DeviceId above, LinkKind kind) {
    if (kind != LinkKind::pcie) return ink_of_link(kind);
    switch (topology.device(above).kind) {
        case DeviceKind::cpu:
            return Ink::node;
        case DeviceKind::host_bridge:
            return Ink::phb;
        default:
            return topology.device(below).kind == DeviceKind::pcie_switch ? Ink::pxb : Ink::pix;
    }
}

}  // namespace sidestep::topology::draw
