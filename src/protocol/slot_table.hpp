// Where memory of every rank of a group lies in this process: by rank and slot.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "protocol/collective_task.hpp"

namespace sidestep::protocol {

// Any thread.
class SlotTable {
public:
    explicit SlotTable(unsigned ranks) : slots_(std::size_t{ranks} * max_slots) {}

    void set(unsigned rank, unsigned slot, std::span<char> memory) {
        const std::lock_guard lock(mutex_);
        slots_[place_of(rank, slot)] = memory;
    }
    // So many bytes from `offset` on, both of which another rank may have said; null where not all of them are mapped.
    char* find(unsigned rank, unsigned slot, std::uint64_t offset = 0, std::uint64_t bytes = 0) const {
        if (slot >= max_slots) return nullptr;
        const std::lock_guard lock(mutex_);
        const std::span<char> memory = slots_[place_of(rank, slot)];
        const bool within = bytes <= memory.size() && offset <= memory.size() - bytes;
        return within && memory.data() != nullptr ? memory.data() + offset : nullptr;
    }

private:
    static std::size_t place_of(unsigned rank, unsigned slot) { return std::size_t{rank} * max_slots + slot; }
    mutable std::mutex mutex_;
    std::vector<std::span<char>> slots_;
};

}  // namespace sidestep::protocol
