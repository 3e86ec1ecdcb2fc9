#include "topology/draw/details.hpp"

#include <fmt/format.h>

#include <cstdlib>

namespace sidestep::topology::draw {

std::string device_details(const Outline& outline, DeviceId id) {
    const Device& device = outline.device(id);
    std::string text = device.name;
    if (!device.model.empty()) text += "\n" + device.model;
    if (!device.bus_id.empty()) text += "\n" + device.bus_id;
    if (device.memory > 0) text += fmt::format("\n{}", format_bytes(device.memory));
    if (device.numa_node >= 0) text += fmt::format("\nNUMA node {}", device.numa_node);
    if (const auto up = outline.link_up(id)) {
        const Link& link = outline.link(*up);
        text += fmt::format("\n{}, {}", link_words(link), format_rate(link.gb_per_s));
    }
    if (device.acs_redirect) text += "\naccess control (ACS) sends traffic between ports to the host bridge";
    constexpr std::size_t longest = 200;
    for (const auto& [name, value] : device.properties)
        text +=
            fmt::format("\n{}: {}", name, value.size() <= longest ? value : value.substr(0, longest) + "...");
    return text;
}

std::string link_details(const Outline& outline, std::uint32_t position) {
    const Link& link = outline.link(position);
    std::string text = fmt::format("{} - {}: {}, {}", outline.device(link.a).name,
                                   outline.device(link.b).name, link_words(link), format_rate(link.gb_per_s));
    if (link.latency_us > 0) text += fmt::format(", {} us a crossing", link.latency_us);
    return text;
}

std::string pair_details(const Outline& outline, DeviceId a, DeviceId b) {
    const Topology& topology = outline.topology();
    const Device& from = outline.device(a);
    const Device& to = outline.device(b);
    if (a == b) return from.name;
    const Pair pair = topology.pair(a, b);
    std::string text = fmt::format("{} to {}: {}", from.name, to.name, to_string(pair.pair));
    if (pair.gb_per_s > 0) text += fmt::format(", {} expected", format_rate(pair.gb_per_s));
    if (!pair.words.empty()) text += "\n" + pair.words;
    if (from.kind == DeviceKind::gpu && to.kind == DeviceKind::gpu) {
        const PeerAccess access = topology.peer_access(from.index, to.index);
        text += access.allowed ? access.atomics ? "\npeer access, with atomics" : "\npeer access"
                               : "\nno peer access: " + access.reason;
    }
    return text;
}

std::string short_link(const Outline& outline, DeviceId id) {
    const auto up = outline.link_up(id);
    if (!up) return "";
    const std::string words = link_words(outline.link(*up));
    return words.starts_with("PCIe ") ? words.substr(5) : words == "NVLink-C2C" ? "C2C" : words;
}

std::string short_shortfall(const Device& device) {
    const std::string words = pcie_shortfall(device);
    if (words.empty()) return "";
    const std::string& now = device.properties.at("pcie_now");
    const std::string& max = device.properties.at("pcie_max");
    const auto a = now.find(' ');
    const auto b = max.find(' ');
    if (a == std::string::npos || b == std::string::npos) return fmt::format("only {}", words);
    if (now.substr(0, a) == max.substr(0, b))
        return fmt::format("only {} of {}", now.substr(a + 1), max.substr(b + 1));
    if (now.substr(a) == max.substr(b))
        return fmt::format("only {} of {}", now.substr(0, a), max.substr(0, b));
    return fmt::format("only {}", words);
}

std::string card_rate(const Outline& outline, DeviceId id) {
    const Properties& properties = outline.device(id).properties;
    if (const auto rate = properties.find("port1.rate"); rate != properties.end()) {
        // "400 Gb/sec (4X NDR)"
        const auto end = rate->second.find(" Gb/sec");
        if (end != std::string::npos && end < 8) return rate->second.substr(0, end) + " Gb/s";
    }
    if (const auto rate = properties.find("net_mb_per_s"); rate != properties.end()) {
        const double mb = std::atof(rate->second.c_str());
        if (mb > 0 && mb < 1e8) return fmt::format("{:g} Gb/s", mb / 1000);
    }
    for (const std::uint32_t position : outline.links_of(id)) {
        const Link& link = outline.link(position);
        if (link.kind == LinkKind::network) return fmt::format("{:.0f} Gb/s", link.gb_per_s * 8);
    }
    return "";
}

}  // namespace sidestep::topology::draw
