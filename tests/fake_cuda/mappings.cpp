// Physical memory, addresses for it, and who may reach it there. None of these calls needs a context.
#include <sys/mman.h>

#include <chrono>
#include <thread>
#include <vector>

#include "tests/fake_cuda/machine.hpp"

using namespace sidestep::fake_cuda;

namespace {

// Long enough for a second thread to meet a change of access that nothing keeps apart from its own.
constexpr std::chrono::milliseconds time_of_an_access_change{2};

// The blocks that make up exactly [address, address + bytes), or none. The machine's mutex is held.
std::vector<std::map<CUdeviceptr, Block>::iterator> mapped_blocks(CUdeviceptr address, std::size_t bytes) {
    std::vector<std::map<CUdeviceptr, Block>::iterator> found;
    auto& blocks = Machine::get().blocks;
    const CUdeviceptr end = address + bytes;
    while (address < end) {
        const auto block = blocks.find(address);
        if (block == blocks.end() || block->second.kind != Kind::mapped) return {};
        found.push_back(block);
        address += block->second.size;
    }
    if (address != end) found.clear();
    return found;
}

// Whether a range lies in reserved addresses with nothing mapped there yet. The machine's mutex is held.
bool reserved_and_empty(CUdeviceptr address, std::size_t bytes) {
    Machine& machine = Machine::get();
    auto after = machine.reservations.upper_bound(address);
    if (after == machine.reservations.begin()) return false;
    const auto reserved = std::prev(after);
    if (address + bytes > reserved->first + reserved->second) return false;
    const auto next = machine.blocks.lower_bound(address);
    const bool overlaps = next != machine.blocks.end() && next->first < address + bytes;
    return !overlaps && machine.block_at(address) == machine.blocks.end();
}

}  // namespace

CUresult cuMemGetAllocationGranularity(std::size_t* bytes, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
    *bytes = granularity;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long) {
    const int device = properties->location.id;
    if (device < 0 || device >= device_count) return CUDA_ERROR_INVALID_DEVICE;
    if (bytes == 0 || bytes % granularity != 0) return CUDA_ERROR_INVALID_VALUE;
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    std::size_t& used = machine.used[static_cast<std::size_t>(device)];
    if (bytes > memory_of_a_device - used) return CUDA_ERROR_OUT_OF_MEMORY;
    used += bytes;
    *handle = machine.next_physical++;
    Physical physical;
    physical.size = bytes;
    physical.device = device;
    physical.handle_types = static_cast<unsigned>(properties->requestedHandleTypes);
    machine.physicals[*handle] = physical;
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    const auto found = machine.physicals.find(handle);
    if (found == machine.physicals.end()) return CUDA_ERROR_INVALID_VALUE;
    if (found->second.retained > 0)
        --found->second.retained;
    else if (!found->second.released)
        found->second.released = true;
    else
        return CUDA_ERROR_INVALID_VALUE;
    machine.drop_if_unheld(handle);
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t, CUdeviceptr,
                             unsigned long long) {
    if (bytes == 0 || bytes % granularity != 0) return CUDA_ERROR_INVALID_VALUE;
    *address = map_pages(bytes, false);
    if (*address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    std::lock_guard lock(Machine::get().mutex);
    Machine::get().reservations[*address] = bytes;
    return CUDA_SUCCESS;
}

// The whole reservation at once, and empty.
CUresult cuMemAddressFree(CUdeviceptr address, std::size_t bytes) {
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    const auto found = machine.reservations.find(address);
    if (found == machine.reservations.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
    if (!reserved_and_empty(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    machine.reservations.erase(found);
    unmap_pages(address, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t, CUmemGenericAllocationHandle handle,
                  unsigned long long) {
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    const auto physical = machine.physicals.find(handle);
    if (physical == machine.physicals.end() || physical->second.released) return CUDA_ERROR_INVALID_VALUE;
    // One handle in two places would have to show the same bytes in both: not made up here.
    if (physical->second.mapped) return CUDA_ERROR_NOT_SUPPORTED;
    if (physical->second.size != bytes || !reserved_and_empty(address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (physical->second.shared)
        ::mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
               physical->second.shared->number, 0);
    else
        ::mprotect(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE);
    Block block;
    block.size = bytes;
    block.kind = Kind::mapped;
    block.device = physical->second.device;
    block.physical = handle;
    machine.blocks[address] = block;
    physical->second.mapped = true;
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, std::size_t bytes) {
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    const auto found = mapped_blocks(address, bytes);
    if (found.empty()) return CUDA_ERROR_INVALID_VALUE;
    for (const auto& block : found) {
        const CUmemGenericAllocationHandle physical = block->second.physical;
        machine.physicals[physical].mapped = false;
        machine.blocks.erase(block);
        machine.drop_if_unheld(physical);
    }
    ::mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return CUDA_SUCCESS;
}

// Two threads that set the access of one mapping at a time disturb each other: one gets
// CUDA_ERROR_ALREADY_MAPPED (seen on H200, driver 580.159.04). Imported memory that its own
// GPU reaches takes no access of another one: so driver 580 has it of cuMemAlloc memory of another process, which looks like
// a mapping there.
CUresult cuMemSetAccess(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* descriptions,
                        std::size_t count) {
    Machine& machine = Machine::get();
    {
        std::lock_guard lock(machine.mutex);
        const auto found = mapped_blocks(address, bytes);
        if (found.empty()) return CUDA_ERROR_INVALID_VALUE;
        for (std::size_t i = 0; i < count; ++i) {
            if (descriptions[i].location.id == found.front()->second.device) continue;
            if (!has_peer_access()) return CUDA_ERROR_INVALID_DEVICE;
            for (const auto& block : found)
                if (machine.physicals[block->second.physical].imported &&
                    block->second.access.contains(block->second.device))
                    return CUDA_ERROR_INVALID_VALUE;
        }
        for (const auto& block : found)
            if (block->second.changing_access) return CUDA_ERROR_ALREADY_MAPPED;
        for (const auto& block : found) block->second.changing_access = true;
    }
    std::this_thread::sleep_for(time_of_an_access_change);
    std::lock_guard lock(machine.mutex);
    for (const auto& block : mapped_blocks(address, bytes)) {
        block->second.changing_access = false;
        for (std::size_t i = 0; i < count; ++i) block->second.access.insert(descriptions[i].location.id);
    }
    return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    const auto found = machine.block_at(address);
    if (found == machine.blocks.end() || found->second.kind != Kind::mapped) return CUDA_ERROR_INVALID_VALUE;
    const bool granted = found->second.access.count(location->id) != 0;
    *flags = granted ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}
