// What the CUDA backend can move, and at which rate: data for the planner.
#pragma once

#include <vector>

#include "backend/capability.hpp"

namespace sidestep::backends::cuda {

// Positions in the vector that capabilities() answers.
enum Engine : std::size_t { host_to_gpu, gpu_to_host, peer_copy, peer_kernel, local_copy, local_kernel };

inline bool is_kernel(std::size_t engine) {
    return engine == peer_kernel || engine == local_kernel;
}

// `batch_call`: whether the driver has one (CUDA 12.8 and newer); the copy engines' reasons say so where not.
std::vector<backend::Capability> capabilities(bool batch_call = true);

}  // namespace sidestep::backends::cuda
