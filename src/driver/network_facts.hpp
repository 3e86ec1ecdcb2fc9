// What this machine knows of one connection, of its RDMA cards and of the limits that copies between machines meet.
#pragma once

#include <map>
#include <string>

#include "driver/machine_files.hpp"

namespace sidestep::driver {

// By name, for people and for comparison. What cannot be found out is not there.
using NetworkFacts = std::map<std::string, std::string, std::less<>>;

// Of a connected TCP socket: "address", "peer", "interface", "mtu", "path_mtu", "speed_mbit", "round_trip_us".
void add_socket_facts(int socket, const MachineFiles& files, NetworkFacts& facts);
// Of each port of each card: "rdma.mlx5_0.1" = "ACTIVE, Ethernet, 100 Gb/sec (2X NDR)" and "gids.mlx5_0.1",
// the types of its GIDs with their number; "rdma_providers": the providers that libibverbs is configured
// with.
void add_rdma_facts(const MachineFiles& files, NetworkFacts& facts);
// "kernel", "memlock" (of this process), "rmem_max", "wmem_max", "tcp_rmem_max", "tcp_wmem_max": bytes, or "unlimited".
void add_limit_facts(const MachineFiles& files, NetworkFacts& facts);

}  // namespace sidestep::driver
