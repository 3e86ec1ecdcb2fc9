#include "backends/cuda/allocate.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/rounding.hpp"
#include "base/try.hpp"
#include "driver/cpus.hpp"
#include "driver/memory_limits.hpp"
#include "driver/memory_map.hpp"

namespace sidestep::backends::cuda {
namespace {

using ContextPointer = std::shared_ptr<const driver::CudaContext>;

Allocation own(const Gpu& gpu, CUdeviceptr address, Bytes bytes, MemoryKind kind,
               std::function<void()> release) {
    return Allocation(Buffer::gpu(gpu.index(), reinterpret_cast<void*>(address), bytes), kind,
                      std::move(release));
}

// An out_of_memory error with what was free; other errors with the place they concern. Not every call says
// out of memory when it is asked for more than there is.
Error explain(const Gpu& gpu, Error error, Bytes bytes) {
    error.where = fmt::format("gpu:{}", gpu.index());
    std::size_t free = 0;
    std::size_t total = 0;
    const bool known = gpu.context()->cuda().cuMemGetInfo(&free, &total) == CUDA_SUCCESS;
    if (known && bytes > free) error.code = ErrorCode::out_of_memory;
    if (error.code != ErrorCode::out_of_memory) return error;
    error.message = fmt::format("{} were asked for, {} of {} are free", format_bytes(bytes),
                                format_bytes(free), format_bytes(total));
    if (known && bytes > free) error.message += fmt::format(", {} are missing", format_bytes(bytes - free));
    error.hint = "nvidia-smi lists the processes that hold the GPU's memory";
    return error;
}

Result<Allocation> allocate_device(const Gpu& gpu, Bytes bytes) {
    ContextPointer context = gpu.context();
    const driver::Cuda& cuda = context->cuda();
    CUdeviceptr address = 0;
    SIDESTEP_CHECK(cuda.check(cuda.cuMemAlloc(&address, bytes), "cuMemAlloc"));
    return own(gpu, address, bytes, MemoryKind::device, [context, address] {
        driver::ScopedCudaContext current(*context);
        context->cuda().cuMemFree(address);
    });
}

Result<Allocation> allocate_pool(const Gpu& gpu, Bytes bytes) {
    std::shared_ptr<const driver::CudaStream> stream = gpu.allocation_stream();
    const driver::Cuda& cuda = stream->context().cuda();
    CUmemoryPool pool = nullptr;
    CUresult status = cuda.cuDeviceGetDefaultMemPool(&pool, gpu.context()->device());
    SIDESTEP_CHECK(cuda.check(status, "cuDeviceGetDefaultMemPool"));
    CUdeviceptr address = 0;
    status = cuda.cuMemAllocFromPoolAsync(&address, bytes, pool, stream->get());
    SIDESTEP_CHECK(cuda.check(status, "cuMemAllocFromPoolAsync"));
    Allocation allocated = own(gpu, address, bytes, MemoryKind::pool, [stream, address] {
        driver::ScopedCudaContext current(stream->context());
        stream->context().cuda().cuMemFreeAsync(address, stream->get());
    });
    // From here on any stream may use the memory.
    SIDESTEP_CHECK(cuda.check(cuda.cuStreamSynchronize(stream->get()), "cuStreamSynchronize"));
    return allocated;
}

// A mapping of physical memory; undone in the reverse order, as far as it came.
struct Mapping {
    ContextPointer context;
    CUdeviceptr address = 0;
    Bytes size = 0;
    bool mapped = false;

