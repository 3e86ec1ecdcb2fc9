// Owners of the CUDA driver's objects.
//
// A handle remembers its context and keeps it alive. Destructors never throw; one that runs after the
// driver has shut down (a static object of the caller's) finds CUDA_ERROR_DEINITIALIZED and does nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "driver/cuda.hpp"

namespace sidestep::driver {

// The primary context of one GPU, the one that the CUDA runtime uses too.
class CudaContext {
public:
    // Takes about 0.12 s when the process has no context on that GPU yet (measured on H200).
    static Result<std::shared_ptr<const CudaContext>> retain(std::shared_ptr<const Cuda> cuda, int ordinal);
    ~CudaContext();
    CudaContext(const CudaContext&) = delete;
    CudaContext& operator=(const CudaContext&) = delete;

    const Cuda& cuda() const { return *cuda_; }
    CUcontext get() const { return context_; }
    CUdevice device() const { return device_; }

private:
    CudaContext(std::shared_ptr<const Cuda> cuda, CUdevice device, CUcontext context)
        : cuda_(std::move(cuda)), device_(device), context_(context) {}

    std::shared_ptr<const Cuda> cuda_;
    CUdevice device_;
    CUcontext context_;
};

// Makes a context current on this thread until the end of the scope, whatever was current before. If
// that fails, none is current, so that the calls in the scope fail and say so: in another context they would go
// well, on the wrong GPU.
//
// The scope is in the relaxed mode of stream capture too: a caller, or any thread of the program, may be
// capturing a stream of its own in the default mode, in which calls such as cuEventQuery and cuMemAlloc are
// refused to every thread and spoil the capture.
class ScopedCudaContext {
public:
    ScopedCudaContext(const Cuda& cuda, CUcontext context) : cuda_(cuda) {
        CUcontext before = nullptr;
        cuda_.cuCtxGetCurrent(&before);
        if (before != context) {
            if (cuda_.cuCtxPushCurrent(context) == CUDA_SUCCESS)
                pushed_ = context;
            else
                set_aside();
        }
        relaxed_ = cuda_.cuThreadExchangeStreamCaptureMode(&capture_mode_) == CUDA_SUCCESS;
    }
    explicit ScopedCudaContext(const CudaContext& context)
        : ScopedCudaContext(context.cuda(), context.get()) {}
    ~ScopedCudaContext() {
        if (relaxed_) cuda_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
        CUcontext popped = nullptr;
        if (pushed_ && cuda_.cuCtxPopCurrent(&popped) != CUDA_SUCCESS) pop_again();
        if (!set_aside_.empty()) put_back();
    }
    ScopedCudaContext(const ScopedCudaContext&) = delete;
    ScopedCudaContext& operator=(const ScopedCudaContext&) = delete;

private:
    void set_aside();
    void put_back();
    void pop_again();

    const Cuda& cuda_;
    CUcontext pushed_ = nullptr;        // null: it was current already, or could not be made so
    std::vector<CUcontext> set_aside_;  // the thread's contexts meanwhile, from the uppermost down
    CUstreamCaptureMode capture_mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // then the one before
    bool relaxed_ = false;
};

// A stream that does not wait for the default stream.
class CudaStream {
public:
    static Result<CudaStream> create(std::shared_ptr<const CudaContext> context);
    // Of the highest priority that the GPU has.
    static Result<CudaStream> create_urgent(std::shared_ptr<const CudaContext> context);
    CudaStream(CudaStream&& other) noexcept = default;
    CudaStream& operator=(CudaStream&&) = delete;
    // Work still on the stream goes on; the driver frees the stream after it.
    ~CudaStream();

    CUstream get() const { return stream_; }
    const CudaContext& context() const { return *context_; }

private:
    CudaStream(std::shared_ptr<const CudaContext> context, CUstream stream)
        : context_(std::move(context)), stream_(stream) {}

    std::shared_ptr<const CudaContext> context_;  // null once moved from
    CUstream stream_;
};

// An event without timing, in the context that is current when it is created. The creator keeps that
// context alive.
class CudaEvent {
public:
    static Result<CudaEvent> create(std::shared_ptr<const Cuda> cuda);
    CudaEvent(CudaEvent&& other) noexcept = default;
    CudaEvent& operator=(CudaEvent&& other) noexcept {
        std::swap(cuda_, other.cuda_);
        std::swap(event_, other.event_);
        return *this;
    }
    ~CudaEvent();

    CUevent get() const { return event_; }

private:
    CudaEvent(std::shared_ptr<const Cuda> cuda, CUevent event) : cuda_(std::move(cuda)), event_(event) {}

    std::shared_ptr<const Cuda> cuda_;  // null once moved from
    CUevent event_;
};

// The PCI addresses of the GPUs that CUDA shows this process, by ordinal.
Result<std::vector<std::string>> pci_addresses(const Cuda& cuda);
// Whether two texts are one address: NVML, sysfs and CUDA write its domain with 4 or 8 digits, in either case.
bool same_pci_address(const std::string& a, const std::string& b);

}  // namespace sidestep::driver
