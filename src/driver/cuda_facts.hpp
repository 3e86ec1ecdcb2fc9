// What the CUDA driver says of itself and of each GPU, without making a context.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace sidestep::driver {

struct CudaGpuFacts {
    std::string bus_id;  // as sysfs writes it
    // Attributes by the last part of their CU_DEVICE_ATTRIBUTE_ name: "DMA_BUF_SUPPORTED".
    std::map<std::string, int> attributes;
};

struct CudaFacts {
    bool loaded = false;             // libcuda is there, and cuInit answered
    std::string reason;              // why it is not loaded
    int init_code = 0;               // what cuInit returned; 0: well, 802: the fabric is not up
    std::string init_words;          // the name of that code
    int version = 0;                 // 13000 for CUDA 13.0
    std::vector<CudaGpuFacts> gpus;  // those that CUDA_VISIBLE_DEVICES leaves, in CUDA's order
};

// Loads the library, calls cuInit and reads. No context is made; cuInit itself takes tenths of a second
// where no other process holds the driver.
CudaFacts read_cuda_facts(const std::string& library = "libcuda.so.1");

}  // namespace sidestep::driver
