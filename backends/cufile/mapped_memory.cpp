#include "backends/cufile/mapped_memory.hpp"

namespace sidestep::backends::cufile {

std::shared_ptr<void> MappedMemory::map(DirectGpu& gpu, const void* base, Bytes size) {
    const Range range{base, size};
    const std::lock_guard lock(mutex_);
    auto found = held_.find(range);
    if (found == held_.end()) {
        const driver::ScopedCudaContext current(gpu.context());
        auto buffer = driver::CufileBuffer::create(cufile_, base, size);
        if (!buffer) return nullptr;
        found = held_.emplace(range, Held{std::move(*buffer), 0}).first;
    }
    ++found->second.holders;
    return std::shared_ptr<void>(&found->second, [this, &gpu, range](void*) { drop(gpu, range); });
}

void MappedMemory::drop(DirectGpu& gpu, const Range& range) {
    const std::lock_guard lock(mutex_);
    const auto found = held_.find(range);
    if (--found->second.holders > 0) return;
    const driver::ScopedCudaContext current(gpu.context());
    held_.erase(found);
}

}  // namespace sidestep::backends::cufile
