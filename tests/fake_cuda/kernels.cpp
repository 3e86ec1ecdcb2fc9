// The copy kernel: a module that is recognised and not run; its launch copies the bytes.
#include <cstring>
#include <string>

#include "tests/fake_cuda/machine.hpp"

using namespace sidestep::fake_cuda;

namespace {

constexpr unsigned fat_binary = 0xba55ed50;  // the first word of what nvcc --fatbin writes
constexpr unsigned most_threads = 512;       // __launch_bounds__ of the kernel

}  // namespace

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    unsigned first = 0;
    std::memcpy(&first, image, sizeof first);
    if (first != fat_binary) return CUDA_ERROR_INVALID_IMAGE;
    auto made = std::make_unique<Module>();
    for (std::size_t i = 0; i < made->functions.size(); ++i)
        made->functions[i] = {current_context(), 1u << i};
    *module = reinterpret_cast<CUmodule>(made.get());
    std::lock_guard lock(Machine::get().mutex);
    Machine::get().modules[*module] = std::move(made);
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    std::lock_guard lock(Machine::get().mutex);
    return Machine::get().modules.erase(module) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    std::lock_guard lock(Machine::get().mutex);
    const auto found = Machine::get().modules.find(module);
    if (found == Machine::get().modules.end()) return CUDA_ERROR_INVALID_HANDLE;
    for (Function& known : found->second->functions) {
        if (name != "sidestep_copy_" + std::to_string(known.width)) continue;
        *function = reinterpret_cast<CUfunction>(&known);
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuFuncLoad(CUfunction) {
    return CUDA_SUCCESS;
}

// On a stream of the context that the module was loaded into. Memory out of reach and words that do not lie
// on their boundaries in both buffers are faults that end the context on a GPU; here the call says so.
CUresult cuLaunchKernel(CUfunction function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned,
                        unsigned, unsigned, CUstream stream, void** arguments, void**) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    const std::shared_ptr<Stream> found = find_stream(stream);
    const auto* kernel = reinterpret_cast<const Function*>(function);
    if (!found || kernel->context != found->context()) return CUDA_ERROR_INVALID_HANDLE;
    if (blocks == 0 || threads == 0 || threads > most_threads) return CUDA_ERROR_INVALID_VALUE;
    const auto to = *static_cast<const CUdeviceptr*>(arguments[0]);
    const auto from = *static_cast<const CUdeviceptr*>(arguments[1]);
    const auto bytes = *static_cast<const unsigned long long*>(arguments[2]);
    if ((to ^ from) % kernel->width != 0) return CUDA_ERROR_MISALIGNED_ADDRESS;
    {
        Machine& machine = Machine::get();
        std::lock_guard lock(machine.mutex);
        const int device = found->context()->device;
        if (!machine.reaches(device, to, bytes) || !machine.reaches(device, from, bytes))
            return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    return found->push(
        [=] { std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes); });
}
