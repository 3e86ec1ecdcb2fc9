// Which algorithm carries an operation: a pure function, so that all ranks decide alike without a word.
//
// It may depend on what every rank knows to be the same: the operation without its addresses, the number of
// ranks, and the figures below. Not on addresses, alignment or what is mapped: that is settled inside of the
// tasks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "collective/operation.hpp"

namespace sidestep::collective {

// What a machine's links and kernels cost. These are of GPUs joined by NVLink; `sidestep tune` measures some
// of them anew and stores those in a file, which SIDESTEP_TUNING names. All ranks of a group use the file of
// rank 0.
struct Figures {
    double launch_us = 2.2;        // of a kernel, between two in one graph
    double hop_us = 0.95;          // a store until a poll at the far end sees it
    double link_gb_per_s = 340;    // what kernels reach to all peers together, in one direction
    double push_gb_per_s = 355;    // the same where nothing is fetched through the links; 0: as link_gb_per_s
    double ring_gb_per_s = 0;      // the same to the neighbours of a ring alone; 0: as link_gb_per_s
    double local_gb_per_s = 2000;  // within a GPU
    // Payload of packets as they are sent, to all peers together; polling slows it.
    double packet_gb_per_s = 250;
    double block_gb_per_s = 20;  // what one thread block moves
    // Bytes of an all_reduce up to which it takes one-shot packets, up to which two-phase packets, and up to
    // which lines, and no further; 0: by price.
    std::uint64_t one_shot_max = 0;
    std::uint64_t packets_max = 0;
    std::uint64_t lines_max = 0;
    // Bytes of one rank from which and up to which reductions of floats take one-shot Lamport, and nowhere
    // else; 0: by price.
    std::uint64_t lamport_min = 0;
    std::uint64_t lamport_max = 0;
    // Bytes from one rank to each other one up to which the other collectives take packets; 0: by price.
    std::uint64_t others_max = 0;
    // Bytes of one rank up to which the other collectives take lines, and no further; 0: by price.
    std::uint64_t others_lines_max = 0;
    int max_blocks = 64;
};

// What lies between the GPUs of a group, of its worst pair: NVLink or the like, PCIe, or no way but through
// host memory, where the arenas lie then.
enum class Wire { nvlink, pcie, host_memory };

// Figures that nobody measured on this machine. Those of PCIe are worked out of the rates in figures.cpp.
Figures built_in_figures(Wire wire);

struct GroupFacts {
    int ranks = 1;
    Wire wire = Wire::nvlink;
    bool full_mesh = true;        // every pair has peer access; otherwise the arenas lie in host memory
    std::string why_not;          // the first pair that has none, and its reason
    std::string shared_gpu = {};  // which ranks have one GPU in turns, and what that costs; empty: none
    bool emulated = false;
    int max_blocks = 0;       // GroupOptions::max_blocks, the least of all ranks
    int multiprocessors = 0;  // that a rank has to itself, on the GPU with the fewest; 0: as many as it takes
    Figures figures;
};

// What was chosen: enough to make the tasks.
struct Choice {
    protocol::Shape shape = protocol::Shape::packets;
    int blocks = 1;
    double expected_us = 0;
    std::string algorithm;  // as CollectivePlan's
    std::string reason;
    std::vector<Refused> refused;
    std::uint64_t eager_max = ~std::uint64_t{0};  // of pairs, as CollectiveTask's, and the next one
    std::uint64_t pair_blocks_max = protocol::max_blocks;
    bool eager = false;  // of pairs: all blocks are, as far as this rank knows
};

// ErrorCode::unsupported, and why, for what policy zero_sm cannot carry.
Result<Choice> choose(const Operation& operation, const GroupFacts& facts, GroupPolicy policy);
// Of calls that are coalesced, whose packets the arena holds.
Choice choose_coalesced(const Operation& operation, const GroupFacts& facts);

// What Group::explain answers. `memory` as CollectivePlan's.
CollectivePlan plan_of(const Operation& operation, const Choice& choice, int ranks, std::string memory);

// What explain says of NVLink multicast on a machine that has it; nothing where NCCL would gain nothing by it.
std::optional<Refused> multicast_refused(const Operation& operation, int ranks);

// The bytes that nccl-tests would count for the operation, and its bus bandwidth factor (busbw = bytes / time
// * factor): 2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter, all_to_all and all_to_all_v,
// gather and scatter, 1 for the others. Source: nccl-tests, doc/PERFORMANCE.md.
Bytes counted_bytes(const Operation& operation, int ranks);
double bus_factor(Collective collective, int ranks);
// In GB/s, of an operation that takes `us` microseconds; 0 for one that takes none.
double bus_rate(const Operation& operation, int ranks, double us);

// Of a file of figures, in bytes.
inline constexpr std::size_t largest_figures = 64 << 10;

// A tuning file: JSON of Figures with a version and the machine's name; figures it leaves out stay the
// built-in ones of the wire. Errors name line or key.
Result<Figures> parse_figures(const std::string& json, Wire wire);
// The same file without what is for people alone, as rank 0 hands it to the others.
Result<std::string> figures_for_others(const std::string& json);

}  // namespace sidestep::collective
