#include "shims/cufile/buffers.hpp"

#include <algorithm>
#include <mutex>

#include <fmt/format.h>

#include <sidestep/cuda.hpp>
#include "shims/cufile/settings.hpp"

namespace sidestep::cufile {
namespace {

constexpr int buffer_flags = CU_FILE_RDMA_REGISTER | CU_FILE_RDMA_RELAXED_ORDERING;

// What lies at an address of unknown kind.
Refusal locate(const Context& context, const void* address, Bytes size, Buffer& found) {
    if (reinterpret_cast<std::uintptr_t>(address) > UINTPTR_MAX - size)
        return refusal(CU_FILE_CUDA_POINTER_RANGE_ERROR,
                       fmt::format("{} bytes from {} on reach past all memory", size, address));
    auto buffer = cuda::buffer(context, address, size);
    if (buffer) {
        found = *buffer;
    } else if (buffer.error().code == ErrorCode::unsupported) {
        // Without GPUs all memory is the host's.
        found = Buffer::host(const_cast<void*>(address), size);
    } else {
        Refusal refused = refusal_of(buffer.error());
        if (buffer.error().code == ErrorCode::invalid_argument)
            refused.code = CU_FILE_CUDA_POINTER_RANGE_ERROR;
        return refused;
    }
    if (!found.place().is_gpu() && !settings().flag(CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY))
        return refusal(
            CU_FILE_CUDA_MEMORY_TYPE_INVALID,
            fmt::format("{} is host memory, which the setting allow_system_memory=false refuses", address));
    return {};
}

}  // namespace

Buffers& Buffers::get() {
    static auto& one = *new Buffers;
    return one;
}

Refusal Buffers::add(const Context& context, const void* base, Bytes size, int flags) {
    if (base == nullptr || size == 0)
        return refusal(CU_FILE_INVALID_VALUE, "memory needs an address and a size");
    if ((flags & ~buffer_flags) != 0)
        return refusal(CU_FILE_INVALID_VALUE, fmt::format("there are no flags {:#x}", flags & ~buffer_flags));
    const auto key = reinterpret_cast<std::uintptr_t>(base);
    // Before the lock: CUDA is asked, and others read meanwhile.
    Buffer buffer;
    if (auto refused = locate(context, base, size, buffer)) return refused;
    const std::lock_guard guard(mutex_);
    if (registered_.contains(key))
        return refusal(CU_FILE_MEMORY_ALREADY_REGISTERED, fmt::format("{} is registered already", base));
    if (buffer.place().is_gpu()) {
        const Bytes most = Bytes{settings().size(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB)}
                           << 10;
        if (size > most - std::min(most, on_gpus_))
            return refusal(CU_FILE_INVALID_MAPPING_SIZE,
                           fmt::format("{} more would exceed the setting max_device_pinned_mem_size_kb ({})",
                                       format_bytes(size), format_bytes(most)));
        on_gpus_ += size;
    }
    registered_.emplace(key, buffer);
    return {};
}

Refusal Buffers::remove(const void* base) {
    if (base == nullptr) return refusal(CU_FILE_INVALID_VALUE, "the address is null");
    const std::lock_guard guard(mutex_);
    const auto found = registered_.find(reinterpret_cast<std::uintptr_t>(base));
    if (found == registered_.end())
        return refusal(CU_FILE_MEMORY_NOT_REGISTERED, fmt::format("{} is not registered", base));
    if (found->second.place().is_gpu()) on_gpus_ -= found->second.size();
    registered_.erase(found);
    return {};
}

void Buffers::clear() {
    const std::lock_guard guard(mutex_);
    registered_.clear();
    on_gpus_ = 0;
}

Bytes Buffers::registered() const {
    const std::shared_lock guard(mutex_);
    return on_gpus_;
}

Refusal Buffers::find(const Context& context, const void* base, Bytes offset, Bytes size,
                      Buffer& found) const {
    {
        const std::shared_lock guard(mutex_);
        const auto known = registered_.find(reinterpret_cast<std::uintptr_t>(base));
        if (known != registered_.end()) {
            const Bytes whole = known->second.size();
            if (offset > whole || size > whole - offset)
                return refusal(CU_FILE_INVALID_MAPPING_RANGE,
                               fmt::format("{} bytes from {} on are not within the {} bytes registered at {}",
                                           size, offset, whole, base));
            found = known->second.slice(offset, size);
            return {};
        }
    }
    return locate(context, static_cast<const char*>(base) + offset, size, found);
}

}  // namespace sidestep::cufile
