#include "driver/cuda_facts.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <utility>

#include "driver/dynamic_library.hpp"

namespace sidestep::driver {

namespace {

// The numbers of CUdevice_attribute in cuda.h of CUDA 13.0; they never change.
constexpr std::array attributes = {
    std::pair{"PAGEABLE_MEMORY_ACCESS", 88},
    std::pair{"HOST_REGISTER_SUPPORTED", 99},
    std::pair{"HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED", 103},
    std::pair{"GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED", 110},
    std::pair{"READ_ONLY_HOST_REGISTER_SUPPORTED", 113},
    std::pair{"GPU_DIRECT_RDMA_SUPPORTED", 116},
    std::pair{"GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS", 117},
    std::pair{"GPU_DIRECT_RDMA_WRITES_ORDERING", 118},
    std::pair{"DMA_BUF_SUPPORTED", 124},
    std::pair{"HANDLE_TYPE_FABRIC_SUPPORTED", 128},
    std::pair{"MULTICAST_SUPPORTED", 132},
    std::pair{"HOST_NUMA_ID", 134},
};

// The part of the driver interface that is used here, without cuda.h: builds without a CUDA toolkit have a
// doctor too.
struct CudaCalls {
    int (*init)(unsigned) = nullptr;
    int (*version)(int*) = nullptr;
    int (*count)(int*) = nullptr;
    int (*device)(int*, int) = nullptr;
    int (*attribute)(int*, int, int) = nullptr;
    int (*bus_id)(char*, int, int) = nullptr;
    int (*error_name)(int, const char**) = nullptr;
};

Result<CudaCalls> bind_cuda(const DynamicLibrary& library) {
    CudaCalls functions;
    for (const Result<void>& bound :
         {library.bind(functions.init, "cuInit"), library.bind(functions.version, "cuDriverGetVersion"),
          library.bind(functions.count, "cuDeviceGetCount"), library.bind(functions.device, "cuDeviceGet"),
          library.bind(functions.attribute, "cuDeviceGetAttribute"),
          library.bind(functions.bus_id, "cuDeviceGetPCIBusId"),
          library.bind(functions.error_name, "cuGetErrorName")}) {
        if (!bound.ok()) return bound.error();
    }
    return functions;
}

// CUDA writes "0000:1B:00.0".
std::string lower(std::string text) {
    for (char& c : text) {
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    return text;
}

CudaGpuFacts read_gpu(const CudaCalls& functions, int device) {
    CudaGpuFacts gpu;
    std::array<char, 32> id{};
    if (functions.bus_id(id.data(), static_cast<int>(id.size()), device) == 0)
        gpu.bus_id = lower(std::string(id.data(), ::strnlen(id.data(), id.size())));
    for (const auto& [name, number] : attributes) {
        int value = 0;
        if (functions.attribute(&value, number, device) == 0) gpu.attributes.emplace(name, value);
    }
    return gpu;
}

}  // namespace

CudaFacts read_cuda_facts(const std::string& name) {
    CudaFacts facts;
    const auto library = DynamicLibrary::open(name);
    if (!library.ok()) {
        facts.reason = library.error().message;
        return facts;
    }
    const auto functions = bind_cuda(*library);
    if (!functions.ok()) {
        facts.reason = functions.error().message;
        return facts;
    }
    facts.loaded = true;
    functions->version(&facts.version);
    facts.init_code = functions->init(0);
    const char* words = nullptr;
    if (functions->error_name(facts.init_code, &words) == 0 && words != nullptr) facts.init_words = words;
    if (facts.init_code != 0) return facts;
    int count = 0;
    if (functions->count(&count) != 0) return facts;
    for (int index = 0; index < count; ++index) {
        int device = 0;
        if (functions->device(&device, index) == 0) facts.gpus.push_back(read_gpu(*functions, device));
    }
    return facts;
}

}  // namespace sidestep::driver
