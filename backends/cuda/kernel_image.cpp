#include "backends/cuda/kernel_image.hpp"

#include <cstring>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::backends::cuda {

Result<CUmodule> load_kernels(const driver::Cuda& cuda, const unsigned char* image, const char* what) {
    constexpr const char* remedy =
        "build with -DSIDESTEP_GPU_ARCHITECTURES=all, or with this GPU in the machine";
    if (std::memcmp(image, no_kernels, sizeof no_kernels) == 0)
        return Error{ErrorCode::unsupported,
                     fmt::format("this build has no GPU kernels, which {} needs", what), "cuda", remedy};
    CUmodule module = nullptr;
    const CUresult status = cuda.cuModuleLoadData(&module, image);
    if (status == CUDA_ERROR_NO_BINARY_FOR_GPU)
        return Error{
            ErrorCode::unsupported,
            fmt::format(
                "{} needs kernels for this GPU, and the build has none (8.0 is the least compute capability)",
                what),
            "cuModuleLoadData", remedy};
    SIDESTEP_CHECK(cuda.check(status, "cuModuleLoadData"));
    return module;
}

}  // namespace sidestep::backends::cuda
