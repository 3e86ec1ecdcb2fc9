// Copies by the GPUs themselves: their copy engines, and a kernel over peer-mapped memory.
//
// probe() loads the driver and matches its devices to the topology; it creates no context. A GPU's
// context, streams and kernel come up at the first use of that GPU (about 0.12 s on H200), peer access at
// the first piece between two GPUs (0.125 s), and both last as long as the backend.
#pragma once

#include <memory>

#include "backend/backend.hpp"

namespace sidestep::backends::cuda {

std::unique_ptr<backend::Backend> create();

}  // namespace sidestep::backends::cuda
