// Whether there are RDMA cards, whether their links are up, and whether this process gets at them.
#include <fmt/format.h>

#include <algorithm>

#include "diagnose/checks/gpu_direct.hpp"
#include "diagnose/checks/gpu_pairs.hpp"
#include "diagnose/checks/looks.hpp"
#include "diagnose/checks/rdma_cards.hpp"

namespace sidestep::diagnose {

namespace {

constexpr long mellanox = 0x15b3;
constexpr long infiniband_class = 0x0207;
constexpr long ethernet_class = 0x0200;

// A PCI device that speaks RDMA with the right driver.
struct Candidate {
    std::string bus_id;
    bool infiniband = false;
    bool is_mellanox = false;
};

std::vector<Candidate> candidates(const driver::MachineFiles& files) {
    std::vector<Candidate> found;
    const std::string folder = "/sys/bus/pci/devices";
    for (const std::string& bus_id : files.names(folder)) {
        const long kind = files.number(fmt::format("{}/{}/class", folder, bus_id)).value_or(0) >> 8;
        const long vendor = files.number(fmt::format("{}/{}/vendor", folder, bus_id)).value_or(0);
        if (kind == infiniband_class || (kind == ethernet_class && vendor == mellanox))
            found.push_back({bus_id, kind == infiniband_class, vendor == mellanox});
    }
    return found;
}

void see_network_cards(const Evidence& evidence, Outcome& outcome) {
    for (const Device& device : evidence.topology.devices()) {
        if (device.kind == DeviceKind::nic && !device.bus_id.empty())
            outcome.saw("/sys/bus/pci/devices/" + device.bus_id,
                        fmt::format("{} ({}), no RDMA device", device.name, device.model));
    }
}

// Cards are plugged in, and no RDMA device stands for them.
Outcome without_driver(const Evidence& evidence, const std::vector<Candidate>& cards) {
    const bool infiniband =
        std::any_of(cards.begin(), cards.end(), [](const Candidate& card) { return card.infiniband; });
    const std::string inside = container_words(evidence);
    std::vector<std::string> ids;
    for (const Candidate& card : cards) ids.push_back(card.bus_id);
    const std::string what = fmt::format(
        "{} are there ({})", infiniband ? "InfiniBand cards" : "network cards that can do RDMA", listed(ids));
    Outcome outcome;
    if (!inside.empty()) {
        outcome = warn(what + ", and this container sees none as an RDMA device");
        outcome.remedy =
            "Give the container the network of the host (--network host) and the devices "
            "(--device /dev/infiniband), or an RDMA device of its own with `rdma dev set DEVICE netns PID`.";
        outcome.command = "docker run --network host --device /dev/infiniband --ulimit memlock=-1 IMAGE";
    } else {
        outcome = infiniband ? fail(what + ", and no RDMA driver has taken them")
                             : warn(what + ", and are used as plain Ethernet cards");
        outcome.remedy =
            "Load the card's RDMA driver; without it every byte to another machine takes the kernel's "
            "sockets.";
        outcome.command =
            cards.front().is_mellanox ? "modprobe -a mlx5_ib ib_uverbs" : "modprobe -a ib_core ib_uverbs";
    }
    for (const Candidate& card : cards)
        outcome.saw(
            fmt::format("/sys/bus/pci/devices/{}/class", card.bus_id),
            evidence.files.line(fmt::format("/sys/bus/pci/devices/{}/class", card.bus_id)).value_or(""));
    outcome.saw(rdma_folder, evidence.files.exists(rdma_folder) ? "is empty" : "does not exist");
    return outcome;
}

// Ports by what is wrong with them.
struct PortStates {
    std::vector<std::string> active;
    std::vector<std::string> down;
    std::vector<std::string> waiting;  // the link is up, but no subnet manager set the port up
    std::vector<std::string> untold;
    std::vector<Seen> seen;
};

PortStates port_states(const std::vector<RdmaCard>& cards) {
    PortStates states;
    for (const RdmaCard& card : cards) {
        for (const RdmaPort& port : card.ports) {
            if (port.active()) {
                states.active.push_back(port.name);
            } else if (port.state.empty()) {
                states.untold.push_back(port.name);
            } else if (port.state.starts_with("2") || port.state.starts_with("3")) {
                states.waiting.push_back(port.name);
            } else {
                states.down.push_back(port.name);
            }
            states.seen.push_back(
                {port.folder + "/state",
                 port.state.empty()
                     ? "cannot be read"
                     : fmt::format("{} ({}, {})", port.state,
                                   port.phys_state.empty() ? "physical state not told" : port.phys_state,
                                   port.link_layer.empty() ? "link layer not told" : port.link_layer)});
        }
    }
    return states;
}

// The character device through which programs use a card; empty where /sys does not name it.
std::string uverbs_of(const driver::MachineFiles& files, const std::string& card) {
    const std::string folder = "/sys/class/infiniband_verbs";
    for (const std::string& name : files.names(folder)) {
        if (files.line(fmt::format("{}/{}/ibdev", folder, name)) == card) return "/dev/infiniband/" + name;
    }
    return {};
}

Outcome no_device_files(const Evidence& evidence, const std::vector<std::string>& missing) {
    const bool contained = !container_words(evidence).empty();
    Outcome outcome = fail(fmt::format("programs cannot open {} RDMA card{}: the device files are not there",
                                       missing.size(), missing.size() == 1 ? "" : "s"));
    if (contained) {
        outcome.remedy = "Start the container with the device files of the cards.";
        outcome.command = "docker run --device /dev/infiniband --ulimit memlock=-1 IMAGE";
    }
    for (const std::string& path : missing) outcome.saw(path, "does not exist");
    return outcome;
}

Outcome denied_device_files(const std::vector<std::string>& denied) {
    Outcome outcome = fail("this user may not open the RDMA cards' device files");
    outcome.remedy =
        "Let everybody use them, as rdma-core's udev rules do, or add the user to the group that owns them.";
    outcome.command = "chmod 0666 /dev/infiniband/uverbs*";
    for (const std::string& path : denied) outcome.saw(path, "permission denied");
    return outcome;
}

// What libibverbs made of the cards.
Outcome look_library(const Evidence& evidence, const std::vector<RdmaCard>& cards) {
    if (!evidence.verbs.loaded) {
        Outcome outcome =
            warn("the device files are there, and the library libibverbs is not: RDMA programs need it");
        outcome.saw("libibverbs.so.1", evidence.verbs.reason);
        outcome.remedy = "Install rdma-core's library with the drivers for the cards.";
        outcome.command = "apt-get install libibverbs1 ibverbs-providers";
        return outcome;
    }
    std::vector<std::string> unlisted;
    Outcome outcome = fail("");
    for (const RdmaCard& card : cards) {
        const auto& devices = evidence.verbs.devices;
        const auto found = std::find_if(devices.begin(), devices.end(),
                                        [&](const auto& device) { return device.name == card.name; });
        if (found == devices.end()) {
            unlisted.push_back(card.name);
            outcome.saw(fmt::format("ibv_get_device_list, {}", card.name), "is not listed");
        } else if (!found->opens) {
            outcome.saw(fmt::format("ibv_open_device({})", card.name), found->reason);
        }
    }
    if (outcome.seen.empty())
        return pass(fmt::format("programs can open every RDMA card ({})", listed(names_of(cards))));
    outcome.summary =
        fmt::format("libibverbs cannot use {} of {} RDMA cards", outcome.seen.size(), cards.size());
    if (!unlisted.empty()) {
        outcome.remedy =
            "libibverbs lacks the driver for a card that the kernel knows: install rdma-core's drivers in "
            "the version of libibverbs.";
        outcome.command = "apt-get install ibverbs-providers";
    }
    return outcome;
}

}  // namespace

Outcome look_rdma_card(const Evidence& evidence) {
    if (const auto reason = no_gpu_direct(evidence)) return does_not_apply(*reason);
    const driver::MachineFiles& files = evidence.files;
    const auto cards = rdma_cards(evidence);
    if (!cards.empty()) {
        Outcome outcome = pass(fmt::format("{} RDMA card{}: {}", cards.size(), cards.size() == 1 ? "" : "s",
                                           listed(names_of(cards))));
        for (const RdmaCard& card : cards)
            outcome.saw(fmt::format("{}/{}", rdma_folder, card.name), card.bus_id);
        return outcome;
    }
    if (!files.exists("/sys/class")) {
        Outcome outcome =
            unknown("whether there is an RDMA card cannot be seen: this sandbox hides /sys/class");
        outcome.saw("/sys/class", "does not exist");
        outcome.remedy = "Look outside the sandbox.";
        return outcome;
    }
    const auto idle = candidates(files);
    if (!idle.empty()) return without_driver(evidence, idle);
    // A machine is as it was bought: no fault, and nothing to repair.
    Outcome outcome = does_not_apply(
        "there is no RDMA card: bytes to other machines go through host memory and the kernel");
    outcome.saw(rdma_folder, files.exists(rdma_folder) ? "has no card" : "does not exist");
    for (const std::string& name : software_rdma(files))
        outcome.saw(fmt::format("{}/{}", rdma_folder, name), "software, no PCI device");
    see_network_cards(evidence, outcome);
    return outcome;
}

Outcome look_nic_ports(const Evidence& evidence) {
    const auto cards = rdma_cards(evidence);
    if (cards.empty()) return does_not_apply("there is no RDMA card");
    PortStates states = port_states(cards);
    Outcome outcome;
    if (!states.waiting.empty()) {
        outcome = fail(fmt::format("{} waits for a subnet manager", listed(states.waiting)));
        outcome.remedy =
            "The cable is well, and nothing on the InfiniBand network gives addresses: start a subnet "
            "manager "
            "on a switch, or on one machine.";
        outcome.command = "systemctl start opensm";
    } else if (states.active.empty() && states.untold.empty() && !states.down.empty()) {
        outcome = fail("no port of any RDMA card is up");
    } else if (!states.down.empty()) {
        outcome = warn(fmt::format("{} of {} RDMA ports are down: {}", states.down.size(), states.seen.size(),
                                   listed(states.down)));
    } else if (!states.untold.empty() || states.active.empty()) {
        outcome = unknown("the state of the RDMA ports cannot be read");
        if (states.seen.empty()) outcome.saw(fmt::format("{}/*/ports", rdma_folder), "is empty");
        outcome.remedy = "Ask the card itself.";
    } else {
        outcome = pass(fmt::format("all {} RDMA ports are up", states.active.size()));
    }
    for (Seen& seen : states.seen) outcome.seen.push_back(std::move(seen));
    return outcome;
}

Outcome look_uverbs(const Evidence& evidence) {
    const auto cards = rdma_cards(evidence);
    if (cards.empty()) return does_not_apply("there is no RDMA card");
    std::vector<std::string> missing;
    std::vector<std::string> denied;
    for (const RdmaCard& card : cards) {
        const std::string path = uverbs_of(evidence.files, card.name);
        if (path.empty()) {
            missing.push_back(fmt::format("/sys/class/infiniband_verbs/*/ibdev of {}", card.name));
            continue;
        }
        const driver::FileState state = evidence.files.state(path);
        if (state == driver::FileState::missing) missing.push_back(path);
        if (state == driver::FileState::denied) denied.push_back(path);
    }
    if (!missing.empty()) return no_device_files(evidence, missing);
    if (!denied.empty()) return denied_device_files(denied);
    return look_library(evidence, cards);
}

}  // namespace sidestep::diagnose
