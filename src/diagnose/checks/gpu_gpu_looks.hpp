// What looks for the causes of group GPU-GPU; gpu_gpu.cpp has the words.
#pragma once

#include "diagnose/check.hpp"

namespace sidestep::diagnose {

Outcome look_acs_redirect(const Evidence& evidence);

// Why the driver refuses peer access.
Outcome look_geforce(const Evidence& evidence);
Outcome look_chipset(const Evidence& evidence);
Outcome look_refused(const Evidence& evidence);
Outcome look_mig(const Evidence& evidence);
Outcome look_confidential(const Evidence& evidence);

// What a trial of every pair found.
Outcome look_wrong_data(const Evidence& evidence);
Outcome look_slow_peers(const Evidence& evidence);

// NVLink and what joins it.
Outcome look_fabric(const Evidence& evidence);
Outcome look_nvlinks(const Evidence& evidence);
Outcome look_imex(const Evidence& evidence);

Outcome look_vmm_ipc(const Evidence& evidence);

}  // namespace sidestep::diagnose