    explicit Mapping(ContextPointer owner) : context(std::move(owner)) {}
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping() {
        const driver::Cuda& cuda = context->cuda();
        driver::ScopedCudaContext current(*context);
        if (mapped) cuda.cuMemUnmap(address, size);
        if (address) cuda.cuMemAddressFree(address, size);
    }
};

Result<void> map(const driver::Cuda& cuda, Mapping& mapping, const CUmemAllocationProp& properties) {
    CUmemGenericAllocationHandle memory = 0;
    SIDESTEP_CHECK(cuda.check(cuda.cuMemCreate(&memory, mapping.size, &properties, 0), "cuMemCreate"));
    CUresult status = cuda.cuMemAddressReserve(&mapping.address, mapping.size, 0, 0, 0);
    const char* call = "cuMemAddressReserve";
    if (status == CUDA_SUCCESS) {
        call = "cuMemMap";
        status = cuda.cuMemMap(mapping.address, mapping.size, 0, memory, 0);
        mapping.mapped = status == CUDA_SUCCESS;
    }
    // The mapping holds the memory from here on.
    cuda.cuMemRelease(memory);
    return cuda.check(status, call);
}

Result<Allocation> allocate_vmm(const Gpu& gpu, Bytes bytes) {
    const driver::Cuda& cuda = gpu.context()->cuda();
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = gpu.context()->device();
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    std::size_t granularity = 0;
    CUresult status =
        cuda.cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    SIDESTEP_CHECK(cuda.check(status, "cuMemGetAllocationGranularity"));
    auto mapping = std::make_shared<Mapping>(gpu.context());
    mapping->size = base::round_up(bytes, granularity);
    SIDESTEP_CHECK(map(cuda, *mapping, properties));
    CUmemAccessDesc access{};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    status = cuda.cuMemSetAccess(mapping->address, mapping->size, &access, 1);
    SIDESTEP_CHECK(cuda.check(status, "cuMemSetAccess"));
    const CUdeviceptr address = mapping->address;
    return own(gpu, address, bytes, MemoryKind::vmm,
               [mapping = std::move(mapping)]() mutable { mapping.reset(); });
}

// Managed memory may exceed the GPU's, at the price of thrashing: refused here.
Result<Allocation> allocate_managed(const Gpu& gpu, Bytes bytes) {
    ContextPointer context = gpu.context();
    const driver::Cuda& cuda = context->cuda();
    std::size_t free = 0;
    std::size_t total = 0;
    SIDESTEP_CHECK(cuda.check(cuda.cuMemGetInfo(&free, &total), "cuMemGetInfo"));
    if (bytes > free) return cuda.error(CUDA_ERROR_OUT_OF_MEMORY, "cuMemAllocManaged");
    CUdeviceptr address = 0;
    CUresult status = cuda.cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL);
    SIDESTEP_CHECK(cuda.check(status, "cuMemAllocManaged"));
    return own(gpu, address, bytes, MemoryKind::managed, [context, address] {
        driver::ScopedCudaContext current(*context);
        context->cuda().cuMemFree(address);
    });
}

Result<Allocation> allocate_kind(const Gpu& gpu, Bytes bytes, MemoryKind kind) {
    switch (kind) {
        case MemoryKind::device:
            return allocate_device(gpu, bytes);
        case MemoryKind::pool:
            return allocate_pool(gpu, bytes);
        case MemoryKind::vmm:
            return allocate_vmm(gpu, bytes);
        case MemoryKind::managed:
            return allocate_managed(gpu, bytes);
        default:
            return Error{ErrorCode::unsupported,
                         fmt::format("{} memory cannot be allocated on a GPU", to_string(kind)),
                         {},
                         "ask for device, pool, vmm or managed memory"};
    }
}

// Below this the driver's own call is as quick.
constexpr Bytes pinned_as_pages_from = 2_MiB;

void log_pages(const driver::MemoryMap& pages, int node, Bytes bytes) {
    if (!base::logs(base::LogLevel::info)) return;
    const bool set_aside = pages.pages() == driver::PageKind::huge;
    base::log(base::LogLevel::info, fmt::format("{} pinned at {}: {} on huge pages{}", format_bytes(bytes),
                                                Place::host(node).to_string(),
                                                format_bytes(driver::huge_bytes(pages.address(), bytes)),
                                                set_aside ? " that the system had set aside" : ""));
}

// Pages of one NUMA node (-1: of where the caller runs), pinned. A machine with one node has nothing to bind,
// and containers often forbid the call.
Result<Allocation> pin_pages(ContextPointer context, bool several_nodes, int node, Bytes bytes) {
    // Several threads may run on several nodes, and memory that is bound to none would come from all of them.
    constexpr int max_threads = 8;
    const int threads = node < 0 && several_nodes ? 1 : std::min(driver::usable_cpu_count(), max_threads);
    SIDESTEP_TRY(driver::MemoryMap map,
                 driver::MemoryMap::populated(bytes, several_nodes ? node : -1, threads));
    auto pages = std::make_shared<const driver::MemoryMap>(std::move(map));
    log_pages(*pages, node, bytes);
    const driver::Cuda& cuda = context->cuda();
    CUresult status = cuda.cuMemHostRegister(pages->address(), bytes,
                                             CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    SIDESTEP_CHECK(cuda.check(status, "cuMemHostRegister"));
    return Allocation(Buffer::memory(Place::host(node), pages->address(), bytes), MemoryKind::pinned,
                      [context, pages] {
                          driver::ScopedCudaContext current(*context);
                          context->cuda().cuMemHostUnregister(pages->address());
                      });
}

}  // namespace

Result<Allocation> allocate_portable(ContextPointer context, Bytes bytes) {
    const driver::Cuda& cuda = context->cuda();
    void* address = nullptr;
    CUresult status =
        cuda.cuMemHostAlloc(&address, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    SIDESTEP_CHECK(cuda.check(status, "cuMemHostAlloc"));
    return Allocation(Buffer::host(address, bytes), MemoryKind::pinned, [context, address] {
        driver::ScopedCudaContext current(*context);
        context->cuda().cuMemFreeHost(address);
    });
}

Result<Allocation> allocate_pinned(Gpus& gpus, int node, Bytes bytes) {
    // Asking the kernel for more than there is would not fail but end processes.
    const auto available = driver::available_memory(node);
    if (available && bytes > available->bytes)
        return Error{ErrorCode::out_of_memory,
                     fmt::format("{} of pinned memory were asked for, {} are available ({})",
                                 format_bytes(bytes), format_bytes(available->bytes), available->source),
                     Place::host(node).to_string(),
                     {}};
    SIDESTEP_TRY(Gpu * gpu, gpus.open_near(node));
    driver::ScopedCudaContext current(*gpu->context());
    if (node < 0 && bytes < pinned_as_pages_from) return allocate_portable(gpu->context(), bytes);
    return pin_pages(gpu->context(), gpus.several_numa_nodes(), node, bytes);
}

Result<Allocation> allocate_on_gpu(const Gpu& gpu, Bytes bytes, MemoryKind kind) {
    driver::ScopedCudaContext current(*gpu.context());
    auto allocation = allocate_kind(gpu, bytes, kind);
    if (!allocation) return explain(gpu, allocation.error(), bytes);
    return allocation;
}

}  // namespace sidestep::backends::cuda
