#include "shims/cufile/slots.hpp"

#include <mutex>
#include <vector>

namespace sidestep::cufile {
namespace {

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

thread_local std::shared_ptr<const Slots> leased;

std::shared_ptr<const Slots> lease(const Slots& slots) {
    return {new Slots(slots), [](const Slots* gone) {
                const std::unique_ptr<const Slots> owned(gone);
                const std::lock_guard guard(free_slots().mutex);
                free_slots().slots.push_back(*owned);
            }};
}

}  // namespace

Result<std::shared_ptr<const Slots>> slots_of_this_thread(const Context& context) {
    if (leased) return leased;
    Slots slots{};
    {
        const std::lock_guard guard(free_slots().mutex);
        if (!free_slots().slots.empty()) {
            slots = free_slots().slots.back();
            free_slots().slots.pop_back();
        }
    }
    if (slots.front() != nullptr) return leased = lease(slots);
    auto made = context.allocate(Place::host(), slot_count * slot_bytes, MemoryKind::pinned);
    if (!made) return made.error();
    auto* const all = static_cast<char*>(made->address());
    {
        const std::lock_guard guard(free_slots().mutex);
        free_slots().memory.push_back(std::move(*made));
    }
    for (std::size_t i = 0; i < slot_count; ++i) slots[i] = all + i * slot_bytes;
    return leased = lease(slots);
}

Refusal wait(Transfer& copy, const std::shared_ptr<const Slots>& slots) {
    copy.keep(slots);
    const auto done = std::move(copy).wait();
    if (done) return {};
    if (leased == slots) leased.reset();
    return refusal_of(done.error());
}

}  // namespace sidestep::cufile
