#include "shims/cufile/slots.hpp"

#include <mutex>
#include <vector>

namespace sidestep::cufile {
namespace {

using Slots = std::array<void*, slot_count>;

struct Free {
    std::mutex mutex;
    std::vector<Slots> slots;
    // For ever: at the end of the process CUDA may be gone before the last thread.
    std::vector<Allocation> memory;
};
Free& free_slots() {
    static auto& one = *new Free;
    return one;
}

struct Leased {
    Slots slots{};
    ~Leased() {
        if (slots.front() == nullptr) return;
        const std::lock_guard guard(free_slots().mutex);
        free_slots().slots.push_back(slots);
    }
};
thread_local Leased leased;

}  // namespace

Result<Slots> slots_of_this_thread(const Context& context) {
    if (leased.slots.front() != nullptr) return leased.slots;
    {
        const std::lock_guard guard(free_slots().mutex);
        if (!free_slots().slots.empty()) {
            leased.slots = free_slots().slots.back();
            free_slots().slots.pop_back();
            return leased.slots;
        }
    }
    auto made = context.allocate(Place::host(), slot_count * slot_bytes, MemoryKind::pinned);
    if (!made) return made.error();
    auto* const all = static_cast<char*>(made->address());
    {
        const std::lock_guard guard(free_slots().mutex);
        free_slots().memory.push_back(std::move(*made));
    }
    for (std::size_t i = 0; i < slot_count; ++i) leased.slots[i] = all + i * slot_bytes;
    return leased.slots;
}

}  // namespace sidestep::cufile
