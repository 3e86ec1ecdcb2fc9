// The CUDA driver as a table of entry points.
//
// Nothing links against CUDA: libcuda.so.1 is opened at run time, so a program with this backend starts
// on machines without an NVIDIA driver and can say what is missing.
#pragma once

#include <cuda.h>

#include <memory>
#include <string>
#include <string_view>

#include <sidestep/result.hpp>

// Every entry point the project calls, written once. cuda.h turns some of these names into versioned
// ones (cuMemAlloc is cuMemAlloc_v2); the preprocessor does the same to the names in this list, so that a
// member has the type, and load() looks up the symbol, that the header means. Left out are the calls
// whose signature changed after CUDA 12.4 (cuCtxCreate, cuMemAdvise, cuEventElapsedTime).
// clang-format off
#define SIDESTEP_CUDA_SYMBOLS(X) \
    X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetErrorString) X(cuDeviceGetCount) \
    X(cuDeviceGet) X(cuDeviceGetPCIBusId) X(cuDeviceGetAttribute) X(cuDeviceCanAccessPeer) \
    X(cuDeviceGetDefaultMemPool) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) \
    X(cuDevicePrimaryCtxGetState) X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuCtxGetCurrent) \
    X(cuCtxGetDevice) X(cuCtxSynchronize) X(cuCtxEnablePeerAccess) X(cuMemGetInfo) X(cuMemAlloc) \
    X(cuMemFree) X(cuMemAllocManaged) X(cuMemGetAddressRange) X(cuMemHostAlloc) X(cuMemFreeHost) \
    X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemHostGetDevicePointer) \
    X(cuMemAllocFromPoolAsync) X(cuMemFreeAsync) X(cuMemPoolGetAccess) X(cuMemPoolSetAccess) \
    X(cuMemGetAllocationGranularity) X(cuMemCreate) X(cuMemRelease) X(cuMemAddressReserve) \
    X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemGetAccess) \
    X(cuPointerGetAttributes) X(cuMemRangeGetAttribute) X(cuMemcpyAsync) X(cuMemcpyHtoD) \
    X(cuMemcpyDtoH) X(cuMemsetD8Async) X(cuStreamCreate) X(cuStreamDestroy) \
    X(cuStreamSynchronize) X(cuStreamGetId) X(cuStreamGetCtx) X(cuStreamIsCapturing) X(cuStreamBeginCapture) \
    X(cuStreamGetCaptureInfo_v3) X(cuStreamUpdateCaptureDependencies_v2) X(cuStreamEndCapture) X(cuStreamWaitEvent) X(cuStreamWaitValue32) X(cuStreamQuery) \
    X(cuStreamCreateWithPriority) X(cuStreamWaitValue64) X(cuStreamWriteValue64) \
    X(cuLaunchHostFunc) X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery) \
    X(cuModuleLoadData) X(cuModuleUnload) X(cuModuleGetFunction) X(cuFuncLoad) X(cuLaunchKernel) X(cuLaunchKernelEx) \
    X(cuGraphDestroy) X(cuGraphAddEventRecordNode) X(cuGraphAddDependencies_v2) X(cuGraphRemoveDependencies_v2) \
    X(cuGraphInstantiateWithFlags) X(cuGraphLaunch) X(cuGraphExecDestroy) \
    X(cuThreadExchangeStreamCaptureMode) X(cuDeviceGetUuid) X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle) \
    X(cuIpcCloseMemHandle) X(cuMemRetainAllocationHandle) X(cuMemGetAllocationPropertiesFromHandle) \
    X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle)
// clang-format on

namespace sidestep::driver {

// The members bear the driver's own names: cuda->cuMemAlloc(&address, bytes). Immutable after load(), so
// free to be used by several threads.
class Cuda {
public:
    // Opens libcuda.so.1 and finds every entry point. Initialises nothing. Fails with
    // ErrorCode::unsupported and a hint where there is no driver, or one that is too old.
    static Result<std::shared_ptr<const Cuda>> load();

    // The Error for a call that failed: the driver's name for it and its text. `where` is the place or
    // buffer concerned, may be empty.
    Error error(CUresult status, std::string_view call, std::string where = {}) const;

    // The same as a Result.
    Result<void> check(CUresult status, std::string_view call) const {
        if (status == CUDA_SUCCESS) [[likely]]
            return {};
        return error(status, call);
    }

    // Whether the driver has a call that takes many copies at once (CUDA 12.8 and newer).
    bool has_batch_copy() const { return batch_copy_v2_ != nullptr || batch_copy_v1_ != nullptr; }

    // That call: `count` copies in stream order as a whole, in any order among themselves. The arrays are
    // read during the call. Not on the legacy default stream, nor while the stream is being captured.
    // CUDA_ERROR_NOT_SUPPORTED where the driver has no such call.
    CUresult batch_copy(CUdeviceptr* to, CUdeviceptr* from, std::size_t* sizes, std::size_t count,
                        CUstream stream) const;
    // A dma-buf of whole pages of a GPU's memory: cuMemGetHandleForAddressRange. The descriptor belongs to the caller.
    // CUDA_ERROR_NOT_SUPPORTED where the driver has no such call, here and below.
    CUresult dma_buf(int* descriptor, CUdeviceptr address, std::size_t bytes) const;
    // What a network card wrote to memory of the current context's GPU is seen by all who read there:
    // cuFlushGPUDirectRDMAWrites.
    CUresult flush_card_writes() const;

#define SIDESTEP_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
    SIDESTEP_CUDA_SYMBOLS(SIDESTEP_CUDA_MEMBER)
#undef SIDESTEP_CUDA_MEMBER

private:
    // cuMemcpyBatchAsync as CUDA 12.8 has it, and as CUDA 13.0 has it, with CUmemcpyAttributes as `void`: the
    // headers of older toolkits lack both.
    using BatchCopyV1 = CUresult(CUdeviceptr*, CUdeviceptr*, std::size_t*, std::size_t, void*, std::size_t*,
                                 std::size_t, std::size_t*, CUstream);
    using BatchCopyV2 = CUresult(CUdeviceptr*, CUdeviceptr*, std::size_t*, std::size_t, void*, std::size_t*,
                                 std::size_t, CUstream);

    Cuda() = default;
    Result<void> bind(const class DynamicLibrary& library);

    decltype(&::cuMemGetHandleForAddressRange) dma_buf_ = nullptr;
    decltype(&::cuFlushGPUDirectRDMAWrites) flush_card_writes_ = nullptr;
    BatchCopyV1* batch_copy_v1_ = nullptr;
    BatchCopyV2* batch_copy_v2_ = nullptr;
};

}  // namespace sidestep::driver
