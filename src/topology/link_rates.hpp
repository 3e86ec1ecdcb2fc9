// What a link carries in one direction, as signalled less line coding, and how long one crossing takes.
#pragma once

#include <optional>

#include <sidestep/topology.hpp>

namespace sidestep::topology {

// Of a PCIe link of generation 1 to 6 and `lanes` lanes; 0 for an unknown generation. Generations 1
// and 2 code 8 bits in 10, 3 to 5 code 128 in 130, 6 carries 242 bytes in flits of 256 (PCI Express
// base specification). Gen5 x16 is 63.015 GB/s; packet headers take another tenth of it or so.
double pcie_gb_per_s(int generation, int lanes);

// The generation that signals at so many giga transfers a second and lane; nullopt for none.
std::optional<int> pcie_generation(double gigatransfers);

// The generation of a PCIe link of that rate and width; nullopt where none comes within one percent.
std::optional<int> pcie_generation_of(double gb_per_s, int lanes);

// The part of a link's rate that a large copy by a copy engine reaches: packet headers and the engines take the
// rest. By the link's generation, which its rate and width tell; docs/topology.md has the table with its sources.
double reached_part(const Link& link);
// Of the newest generation that was measured.
double reached_part(LinkKind kind);

// One Intel UPI 2.0 link: 16 GT/s, two bytes a transfer (Intel ARK, Xeon Platinum 8480+: 4 links).
constexpr double upi2_gb_per_s = 32;
// Between NUMA nodes where nothing tells the rate: two such links.
constexpr double assumed_socket_gb_per_s = 64;

// One crossing in microseconds. Not published by vendors. They are chosen so that a round trip over a
// path plus a memory access comes near a pointer chase on a machine with H200 GPUs: 0.83 us from GPU to
// GPU through NVSwitch (four crossings and 0.43 of GPU memory), 1.17 us from GPU to host memory behind
// one PCIe link (four crossings and about 0.15 of memory).
constexpr double nvlink_latency_us = 0.1;
constexpr double pcie_latency_us = 0.4;
constexpr double host_bridge_latency_us = 0.1;
constexpr double socket_latency_us = 0.1;
constexpr double c2c_latency_us = 0.1;
constexpr double network_latency_us = 0.6;

}  // namespace sidestep::topology
