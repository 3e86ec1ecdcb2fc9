#include "shims/cufile/slots.hpp"

#include <mutex>
#include <vector>

namespace sidestep::cufile {
namespace {

struct Free {
    std::mutex mutex;
    std::vector<void*> slots;
};
Free& free_slots() {
    static auto& one = *new Free;
    return one;
}

struct Leased {
    void* slot = nullptr;
    ~Leased() {
        if (slot == nullptr) return;
        const std::lock_guard guard(free_slots().mutex);
        free_slots().slots.push_back(slot);
    }
};
thread_local Leased leased;

}  // namespace

Result<void*> slot_of_this_thread(const Context& context) {
    if (leased.slot != nullptr) return leased.slot;
    {
        const std::lock_guard guard(free_slots().mutex);
        if (!free_slots().slots.empty()) {
            leased.slot = free_slots().slots.back();
            free_slots().slots.pop_back();
            return leased.slot;
        }
    }
    auto made = context.allocate(Place::host(), slot_bytes, MemoryKind::pinned);
    if (!made) return made.error();
    // Kept for ever: at the end of the process CUDA may be gone before the last thread.
    leased.slot = (new Allocation(std::move(*made)))->address();
    return leased.slot;
}

}  // namespace sidestep::cufile
