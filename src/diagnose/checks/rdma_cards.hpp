// RDMA cards as /sys/class/infiniband shows them, for the checks of several groups.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "diagnose/evidence.hpp"

namespace sidestep::diagnose {

constexpr const char* rdma_folder = "/sys/class/infiniband";

struct RdmaPort {
    std::string name;    // "mlx5_0 port 1"
    std::string card;    // "mlx5_0"
    std::string folder;  // "/sys/class/infiniband/mlx5_0/ports/1"
    std::string state;   // "4: ACTIVE"; empty: it cannot be read
    std::string phys_state;
    std::string link_layer;  // "InfiniBand", "Ethernet"

    bool active() const { return state.starts_with("4"); }
    bool ethernet() const { return link_layer == "Ethernet"; }
};

struct RdmaCard {
    std::string name;    // "mlx5_0"
    std::string bus_id;  // empty: software that speaks RDMA over a plain network card
    bool virtual_function = false;
    std::vector<RdmaPort> ports;
};

// The cards of the machine by name, without software ones. Of a topology alone the network cards that have a port.
std::vector<RdmaCard> rdma_cards(const Evidence& evidence);
// The names of RDMA devices that are software (Soft-RoCE, soft iWARP).
std::vector<std::string> software_rdma(const driver::MachineFiles& files);

std::vector<std::string> names_of(const std::vector<RdmaCard>& cards);

// The ports that are up and speak RDMA over Ethernet (RoCE).
std::vector<RdmaPort> active_roce_ports(const std::vector<RdmaCard>& cards);

// The network device of an Ethernet port: "eth2"; empty where it cannot be told.
std::string netdev_of(const driver::MachineFiles& files, const RdmaPort& port);

// Why no check about GPUs and network cards applies to this machine; nullopt: there are both.
std::optional<std::string> no_gpu_and_card(const Evidence& evidence);

}  // namespace sidestep::diagnose
