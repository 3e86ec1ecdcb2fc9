#include "backends/cuda/copy_kernel.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "backends/cuda/kernel_image.hpp"
#include "base/try.hpp"

namespace sidestep::backends::cuda {

// The fat binary of copy_kernel.cu, made at build time.
extern const unsigned char copy_kernel_image[];

namespace {

constexpr unsigned threads = 512;  // __launch_bounds__ of the kernel
constexpr unsigned words_a_thread = 4;
// More blocks do not make it faster (the loads in flight already cover the link's latency) and would keep
// the SMs from other work.
constexpr unsigned copy_blocks_a_multiprocessor = 2;

}  // namespace

Result<CopyKernel> CopyKernel::load(std::shared_ptr<const driver::CudaContext> context) {
    const driver::Cuda& cuda = context->cuda();
    CopyKernel kernel(std::move(context));
    driver::ScopedCudaContext current(*kernel.context_);
    SIDESTEP_TRY(kernel.module_, load_kernels(cuda, copy_kernel_image, "the copy kernel"));
    SIDESTEP_CHECK(kernel.find_functions());
    int multiprocessors = 0;
    const CUresult status = cuda.cuDeviceGetAttribute(
        &multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, kernel.context_->device());
    SIDESTEP_CHECK(cuda.check(status, "cuDeviceGetAttribute"));
    kernel.max_blocks_ = static_cast<unsigned>(multiprocessors) * copy_blocks_a_multiprocessor;
    return kernel;
}

Result<void> CopyKernel::find_functions() {
    const driver::Cuda& cuda = context_->cuda();
    for (std::size_t i = 0; i < functions_.size(); ++i) {
        const std::string name = fmt::format("sidestep_copy_{}", 1 << i);
        CUresult status = cuda.cuModuleGetFunction(&functions_[i], module_, name.c_str());
        SIDESTEP_CHECK(cuda.check(status, "cuModuleGetFunction"));
        // Lazy loading would make the first launch wait for the GPU, which may itself be waiting for us.
        SIDESTEP_CHECK(cuda.check(cuda.cuFuncLoad(functions_[i]), "cuFuncLoad"));
    }
    return {};
}

CopyKernel::CopyKernel(CopyKernel&& other) noexcept
    : context_(std::move(other.context_)),
      module_(std::exchange(other.module_, nullptr)),
      functions_(other.functions_),
      max_blocks_(other.max_blocks_) {}

CopyKernel::~CopyKernel() {
    if (!context_ || !module_) return;
    driver::ScopedCudaContext current(*context_);
    context_->cuda().cuModuleUnload(module_);
}

Result<void> CopyKernel::launch(CUdeviceptr to, CUdeviceptr from, Bytes bytes, CUstream stream) const {
    const int shift = std::min(4, std::countr_zero((to ^ from) | 16));
    const Bytes words = bytes >> shift;
    const Bytes tile = Bytes{threads} * words_a_thread;
    const Bytes blocks = std::clamp<Bytes>((words + tile - 1) / tile, 1, max_blocks_);
    void* arguments[] = {&to, &from, &bytes};
    const driver::Cuda& cuda = context_->cuda();
    return cuda.check(cuda.cuLaunchKernel(functions_[shift], static_cast<unsigned>(blocks), 1, 1, threads, 1,
                                          1, 0, stream, arguments, nullptr),
                      "cuLaunchKernel");
}

}  // namespace sidestep::backends::cuda
