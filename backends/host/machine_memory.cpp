#include "backends/host/machine_memory.hpp"

#include <fmt/format.h>

#include "base/try.hpp"
#include "driver/memory_limits.hpp"

namespace sidestep::backends::host {
namespace {

// Below this a request is not held against what is available: asking costs some 50 us, and so little
// memory brings no machine down.
constexpr Bytes checked_from = 16_MiB;

}  // namespace

MappedMemory::MappedMemory(driver::MemoryMap map, Bytes bytes, std::shared_ptr<MachineMemory> owner)
    : map_(std::move(map)), bytes_(bytes), owner_(std::move(owner)) {
    owner_->taken_.fetch_add(bytes_, std::memory_order_relaxed);
}

MappedMemory::~MappedMemory() {
    owner_->taken_.fetch_sub(bytes_, std::memory_order_relaxed);
}

Result<std::shared_ptr<MappedMemory>> MachineMemory::take(Bytes bytes, int numa_node,
                                                          const std::string& what) {
    if (bytes >= checked_from) {
        const auto available = driver::available_memory(numa_node);
        // What was given but never touched is still counted as available. How much that is is not known;
        // it is at least what was given less all that this process has touched.
        const Bytes taken = taken_.load(std::memory_order_relaxed);
        const Bytes touched = driver::resident_private_bytes();
        const Bytes promised = taken - std::min(taken, touched);
        const Bytes free = available ? available->bytes - std::min(available->bytes, promised) : bytes;
        if (bytes > free) {
            return Error{ErrorCode::out_of_memory,
                         fmt::format("{} {} were asked for, {} are available ({})", format_bytes(bytes), what,
                                     format_bytes(free), available->source),
                         numa_node >= 0 ? fmt::format("host:{}", numa_node) : "host",
                         "allocate less, or free memory on this machine"};
        }
    }
    SIDESTEP_TRY(driver::MemoryMap map, driver::MemoryMap::anonymous(bytes, numa_node));
    return std::make_shared<MappedMemory>(std::move(map), bytes, shared_from_this());
}

}  // namespace sidestep::backends::host
