// Copies of memory that no processor touches, for a library that is loaded beside the driver and not linked with it.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

namespace sidestep::test {

// By CUDA's driver, where the program has loaded it. Emulated GPUs need none.
class CudaCopies {
public:
    CudaCopies() {
        void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
        if (library == nullptr) return;
        find(library, "cuPointerGetAttributes", attributes_);
        find(library, "cuCtxSetCurrent", set_context_);
        find(library, "cuMemcpyDtoH_v2", to_host_);
        find(library, "cuMemcpyHtoD_v2", to_device_);
    }
    // Null for memory that is no GPU's.
    void* context_of(const void* memory) const {
        void* context = nullptr;
        void* places[] = {static_cast<void*>(&context)};
        int which[] = {1};  // CU_POINTER_ATTRIBUTE_CONTEXT
        const auto address = reinterpret_cast<std::uintptr_t>(memory);
        return attributes_ != nullptr && attributes_(1, which, places, address) == 0 ? context : nullptr;
    }
    bool to_host(void* context, void* to, const char* from, std::size_t size) const {
        return set_context_(context) == 0 && to_host_(to, reinterpret_cast<std::uintptr_t>(from), size) == 0;
    }
    bool to_device(void* context, char* to, const void* from, std::size_t size) const {
        return set_context_(context) == 0 &&
               to_device_(reinterpret_cast<std::uintptr_t>(to), from, size) == 0;
    }

private:
    template <typename Function>
    static void find(void* library, const char* name, Function& function) {
        function = reinterpret_cast<Function>(::dlsym(library, name));
    }
    int (*attributes_)(unsigned, int*, void**, std::uintptr_t) = nullptr;
    int (*set_context_)(void*) = nullptr;
    int (*to_host_)(void*, std::uintptr_t, std::size_t) = nullptr;
    int (*to_device_)(std::uintptr_t, const void*, std::size_t) = nullptr;
};

}  // namespace sidestep::test
