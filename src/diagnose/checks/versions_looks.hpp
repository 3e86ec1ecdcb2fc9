// What looks for the causes of group versions; versions.cpp has the words.
#pragma once

#include "diagnose/check.hpp"

namespace sidestep::diagnose {

// driver_versions.cpp: the parts of the NVIDIA driver.
Outcome look_driver_mismatch(const Evidence& evidence);
Outcome look_fabric_manager_version(const Evidence& evidence);
Outcome look_cuda_driver(const Evidence& evidence);
Outcome look_driver_kind(const Evidence& evidence);

// system_versions.cpp: kernel and libraries, and what follows from both.
Outcome look_kernel(const Evidence& evidence);
Outcome look_dma_buf_gpu(const Evidence& evidence);
Outcome look_libibverbs(const Evidence& evidence);

}  // namespace sidestep::diagnose
