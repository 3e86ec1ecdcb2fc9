// What looks for the causes of group GPU-storage; gpu_storage.cpp has the words.
#pragma once

#include "diagnose/check.hpp"

namespace sidestep::diagnose {

// direct_storage.cpp: what cuFile's direct ways need.
Outcome look_nvme(const Evidence& evidence);
Outcome look_nvidia_fs(const Evidence& evidence);
Outcome look_p2pdma_mode(const Evidence& evidence);
Outcome look_nvme_far(const Evidence& evidence);

// file_systems.cpp: what lies between a file and its drive.
Outcome look_file_system(const Evidence& evidence);
Outcome look_udev(const Evidence& evidence);

}  // namespace sidestep::diagnose
