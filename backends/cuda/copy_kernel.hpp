// The copy kernel, loaded into one GPU's context.
#pragma once

#include <array>
#include <memory>

#include <sidestep/units.hpp>
#include "driver/cuda_handles.hpp"

namespace sidestep::backends::cuda {

class CopyKernel {
public:
    // Loads the code now, so that no launch has to wait for the GPU to do it. Fails with
    // ErrorCode::unsupported on GPUs older than compute capability 8.0.
    static Result<CopyKernel> load(std::shared_ptr<const driver::CudaContext> context);
    CopyKernel(CopyKernel&& other) noexcept;
    CopyKernel& operator=(CopyKernel&&) = delete;
    ~CopyKernel();

    // Launches on `stream` of this context, which is current. Any alignment, any size; fast where both
    // addresses are equal modulo 16.
    Result<void> launch(CUdeviceptr to, CUdeviceptr from, Bytes bytes, CUstream stream) const;

private:
    explicit CopyKernel(std::shared_ptr<const driver::CudaContext> context) : context_(std::move(context)) {}
    Result<void> find_functions();

    std::shared_ptr<const driver::CudaContext> context_;  // null once moved from
    CUmodule module_ = nullptr;
    std::array<CUfunction, 5> functions_{};  // words of 1 << i bytes
    unsigned max_blocks_ = 0;
};

}  // namespace sidestep::backends::cuda
