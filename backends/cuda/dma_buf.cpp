#include "backends/cuda/dma_buf.hpp"

#include <fmt/format.h>

#include "base/rounding.hpp"
#include "base/try.hpp"
#include "driver/fd.hpp"
#include "driver/memory_map.hpp"

namespace sidestep::backends::cuda {
namespace {

int attribute_of(const driver::Cuda& cuda, CUdevice_attribute attribute, int ordinal) {
    int value = 0;
    return cuda.cuDeviceGetAttribute(&value, attribute, ordinal) == CUDA_SUCCESS ? value : 0;
}

Error none_of(const Buffer& buffer, std::string why, std::string hint = {}) {
    return Error{ErrorCode::unsupported, std::move(why), buffer.place().to_string(), std::move(hint)};
}

}  // namespace

Result<backend::DmaBuf> export_dma_buf(Gpus& gpus, const Buffer& buffer, const Pointer& pointer) {
    if (pointer.kind != MemoryKind::device && pointer.kind != MemoryKind::vmm)
        return none_of(buffer, fmt::format("{} memory has no dma-buf", to_string(pointer.kind)),
                       "allocate it with cuMemAlloc, cudaMalloc or Context::allocate");
    const driver::Cuda& cuda = *gpus.cuda();
    if (attribute_of(cuda, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, gpus.ordinal_of(pointer.gpu)) == 0)
        return none_of(buffer, "the GPU's driver hands out no dma-buf",
                       "use NVIDIA's open kernel modules, and Linux 5.12 or newer");
    SIDESTEP_TRY(const Gpu* const gpu, gpus.open(pointer.gpu));
    const driver::ScopedCudaContext current(*gpu->context());
    const auto address = reinterpret_cast<CUdeviceptr>(buffer.address());
    const Bytes page = driver::page_size();
    CUdeviceptr begin = address / page * page;
    CUdeviceptr end = base::round_up(address + buffer.size(), page);
    if (pointer.kind == MemoryKind::device) {
        // All of it: a GPU has pages of 64 KiB, and need not give out a part of one.
        std::size_t size = 0;
        SIDESTEP_CHECK(cuda.check(cuda.cuMemGetAddressRange(&begin, &size, address), "cuMemGetAddressRange"));
        end = base::round_up(begin + size, page);
        begin = begin / page * page;  // small ones share pages
    }
    int descriptor = -1;
    const CUresult status = cuda.dma_buf(&descriptor, begin, end - begin);
    if (status != CUDA_SUCCESS)
        return none_of(buffer,
                       cuda.error(status, "cuMemGetHandleForAddressRange", buffer.to_string()).message);
    auto held = std::make_shared<const driver::Fd>(descriptor);
    return backend::DmaBuf{descriptor, address - begin, std::move(held)};
}

// Where the GPU keeps the order of what comes over PCIe by itself there is nothing to do.
Result<void> see_card_writes(Gpus& gpus, const Place& place) {
    const driver::Cuda& cuda = *gpus.cuda();
    const int ordinal = gpus.ordinal_of(place.index());
    if (attribute_of(cuda, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, ordinal) >=
        CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER)
        return {};
    SIDESTEP_TRY(const Gpu* const gpu, gpus.open(place.index()));
    const driver::ScopedCudaContext current(*gpu->context());
    return cuda.check(cuda.flush_card_writes(), "cuFlushGPUDirectRDMAWrites");
}

Result<void> copy_to_gpu(Gpus& gpus, const Buffer& memory, const void* from) {
    SIDESTEP_TRY(const Gpu* const gpu, gpus.open(memory.place().index()));
    const driver::ScopedCudaContext current(*gpu->context());
    const driver::Cuda& cuda = *gpus.cuda();
    const auto at = reinterpret_cast<CUdeviceptr>(memory.address());
    return cuda.check(cuda.cuMemcpyHtoD(at, from, memory.size()), "cuMemcpyHtoD");
}

Result<void> copy_from_gpu(Gpus& gpus, const Buffer& memory, void* to) {
    SIDESTEP_TRY(const Gpu* const gpu, gpus.open(memory.place().index()));
    const driver::ScopedCudaContext current(*gpu->context());
    const driver::Cuda& cuda = *gpus.cuda();
    const auto at = reinterpret_cast<CUdeviceptr>(memory.address());
    return cuda.check(cuda.cuMemcpyDtoH(to, at, memory.size()), "cuMemcpyDtoH");
}

}  // namespace sidestep::backends::cuda
