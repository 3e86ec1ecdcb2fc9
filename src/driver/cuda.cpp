#include "driver/cuda.hpp"

#include <fmt/format.h>

#include "base/try.hpp"
#include "driver/dynamic_library.hpp"

namespace sidestep::driver {
namespace {

constexpr const char* library_name = "libcuda.so.1";

Result<DynamicLibrary> open_library() {
    auto library = DynamicLibrary::open(library_name);
    if (library || library.error().code != ErrorCode::not_found) return library;
    return Error{ErrorCode::unsupported, fmt::format("{} was not found: no NVIDIA driver", library_name),
                 library.error().message,
                 "install the NVIDIA driver; a container must be started with the host's GPUs"};
}

ErrorCode code_of(CUresult status) {
    switch (status) {
        case CUDA_ERROR_OUT_OF_MEMORY:
            return ErrorCode::out_of_memory;
        case CUDA_ERROR_NOT_PERMITTED:
        case CUDA_ERROR_OPERATING_SYSTEM:
            return ErrorCode::permission_denied;
        case CUDA_ERROR_NO_DEVICE:
        case CUDA_ERROR_INVALID_DEVICE:
            return ErrorCode::not_found;
        case CUDA_ERROR_NOT_SUPPORTED:
        case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
        case CUDA_ERROR_NO_BINARY_FOR_GPU:
        case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
        case CUDA_ERROR_STUB_LIBRARY:
            return ErrorCode::unsupported;
        default:
            return ErrorCode::device_error;
    }
}

const char* hint_of_cuda(CUresult status) {
    switch (status) {
        case CUDA_ERROR_SYSTEM_NOT_READY:
            return "the fabric manager is not ready: start nvidia-fabricmanager in the driver's version";
        case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
            return "libcuda and the kernel module differ in version: reload the module or reboot";
        case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
            return "the forward compatibility libcuda serves data centre GPUs only: use the driver's own";
        case CUDA_ERROR_DEVICE_UNAVAILABLE:
            return "another process holds the GPU in exclusive mode (nvidia-smi -q -d COMPUTE)";
        case CUDA_ERROR_ILLEGAL_ADDRESS:
        case CUDA_ERROR_LAUNCH_FAILED:
        case CUDA_ERROR_ECC_UNCORRECTABLE:
        case CUDA_ERROR_NVLINK_UNCORRECTABLE:
            return "the GPU's context is lost for this process; see dmesg for the Xid";
        case CUDA_ERROR_NOT_INITIALIZED:
            return "CUDA does not survive fork(): open the Context in the process that uses it";
        case CUDA_ERROR_STUB_LIBRARY:
            return "the toolkit's stub libcuda was found first: take it out of LD_LIBRARY_PATH";
        default:
            return "";
    }
}

}  // namespace

// The list's names arrive here already expanded to the versioned ones; this makes strings of them.
#define SIDESTEP_CUDA_NAME(name) #name
#define SIDESTEP_CUDA_BIND(name) \
    if (bound) bound = library.bind(name, SIDESTEP_CUDA_NAME(name));

Result<void> Cuda::bind(const DynamicLibrary& library) {
    Result<void> bound;
    SIDESTEP_CUDA_SYMBOLS(SIDESTEP_CUDA_BIND)
    library.bind_optional(batch_copy_v2_, "cuMemcpyBatchAsync_v2");
    library.bind_optional(batch_copy_v1_, "cuMemcpyBatchAsync");
    library.bind_optional(dma_buf_, "cuMemGetHandleForAddressRange");
    library.bind_optional(flush_card_writes_, "cuFlushGPUDirectRDMAWrites");
    if (bound) return {};
    Error error = bound.error();
    error.hint = "use a driver of CUDA 12.4 or newer";
    return error;
}

Result<std::shared_ptr<const Cuda>> Cuda::load() {
    SIDESTEP_TRY(const DynamicLibrary library, open_library());
    std::shared_ptr<Cuda> table(new Cuda);
    SIDESTEP_CHECK(table->bind(library));
    return std::shared_ptr<const Cuda>(std::move(table));
}

Error Cuda::error(CUresult status, std::string_view call, std::string where) const {
    const char* name = nullptr;
    const char* text = nullptr;
    if (cuGetErrorName(status, &name) != CUDA_SUCCESS || !name) name = "unknown CUDA error";
    if (cuGetErrorString(status, &text) != CUDA_SUCCESS || !text) text = "no text";
    return Error{code_of(status),
                 fmt::format("{} failed: {} ({}: {})", call, name, static_cast<int>(status), text),
                 std::move(where), hint_of_cuda(status)};
}

CUresult Cuda::batch_copy(CUdeviceptr* to, CUdeviceptr* from, std::size_t* sizes, std::size_t count,
                          CUstream stream) const {
    // CUmemcpyAttributes: order of source accesses, hints for managed memory, flags.
    struct Attributes {
        int source_order = 1;  // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
        int hints[4] = {};
        unsigned flags = 0;
    };
#if CUDA_VERSION >= 12080
    static_assert(sizeof(Attributes) == sizeof(CUmemcpyAttributes));
    static_assert(int(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM) == 1);
#endif
    Attributes attributes;
    std::size_t applies_from = 0;
    if (batch_copy_v2_ != nullptr)
        return batch_copy_v2_(to, from, sizes, count, &attributes, &applies_from, 1, stream);
    std::size_t failed = 0;
    if (batch_copy_v1_ != nullptr)
        return batch_copy_v1_(to, from, sizes, count, &attributes, &applies_from, 1, &failed, stream);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult Cuda::dma_buf(int* descriptor, CUdeviceptr address, std::size_t bytes) const {
    if (dma_buf_ == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
    return dma_buf_(descriptor, address, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
}

CUresult Cuda::flush_card_writes() const {
    if (flush_card_writes_ == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
    return flush_card_writes_(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                              CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES);
}

}  // namespace sidestep::driver
