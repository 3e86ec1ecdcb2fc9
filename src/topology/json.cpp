// Writing of the own JSON format; docs/topology-format.md describes it.
#include <nlohmann/json.hpp>

#include <sidestep/topology.hpp>

#include "topology/json_format.hpp"

namespace sidestep {

namespace {

// Members in the order a reader expects them, not in that of the alphabet.
using Json = nlohmann::ordered_json;

Json device_json(const Device& device) {
    Json json = {{"name", device.name}, {"kind", to_string(device.kind)}, {"index", device.index}};
    if (!device.model.empty()) json["model"] = device.model;
    if (!device.bus_id.empty()) json["bus_id"] = device.bus_id;
    if (device.numa_node != -1) json["numa_node"] = device.numa_node;
    if (device.memory != 0) json["memory"] = device.memory;
    if (device.node != 0) json["node"] = device.node;
    if (device.acs_redirect) json["acs_redirect"] = true;
    if (!device.properties.empty()) json["properties"] = device.properties;
    return json;
}

Json link_json(const Link& link, const Topology& topology) {
    return {{"a", topology.device(link.a).name}, {"b", topology.device(link.b).name},
            {"kind", to_string(link.kind)},      {"width", link.width},
            {"gb_per_s", link.gb_per_s},         {"latency_us", link.latency_us}};
}

Json peer_json(const Topology::Parts::Peer& peer, const Topology& topology) {
    const auto name = [&](int gpu) { return topology.device(*topology.find(DeviceKind::gpu, gpu)).name; };
    Json json = {{"from", name(peer.from)},
                 {"to", name(peer.to)},
                 {"allowed", peer.access.allowed},
                 {"atomics", peer.access.atomics}};
    if (!peer.access.reason.empty()) json["reason"] = peer.access.reason;
    if (!peer.access.remedy.empty()) json["remedy"] = peer.access.remedy;
    return json;
}

// One element a line: files are read by people and compared by diff.
template <typename Elements, typename Write>
std::string lines(const char* member, const Elements& elements, Write write) {
    std::string text = std::string(",\n  \"") + member + "\": [";
    const char* separator = "\n    ";
    for (const auto& element : elements) {
        // Bytes that are no UTF-8 (a name out of firmware, say) become U+FFFD instead of an exception.
        text += separator + write(element).dump(-1, ' ', false, Json::error_handler_t::replace);
        separator = ",\n    ";
    }
    return text + (elements.empty() ? "]" : "\n  ]");
}

}  // namespace

std::string Topology::to_json() const {
    const Json name = parts_.name;
    std::string text = "{\n  \"format\": \"" + std::string(topology::json_format) +
                       "\",\n  \"version\": " + std::to_string(topology::json_version) +
                       ",\n  \"name\": " + name.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (parts_.pcie_peers != PathClass::self)
        text += ",\n  \"pcie_peers\": \"" + std::string(to_string(parts_.pcie_peers)) + "\"";
    if (!parts_.properties.empty())
        text += ",\n  \"properties\": " +
                Json(parts_.properties).dump(-1, ' ', false, Json::error_handler_t::replace);
    text += lines("devices", parts_.devices, device_json);
    text += lines("links", parts_.links, [this](const Link& link) { return link_json(link, *this); });
    text += lines("peers", parts_.peers, [this](const Parts::Peer& peer) { return peer_json(peer, *this); });
    text += lines("notes", parts_.notes, [](const std::string& note) { return Json(note); });
    return text + "\n}\n";
}

}  // namespace sidestep
