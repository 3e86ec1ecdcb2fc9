#include "driver/cuda_handles.hpp"

#include <array>
#include <cstdio>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::driver {

Result<std::shared_ptr<const CudaContext>> CudaContext::retain(std::shared_ptr<const Cuda> cuda,
                                                               int ordinal) {
    CUdevice device = 0;
    SIDESTEP_CHECK(cuda->check(cuda->cuDeviceGet(&device, ordinal), "cuDeviceGet"));
    CUcontext context = nullptr;
    CUresult status = cuda->cuDevicePrimaryCtxRetain(&context, device);
    SIDESTEP_CHECK(cuda->check(status, "cuDevicePrimaryCtxRetain"));
    return std::shared_ptr<const CudaContext>(new CudaContext(std::move(cuda), device, context));
}

CudaContext::~CudaContext() {
    cuda_->cuDevicePrimaryCtxRelease(device_);
}

void ScopedCudaContext::set_aside() {
    CUcontext current = nullptr;
    while (cuda_.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != nullptr &&
           cuda_.cuCtxPopCurrent(&current) == CUDA_SUCCESS)
        set_aside_.push_back(current);
}

void ScopedCudaContext::put_back() {
    for (; !set_aside_.empty(); set_aside_.pop_back()) cuda_.cuCtxPushCurrent(set_aside_.back());
}

// A call may fail for what other work has done, and have done its own: what was current before was another one.
void ScopedCudaContext::pop_again() {
    CUcontext current = nullptr;
    if (cuda_.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == pushed_)
        cuda_.cuCtxPopCurrent(&current);
}

Result<CudaStream> CudaStream::create(std::shared_ptr<const CudaContext> context) {
    const Cuda& cuda = context->cuda();
    ScopedCudaContext current(*context);
    CUstream stream = nullptr;
    SIDESTEP_CHECK(cuda.check(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate"));
    return CudaStream(std::move(context), stream);
}

Result<CudaStream> CudaStream::create_urgent(std::shared_ptr<const CudaContext> context) {
    // The driver takes the nearest one that there is; lower numbers come first.
    constexpr int beyond_the_highest = -1000;
    const Cuda& cuda = context->cuda();
    ScopedCudaContext current(*context);
    CUstream stream = nullptr;
    const CUresult status =
        cuda.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, beyond_the_highest);
    SIDESTEP_CHECK(cuda.check(status, "cuStreamCreateWithPriority"));
    return CudaStream(std::move(context), stream);
}

CudaStream::~CudaStream() {
    if (!context_) return;
    ScopedCudaContext current(*context_);
    context_->cuda().cuStreamDestroy(stream_);
}

Result<CudaEvent> CudaEvent::create(std::shared_ptr<const Cuda> cuda) {
    CUevent event = nullptr;
    SIDESTEP_CHECK(cuda->check(cuda->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate"));
    return CudaEvent(std::move(cuda), event);
}

CudaEvent::~CudaEvent() {
    if (cuda_) cuda_->cuEventDestroy(event_);
}

Result<std::vector<std::string>> pci_addresses(const Cuda& cuda) {
    int devices = 0;
    SIDESTEP_CHECK(cuda.check(cuda.cuDeviceGetCount(&devices), "cuDeviceGetCount"));
    std::vector<std::string> addresses;
    for (int ordinal = 0; ordinal < devices; ++ordinal) {
        std::array<char, 32> text{};
        CUdevice device = 0;
        SIDESTEP_CHECK(cuda.check(cuda.cuDeviceGet(&device, ordinal), "cuDeviceGet"));
        const CUresult status = cuda.cuDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device);
        SIDESTEP_CHECK(cuda.check(status, "cuDeviceGetPCIBusId"));
        addresses.emplace_back(text.data());
    }
    return addresses;
}

bool same_pci_address(const std::string& a, const std::string& b) {
    std::array<std::array<unsigned, 3>, 2> address{};
    for (std::size_t i = 0; i < 2; ++i)
        if (std::sscanf((i == 0 ? a : b).c_str(), "%x:%x:%x", &address[i][0], &address[i][1],
                        &address[i][2]) != 3)
            return false;
    return address[0] == address[1];
}

}  // namespace sidestep::driver
