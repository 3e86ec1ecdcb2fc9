// A rank of a group on an emulated GPU.
#pragma once

#include <memory>

#include "backend/backend.hpp"
#include "backends/host/memory.hpp"

namespace sidestep::backends::host {

// What a seat needs of its backend, which outlives it.
struct SeatSurroundings {
    std::shared_ptr<EmulatedMemory> memory;
    const Topology* machine = nullptr;
    backend::Sharer* sharer = nullptr;
    bool multicast = false;  // as Seat's
};

// ErrorCode::invalid_argument for a seat that cannot be, ErrorCode::out_of_memory where the GPU has no room
// for its arena.
Result<std::unique_ptr<backend::Seat>> make_seat(const backend::SeatRequest& request,
                                                 SeatSurroundings surroundings);

// For tests: as if so many tasks had gone before. Of an idle seat, and alike on all seats of a group.
void start_counters_at(backend::Seat& seat, std::uint64_t count);

}  // namespace sidestep::backends::host
