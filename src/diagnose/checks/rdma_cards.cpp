#include "diagnose/checks/rdma_cards.hpp"

#include <fmt/format.h>

#include "diagnose/checks/gpu_direct.hpp"

namespace sidestep::diagnose {

namespace {

std::string last_part(const std::string& path) {
    return path.substr(path.rfind('/') + 1);
}

RdmaCard read_card(const driver::MachineFiles& files, const std::string& name, const std::string& device) {
    const std::string folder = fmt::format("{}/{}", rdma_folder, name);
    RdmaCard card{name, last_part(device), files.exists(folder + "/device/physfn"), {}};
    for (const std::string& number : files.names(folder + "/ports")) {
        const std::string port = fmt::format("{}/ports/{}", folder, number);
        card.ports.push_back(
            {fmt::format("{} port {}", name, number), name, port, files.line(port + "/state").value_or(""),
             files.line(port + "/phys_state").value_or(""), files.line(port + "/link_layer").value_or("")});
    }
    return card;
}

// What a reader of /sys and the built-in machines put into the properties of a card.
std::optional<RdmaCard> card_of(const Device& device) {
    const auto told = [&](const std::string& name) {
        const auto found = device.properties.find(name);
        return found == device.properties.end() ? std::string() : found->second;
    };
    RdmaCard card{device.name.substr(device.name.find(':') + 1), device.bus_id, false, {}};
    for (int number = 1; !told(fmt::format("port{}.rate", number)).empty(); ++number) {
        const std::string prefix = fmt::format("port{}.", number);
        card.ports.push_back({fmt::format("{} port {}", card.name, number), card.name, device.name,
                              told(prefix + "state"), told(prefix + "phys_state"),
                              told(prefix + "link_layer")});
    }
    // NCCL's files list the cards that NCCL uses, by their rate alone.
    if (card.ports.empty() && told("netdev").empty() && !told("net_mb_per_s").empty())
        card.ports.push_back({card.name + " port 1", card.name, device.name, "", "", ""});
    if (card.ports.empty()) return std::nullopt;
    return card;
}

}  // namespace

std::vector<RdmaCard> rdma_cards(const Evidence& evidence) {
    std::vector<RdmaCard> cards;
    if (evidence.from_topology) {
        for (const Device& device : evidence.topology.devices())
            if (auto card = device.kind == DeviceKind::nic ? card_of(device) : std::nullopt)
                cards.push_back(std::move(*card));
        return cards;
    }
    const driver::MachineFiles& files = evidence.files;
    for (const std::string& name : files.names(rdma_folder)) {
        const std::string device = files.real_path(fmt::format("{}/{}/device", rdma_folder, name));
        if (!device.empty()) cards.push_back(read_card(files, name, device));
    }
    return cards;
}

std::vector<std::string> software_rdma(const driver::MachineFiles& files) {
    std::vector<std::string> names;
    for (const std::string& name : files.names(rdma_folder)) {
        if (!files.exists(fmt::format("{}/{}/device", rdma_folder, name))) names.push_back(name);
    }
    return names;
}

std::vector<std::string> names_of(const std::vector<RdmaCard>& cards) {
    std::vector<std::string> names;
    for (const RdmaCard& card : cards) names.push_back(card.name);
    return names;
}

std::vector<RdmaPort> active_roce_ports(const std::vector<RdmaCard>& cards) {
    std::vector<RdmaPort> ports;
    for (const RdmaCard& card : cards) {
        for (const RdmaPort& port : card.ports) {
            if (port.active() && port.ethernet()) ports.push_back(port);
        }
    }
    return ports;
}

std::string netdev_of(const driver::MachineFiles& files, const RdmaPort& port) {
    // Of a bond this names the bond, which is what has the addresses.
    if (const auto name = files.line(port.folder + "/gid_attrs/ndevs/0"); name && !name->empty())
        return *name;
    const auto names = files.names(fmt::format("{}/{}/device/net", rdma_folder, port.card));
    return names.empty() ? "" : names.front();
}

std::optional<std::string> no_gpu_and_card(const Evidence& evidence) {
    if (const auto reason = no_gpu_direct(evidence)) return reason;
    if (rdma_cards(evidence).empty()) return "there is no RDMA card";
    return std::nullopt;
}

}  // namespace sidestep::diagnose
