#include "topology/kinds.hpp"

#include <array>

namespace sidestep {

namespace {

constexpr std::array<DeviceKind, 8> device_kinds = {
    DeviceKind::cpu,      DeviceKind::host_bridge, DeviceKind::pcie_switch, DeviceKind::gpu,
    DeviceKind::nvswitch, DeviceKind::nic,         DeviceKind::drive,       DeviceKind::net_switch,
};
constexpr std::array<LinkKind, 6> link_kinds = {LinkKind::pcie,   LinkKind::nvlink, LinkKind::c2c,
                                                LinkKind::socket, LinkKind::xgmi,   LinkKind::network};
constexpr std::array<PathClass, 9> path_classes = {PathClass::self, PathClass::nvlink, PathClass::xgmi,
                                                   PathClass::pix,  PathClass::pxb,    PathClass::phb,
                                                   PathClass::node, PathClass::sys,    PathClass::net};

template <typename Kind, std::size_t count>
std::optional<Kind> parse(const std::array<Kind, count>& kinds, std::string_view text) {
    for (const Kind kind : kinds) {
        if (to_string(kind) == text) return kind;
    }
    return std::nullopt;
}

template <typename Kind, std::size_t count>
std::string names(const std::array<Kind, count>& kinds) {
    std::string all;
    for (const Kind kind : kinds) {
        if (!all.empty()) all += ", ";
        all += to_string(kind);
    }
    return all;
}

}  // namespace

std::string_view to_string(DeviceKind kind) {
    switch (kind) {
        case DeviceKind::cpu:
            return "cpu";
        case DeviceKind::host_bridge:
            return "host_bridge";
        case DeviceKind::pcie_switch:
            return "pcie_switch";
        case DeviceKind::gpu:
            return "gpu";
        case DeviceKind::nvswitch:
            return "nvswitch";
        case DeviceKind::nic:
            return "nic";
        case DeviceKind::drive:
            return "drive";
        case DeviceKind::net_switch:
            return "net_switch";
    }
    return "unknown";
}

std::string_view to_string(LinkKind kind) {
    switch (kind) {
        case LinkKind::pcie:
            return "pcie";
        case LinkKind::nvlink:
            return "nvlink";
        case LinkKind::c2c:
            return "c2c";
        case LinkKind::socket:
            return "socket";
        case LinkKind::xgmi:
            return "xgmi";
        case LinkKind::network:
            return "network";
    }
    return "unknown";
}

std::string_view to_string(PathClass kind) {
    switch (kind) {
        case PathClass::self:
            return "self";
        case PathClass::nvlink:
            return "nvlink";
        case PathClass::xgmi:
            return "xgmi";
        case PathClass::pix:
            return "pix";
        case PathClass::pxb:
            return "pxb";
        case PathClass::phb:
            return "phb";
        case PathClass::node:
            return "node";
        case PathClass::sys:
            return "sys";
        case PathClass::net:
            return "net";
    }
    return "unknown";
}

namespace topology {

std::optional<DeviceKind> parse_device_kind(std::string_view text) {
    return parse(device_kinds, text);
}
std::optional<LinkKind> parse_link_kind(std::string_view text) {
    return parse(link_kinds, text);
}
std::optional<PathClass> parse_path_class(std::string_view text) {
    return parse(path_classes, text);
}
std::string device_kind_names() {
    return names(device_kinds);
}
std::string link_kind_names() {
    return names(link_kinds);
}
std::string path_class_names() {
    return names(path_classes);
}

}  // namespace topology
}  // namespace sidestep
