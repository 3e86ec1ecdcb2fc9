// What looks for hardware that fails: one function a check of hardware.cpp.
#pragma once

#include "diagnose/check.hpp"

namespace sidestep::diagnose {

Outcome look_lost_gpus(const Evidence& evidence);
Outcome look_xid(const Evidence& evidence);
Outcome look_expectation(const Evidence& evidence);
Outcome look_odd_devices(const Evidence& evidence);
Outcome look_pcie_errors(const Evidence& evidence);
Outcome look_nvlink_errors(const Evidence& evidence);
Outcome look_gpu_memory(const Evidence& evidence);
Outcome look_throttling(const Evidence& evidence);

}  // namespace sidestep::diagnose
