// Many copies at once: by one kernel, by the driver's batch call, or one by one.
#pragma once

#include <memory>
#include <span>

#include <sidestep/units.hpp>
#include "driver/cuda_handles.hpp"

namespace sidestep::backends::cuda {

class Gpu;

// One copy, in addresses. `bytes` is above 0.
struct BatchPart {
    CUdeviceptr to = 0;
    CUdeviceptr from = 0;
    Bytes bytes = 0;
};

// The batch kernel, loaded into one GPU's context.
class BatchKernel {
public:
    // Loads the code now, so that no launch has to wait for the GPU to do it. Fails with
    // ErrorCode::unsupported on GPUs older than compute capability 8.0.
    static Result<BatchKernel> load(std::shared_ptr<const driver::CudaContext> context);
    BatchKernel(BatchKernel&& other) noexcept;
    BatchKernel& operator=(BatchKernel&&) = delete;
    ~BatchKernel();

    // Launches on `stream` of this context, which is current: one launch for each 1360 parts. Any alignment,
    // any size; fast where both addresses of a part are equal modulo 16.
    Result<void> launch(std::span<const BatchPart> parts, CUstream stream) const;

private:
    explicit BatchKernel(std::shared_ptr<const driver::CudaContext> context) : context_(std::move(context)) {}
    template <unsigned Entries>
    Result<std::size_t> launch_some(CUfunction function, std::span<const BatchPart> parts, Bytes& done,
                                    CUstream stream) const;

    std::shared_ptr<const driver::CudaContext> context_;  // null once moved from
    CUmodule module_ = nullptr;
    CUfunction small_ = nullptr;
    CUfunction large_ = nullptr;
    unsigned max_blocks_ = 0;
};

// How a batch was carried out. Any way but the requested one is worth a note.
enum class BatchWay { kernel, batch_call, one_by_one };

// Enqueues the copies on `stream` of the GPU's context, which is current. `by_kernel`: the kernel or an
// error. Else the kernel where the parts have less than 256 KiB in the mean, since the copy engine takes
// longer over them; the driver's batch call; and where that is not to be had (older drivers, a stream that is
// captured, the legacy default stream) one copy after the other.
Result<BatchWay> enqueue_batch(const Gpu& gpu, std::span<const BatchPart> parts, bool by_kernel,
                               CUstream stream, bool capturing);

}  // namespace sidestep::backends::cuda
