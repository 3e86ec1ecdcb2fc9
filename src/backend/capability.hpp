// What a backend can move, as plain data that the planner prices.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include <sidestep/memory_kind.hpp>
#include <sidestep/options.hpp>
#include <sidestep/place.hpp>
#include "backend/support.hpp"

namespace sidestep::backend {

// A set of memory kinds.
class MemorySet {
public:
    constexpr MemorySet() = default;
    constexpr MemorySet(std::initializer_list<MemoryKind> kinds) {
        for (MemoryKind kind : kinds) bits_ |= bit(kind);
    }
    constexpr bool has(MemoryKind kind) const { return (bits_ & bit(kind)) != 0; }
    constexpr bool empty() const { return bits_ == 0; }

private:
    static constexpr std::uint32_t bit(MemoryKind kind) { return 1u << static_cast<int>(kind); }
    std::uint32_t bits_ = 0;
};

// How the two ends must be related for a capability to apply.
enum class Reach {
    same_gpu,     // both ends in the memory of one GPU
    peer_access,  // two GPUs with Topology::peer_access
    host_link,    // a GPU and host memory, over the GPU's PCIe or C2C link
    host_memory,  // both ends in host memory
    storage,      // a file and host memory
    storage_gpu,  // a file and GPU or p2pmem memory, without host memory in between
    device_map,   // p2pmem memory and host memory, by the CPU's loads and stores
    network,      // one end on this machine, the other on a node (Place::node)
    nodes,        // both ends on nodes, of which the first pushes to the second
};

// One engine moving bytes from one kind of place to another.
struct Capability {
    PlaceKind from = PlaceKind::host;
    PlaceKind to = PlaceKind::host;
    MemorySet from_memory;  // kinds the engine can read
    MemorySet to_memory;    // kinds the engine can write
    Reach reach = Reach::host_memory;
    std::string engine;                // for people: "copy engine", "kernel", "memcpy", "file I/O"
    Prefer meets = Prefer::automatic;  // the wish that the engine meets; automatic: none
    double efficiency = 1;             // share of the links' rate that the engine reaches
    double max_gb_per_s = 0;           // ceiling of the engine itself, 0: only the links limit it
    double latency_us = 0;             // of one piece, links left out
    bool streams = false;              // takes Piece::stream: enqueues on a caller's stream
    Bytes at_once = 0;  // between host memories: so many the asking thread copies itself, as std::memcpy does
    std::string reason;  // one clause for Hop::reason: "DMA without the CPU"
};

// Why a backend that is usable on this machine does not carry these very bytes, between files and device memory or between
// two nodes.
struct Objection {
    std::string backend;
    std::optional<Place> place;  // the device memory that it does not reach; none: it reaches no place
    std::string reason;
    std::string remedy;

    bool operator==(const Objection&) const = default;
};

// A backend as the planner sees it. Also stands for one that is not in this build, so that routes can
// say what it would have done.
struct Offer {
    std::string name;
    Support support;
    std::vector<Capability> capabilities;
    MemorySet host_memory;                   // kinds of host memory it allocates
    MemorySet gpu_memory;                    // kinds of GPU memory it allocates
    std::vector<Objection> objections = {};  // its own, to what it offers with Reach::storage_gpu or nodes
};

}  // namespace sidestep::backend
