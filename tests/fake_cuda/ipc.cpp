// Memory in several processes. What is shared moves to memory of memfd_create(2), at the same addresses;
// another process opens it by the number that its descriptor has in the first one (/proc/PID/fd), or gets the
// descriptor.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "tests/fake_cuda/machine.hpp"

using namespace sidestep::fake_cuda;

namespace {

constexpr char name_of_memory[] = "fake-gpu-%d";

struct IpcHandle {
    int process;
    int descriptor;
    int device;
    unsigned long long size;
    unsigned long long id;
};
static_assert(sizeof(IpcHandle) <= sizeof(CUipcMemHandle));

// Shared memory of that size with the bytes of `from` (0: none) in it, mapped over them.
std::shared_ptr<Descriptor> move_to_shared(CUdeviceptr from, std::size_t bytes, int device) {
    char name[32];
    std::snprintf(name, sizeof name, name_of_memory, device);
    auto shared = std::make_shared<Descriptor>(::memfd_create(name, MFD_CLOEXEC));
    if (shared->number < 0 || ::ftruncate(shared->number, static_cast<off_t>(bytes)) != 0) return nullptr;
    if (from == 0) return shared;
    void* const address = reinterpret_cast<void*>(from);
    void* const copy = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, shared->number, 0);
    if (copy == MAP_FAILED) return nullptr;
    std::memcpy(copy, address, bytes);
    ::mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, address);
    return shared;
}

CUdeviceptr map_shared(int descriptor, std::size_t bytes) {
    void* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    return address == MAP_FAILED ? 0 : reinterpret_cast<CUdeviceptr>(address);
}

}  // namespace

Descriptor::~Descriptor() {
    if (number >= 0) ::close(number);
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
    if (device < 0 || device >= device_count) return CUDA_ERROR_INVALID_DEVICE;
    std::memset(uuid->bytes, 0x5a, sizeof uuid->bytes);
    uuid->bytes[0] = static_cast<char>(device);
    return CUDA_SUCCESS;
}

// Of cuMemAlloc memory that is this process's own; a pointer into it stands for all of it.
CUresult cuIpcGetMemHandle(CUipcMemHandle* out, CUdeviceptr address) {
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    const auto found = machine.block_at(address);
    if (found == machine.blocks.end() || found->second.kind != Kind::device) return CUDA_ERROR_INVALID_VALUE;
    Block& block = found->second;
    if (!block.shared) block.shared = move_to_shared(found->first, block.size, block.device);
    if (!block.shared) return CUDA_ERROR_OUT_OF_MEMORY;
    const IpcHandle handle{::getpid(), block.shared->number, block.device, block.size, block.id};
    std::memset(out, 0, sizeof *out);
    std::memcpy(out, &handle, sizeof handle);
    return CUDA_SUCCESS;
}

// Not in the process that the handle is from. What is open already is given out again, and counted.
CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle given, unsigned flags) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
    IpcHandle handle{};
    std::memcpy(&handle, &given, sizeof handle);
    if (handle.process == ::getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    if (has_peer_access()) current_context()->peers.insert(handle.device);  // what the flag says
    for (auto& [at, block] : machine.blocks) {
        if (block.kind != Kind::imported || block.opened_process != handle.process ||
            block.opened_id != handle.id)
            continue;
        ++block.times_opened;
        *address = at;
        return CUDA_SUCCESS;
    }
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.descriptor);
    const Descriptor descriptor(::open(path, O_RDWR | O_CLOEXEC));
    struct stat status {};
    if (descriptor.number < 0 || ::fstat(descriptor.number, &status) != 0 ||
        static_cast<unsigned long long>(status.st_size) != handle.size)
        return CUDA_ERROR_INVALID_HANDLE;
    *address = map_shared(descriptor.number, handle.size);
    if (*address == 0) return CUDA_ERROR_MAP_FAILED;
    Block block;
    block.size = handle.size;
    block.kind = Kind::imported;
    block.device = handle.device;
    block.opened_process = handle.process;
    block.opened_id = handle.id;
    block.times_opened = 1;
    machine.blocks[*address] = block;
    return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    const auto found = machine.blocks.find(address);
    if (found == machine.blocks.end() || found->second.kind != Kind::imported)
        return CUDA_ERROR_INVALID_VALUE;
    if (--found->second.times_opened > 0) return CUDA_SUCCESS;
    unmap_pages(address, found->second.size);
    machine.blocks.erase(found);
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    const auto found = machine.block_at(reinterpret_cast<CUdeviceptr>(address));
    if (found == machine.blocks.end() || found->second.kind != Kind::mapped) return CUDA_ERROR_INVALID_VALUE;
    *handle = found->second.physical;
    ++machine.physicals[*handle].retained;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle) {
    std::lock_guard lock(Machine::get().mutex);
    const auto found = Machine::get().physicals.find(handle);
    if (found == Machine::get().physicals.end()) return CUDA_ERROR_INVALID_VALUE;
    std::memset(properties, 0, sizeof *properties);
    properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties->location.id = found->second.device;
    properties->requestedHandleTypes = static_cast<CUmemAllocationHandleType>(found->second.handle_types);
    return CUDA_SUCCESS;
}

// Descriptors only, and only of memory that was created for them.
CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long) {
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    const auto found = machine.physicals.find(handle);
    if (found == machine.physicals.end()) return CUDA_ERROR_INVALID_VALUE;
    Physical& physical = found->second;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || (physical.handle_types & type) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!physical.shared) {
        CUdeviceptr mapped = 0;
        for (const auto& [at, block] : machine.blocks)
            if (block.kind == Kind::mapped && block.physical == handle) mapped = at;
        physical.shared = move_to_shared(mapped, physical.size, physical.device);
    }
    const int number = physical.shared ? ::fcntl(physical.shared->number, F_DUPFD_CLOEXEC, 0) : -1;
    if (number < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    *static_cast<int*>(out) = number;
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* given,
                                        CUmemAllocationHandleType type) {
    const int number = static_cast<int>(reinterpret_cast<std::uintptr_t>(given));
    char path[64];
    char name[64] = {};
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", number);
    int device = -1;
    struct stat status {};
    const bool ours = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
                      ::readlink(path, name, sizeof name - 1) > 0 &&
                      std::sscanf(name, "/memfd:fake-gpu-%d", &device) == 1 && ::fstat(number, &status) == 0;
    if (!ours) return CUDA_ERROR_INVALID_VALUE;
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    *handle = machine.next_physical++;
    Physical physical;
    physical.size = static_cast<std::size_t>(status.st_size);
    physical.device = device;
    physical.imported = true;
    physical.shared = std::make_shared<Descriptor>(::fcntl(number, F_DUPFD_CLOEXEC, 0));
    machine.physicals[*handle] = physical;
    return CUDA_SUCCESS;
}
