// Memory that is allocated in one call: of a device, managed, of a pool, pinned on the host.
#include <sys/mman.h>

#include "tests/fake_cuda/machine.hpp"

using namespace sidestep::fake_cuda;

namespace {

bool counts(Kind kind) {
    return kind != Kind::host;
}

CUresult allocate(CUdeviceptr* address, std::size_t bytes, Kind kind, int device) {
    if (capture_forbids()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    std::size_t& used = machine.used[static_cast<std::size_t>(device)];
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (counts(kind) && bytes > memory_of_a_device - used) return CUDA_ERROR_OUT_OF_MEMORY;
    *address = map_pages(bytes, true);
    if (*address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    Block block;
    block.size = bytes;
    block.kind = kind;
    block.device = device;
    machine.blocks[*address] = block;
    if (counts(kind)) used += bytes;
    return CUDA_SUCCESS;
}

CUresult allocate_in_context(CUdeviceptr* address, std::size_t bytes, Kind kind) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    return allocate(address, bytes, kind, current_context()->device);
}

// The machine's mutex is held.
void release(std::map<CUdeviceptr, Block>::iterator block) {
    Machine& machine = Machine::get();
    if (counts(block->second.kind))
        machine.used[static_cast<std::size_t>(block->second.device)] -= block->second.size;
    unmap_pages(block->first, block->second.size);
    machine.blocks.erase(block);
}

// cuMemFree and cuMemFreeHost wait while any stream of any context is held by cuStreamWaitValue32; the
// frees of pools and mappings, and all allocations, go on (seen on H200, driver 580.159.04). A stream on one
// GPU holds up the frees of the other here too, which is the careful reading: on four H200 such a free went
// on.
CUresult release_unheld(CUdeviceptr address, std::set<Kind> kinds) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    Machine& machine = Machine::get();
    std::unique_lock lock(machine.mutex);
    machine.none_held.wait(lock, [&machine] { return machine.held_streams == 0; });
    const auto found = machine.blocks.find(address);
    if (found == machine.blocks.end() || !kinds.count(found->second.kind)) return CUDA_ERROR_INVALID_VALUE;
    release(found);
    return CUDA_SUCCESS;
}

// Whether a range is mapped so that it can be read, or written to. Kernels before Linux 5.14 do not tell.
bool populate(void* address, std::size_t bytes, bool read_only) {
    constexpr int populate_read = 22;
    constexpr int populate_write = 23;
    const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(address) & ~std::uintptr_t{4095};
    const std::size_t length = reinterpret_cast<std::uintptr_t>(address) + bytes - first;
    return ::madvise(reinterpret_cast<void*>(first), length, read_only ? populate_read : populate_write) == 0;
}

}  // namespace

CUresult cuMemGetInfo(std::size_t* free, std::size_t* total) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    std::lock_guard lock(Machine::get().mutex);
    *total = memory_of_a_device;
    *free = *total - Machine::get().used[static_cast<std::size_t>(current_context()->device)];
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
    return allocate_in_context(address, bytes, Kind::device);
}

CUresult cuMemAllocManaged(CUdeviceptr* address, std::size_t bytes, unsigned) {
    return allocate_in_context(address, bytes, Kind::managed);
}

CUresult cuMemFree(CUdeviceptr address) {
    return release_unheld(address, {Kind::device, Kind::managed});
}

CUresult cuMemHostAlloc(void** address, std::size_t bytes, unsigned) {
    CUdeviceptr found = 0;
    const CUresult status = allocate_in_context(&found, bytes, Kind::host);
    *address = reinterpret_cast<void*>(found);
    return status;
}

CUresult cuMemFreeHost(void* address) {
    return release_unheld(reinterpret_cast<CUdeviceptr>(address), {Kind::host});
}

// A page is pinned once at a time, and pages that may only be read need to be called so.
CUresult cuMemHostRegister(void* address, std::size_t bytes, unsigned flags) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (!populate(address, bytes, (flags & CU_MEMHOSTREGISTER_READ_ONLY) != 0))
        return CUDA_ERROR_INVALID_VALUE;
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    const auto first = reinterpret_cast<CUdeviceptr>(address);
    const auto next = machine.blocks.lower_bound(first);
    const bool overlaps = next != machine.blocks.end() && next->first < first + bytes;
    if (overlaps || machine.block_at(first) != machine.blocks.end())
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    Block block;
    block.size = bytes;
    block.kind = Kind::host;
    block.device = current_context()->device;
    machine.blocks[first] = block;
    return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void* address) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    std::lock_guard lock(Machine::get().mutex);
    const auto found = Machine::get().blocks.find(reinterpret_cast<CUdeviceptr>(address));
    if (found == Machine::get().blocks.end() || found->second.kind != Kind::host)
        return CUDA_ERROR_INVALID_VALUE;
    Machine::get().blocks.erase(found);
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr* device_address, void* address, unsigned) {
    *device_address = reinterpret_cast<CUdeviceptr>(address);
    return CUDA_SUCCESS;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool,
                                 CUstream stream) {
    if (!find_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
    return allocate(address, bytes, Kind::pool, reinterpret_cast<Pool*>(pool)->device);
}

// In the order of the stream. What is still in use on another stream then is lost under it, as it is on a
// GPU; here the process ends.
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
    {
        std::lock_guard lock(Machine::get().mutex);
        const auto found = Machine::get().blocks.find(address);
        if (found == Machine::get().blocks.end() || found->second.kind != Kind::pool)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return enqueue(stream, [address] {
        std::lock_guard lock(Machine::get().mutex);
        const auto found = Machine::get().blocks.find(address);
        if (found != Machine::get().blocks.end()) release(found);
    });
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool pool, CUmemLocation* location) {
    std::lock_guard lock(Machine::get().mutex);
    const bool granted = reinterpret_cast<Pool*>(pool)->access.count(location->id) != 0;
    *flags = granted ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* descriptions, std::size_t count) {
    std::lock_guard lock(Machine::get().mutex);
    for (std::size_t i = 0; i < count; ++i) {
        if (descriptions[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return CUDA_ERROR_NOT_SUPPORTED;
        if (descriptions[i].location.id != reinterpret_cast<Pool*>(pool)->device && !has_peer_access())
            return CUDA_ERROR_INVALID_DEVICE;
        reinterpret_cast<Pool*>(pool)->access.insert(descriptions[i].location.id);
    }
    return CUDA_SUCCESS;
}
