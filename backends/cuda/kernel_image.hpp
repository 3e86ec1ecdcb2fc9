// Kernels of this build, loaded into a GPU's context.
#pragma once

#include "driver/cuda_handles.hpp"

namespace sidestep::backends::cuda {

// Of a build with SIDESTEP_GPU_ARCHITECTURES=none every image is this.
inline constexpr unsigned char no_kernels[] = {'n', 'o', 'n', 'e'};

// Loads an image that the build has embedded; `what` needs it, in words. The context is current, and the caller unloads the
// module. unsupported: this build has no kernels, or none for this GPU.
Result<CUmodule> load_kernels(const driver::Cuda& cuda, const unsigned char* image, const char* what);

}  // namespace sidestep::backends::cuda
