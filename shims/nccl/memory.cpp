#include "shims/nccl/memory.hpp"

#include <map>
#include <mutex>

#include <fmt/format.h>

#include "shims/nccl/failure.hpp"
#include "shims/nccl/handles.hpp"

namespace sidestep::nccl {
namespace {

struct AllocatedMemory {
    std::mutex lock;
    std::map<void*, std::shared_ptr<const Allocation>> memory;  // by address
};
// Never destroyed: what a program did not free goes with the process.
AllocatedMemory& allocated_memory() {
    static auto& one = *new AllocatedMemory;
    return one;
}

}  // namespace

Result<void*> allocate_memory(std::size_t bytes) {
    const auto context = nccl::context();
    if (!context.ok()) return context.error();
    const auto device = current_device(**context, -1);
    if (!device.ok()) return device.error();
    auto allocated = (*context)->allocate(device->place, bytes);
    if (!allocated.ok()) return allocated.error();
    const auto memory = std::make_shared<const Allocation>(std::move(*allocated));
    {
        const std::lock_guard guard(allocated_memory().lock);
        allocated_memory().memory.emplace(memory->address(), memory);
    }
    for (const auto& communicator : living()) communicator->attach(memory);
    return memory->address();
}

Result<void> free_memory(void* address) {
    std::shared_ptr<const Allocation> memory;
    {
        const std::lock_guard guard(allocated_memory().lock);
        const auto found = allocated_memory().memory.find(address);
        if (found == allocated_memory().memory.end())
            return bad_argument(
                fmt::format("{} was not allocated by ncclMemAlloc, or has been freed", address));
        if (ending()) return {};
        memory = std::move(found->second);
        allocated_memory().memory.erase(found);
    }
    for (const auto& communicator : living()) communicator->detach(memory);
    return {};
}

void attach_memory(Communicator& communicator) {
    // Emulated memory moves when it is shared for the first time, and the program may be writing to it while
    // a communicator is made in the background.
    if (communicator.device().emulated && !communicator.config().blocking) return;
    std::map<void*, std::shared_ptr<const Allocation>> all;
    {
        const std::lock_guard guard(allocated_memory().lock);
        all = allocated_memory().memory;
    }
    for (const auto& [address, memory] : all) communicator.attach(memory);
}

}  // namespace sidestep::nccl
