// What CUDA knows about an address.
#pragma once

#include <optional>

#include "backend/backend.hpp"
#include "backends/cuda/gpus.hpp"

namespace sidestep::backends::cuda {

// Memory that CUDA knows.
struct Pointer {
    MemoryKind kind = MemoryKind::pinned;  // pinned, device, pool, vmm or managed
    int gpu = -1;                          // whose memory it is; -1: host or managed memory
    CUmemoryPool pool = nullptr;           // of pool memory
    std::uint64_t identity = 0;            // backend::Description::identity
};

// What lies at a host or gpu buffer; nothing for ordinary host memory. One driver call for the common
// kinds. Fails with invalid_argument where the address is not what the buffer's place claims, or the
// buffer reaches past its allocation. Opens the GPU that a gpu buffer names.
Result<std::optional<Pointer>> look_up(Gpus& gpus, const Buffer& buffer);

// What lies at an address of unknown kind; plain host memory is pageable memory at Place::host(). Managed
// memory counts as that of the GPU it prefers, else as host memory.
Result<backend::Description> locate(Gpus& gpus, const void* address, Bytes bytes);

// Calls `visit(base, size)` for each mapping that [address, address + bytes) touches, in order, until one
// fails. Fails itself where part of the range is not mapped. A context must be current, or the driver
// answers CUDA_ERROR_INVALID_CONTEXT.
template <typename Visit>
Result<void> for_each_mapping(const driver::Cuda& cuda, CUdeviceptr address, Bytes bytes, Visit visit) {
    const CUdeviceptr end = address + bytes;
    while (address < end) {
        CUdeviceptr base = 0;
        std::size_t size = 0;
        CUresult status = cuda.cuMemGetAddressRange(&base, &size, address);
        if (auto checked = cuda.check(status, "cuMemGetAddressRange"); !checked.ok()) return checked;
        if (auto visited = visit(base, Bytes{size}); !visited.ok()) return visited;
        if (base + size <= address)
            return Error{ErrorCode::internal,
                         "the driver gave a mapping that does not hold its address",
                         "cuMemGetAddressRange",
                         {}};
        address = base + size;
    }
    return {};
}

}  // namespace sidestep::backends::cuda
