// Copies inside host memory, and the GPUs of modelled machines.
#pragma once

#include <memory>

#include "backend/backend.hpp"

namespace sidestep::backends::host {

struct HostOptions {
    int threads = 0;                // of the copy pool; 0: chosen from the processors
    Bytes emulated_gpu_memory = 0;  // what each emulated GPU may hand out; 0: what the model says
};

// On every machine: host memory to host memory by a pool of threads. On an emulated one also its GPUs:
// memory that is accounted for, told apart by GPU and reachable only as the topology allows, and engines
// of their own, so that whatever runs on the machine runs on the model.
std::unique_ptr<backend::Backend> create(HostOptions options);

}  // namespace sidestep::backends::host
