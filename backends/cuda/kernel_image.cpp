#include "backends/cuda/kernel_image.hpp"

#include <cstring>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::backends::cuda {

Result<CUmodule> load_kernels(const driver::Cuda& cuda, const unsigned char* image, const char* what) {
    if (std::memcmp(image, no_kernels, sizeof no_kernels) == 0)
        return Error{ErrorCode::unsupported,
                     fmt::format("{} needs GPU kernels, and this build has none", what), "cuda",
                     "build with -DSIDESTEP_GPU_ARCHITECTURES=all"};
    CUmodule module = nullptr;
    const CUresult status = cuda.cuModuleLoadData(&module, image);
    if (status == CUDA_ERROR_NO_BINARY_FOR_GPU)
        return Error{ErrorCode::unsupported,
                     fmt::format("{} needs kernels for this GPU, and this build has none", what),
                     "cuModuleLoadData",
                     "GPUs of compute capability 8.0 and newer have some in a build with "
                     "-DSIDESTEP_GPU_ARCHITECTURES=all"};
    SIDESTEP_CHECK(cuda.check(status, "cuModuleLoadData"));
    return module;
}

}  // namespace sidestep::backends::cuda
