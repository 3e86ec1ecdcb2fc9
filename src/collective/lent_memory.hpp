// Memory of one rank as a message to another one: what the arena and user memory have in common.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "backend/registry.hpp"
#include "collective/wire.hpp"

namespace sidestep::collective {

// What a rank lends: for ranks of its own process the address, for others what a backend exported.
struct Lent {
    Buffer whole;
    std::uint64_t identity = 0;
    std::shared_ptr<const backend::Exported> exported;  // null where no other process takes part

    // The message's blob, and the descriptor that goes with it (-1: none).
    Result<std::string> offer(bool same_process) const;
    int descriptor(bool same_process) const { return same_process || !exported ? -1 : exported->descriptor; }
};

// By the first backend that knows the memory; ErrorCode::unsupported with the reason where none can.
Result<std::shared_ptr<const backend::Exported>> export_memory(const backend::Registry& registry,
                                                               const Buffer& buffer);

// The other end: mapped for this seat's GPU as long as it lives.
struct Borrowed {
    Allocation mapping;      // empty where the address itself does
    std::span<char> memory;  // what was lent
};
Result<Borrowed> borrow(backend::Seat& seat, const std::string& offer, int descriptor, bool same_process);

}  // namespace sidestep::collective
