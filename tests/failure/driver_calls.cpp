// Calls of CUDA's driver go wrong as those of the operating system do: what dlsym() finds of it is a function around it.
#include <dlfcn.h>

#include <cstring>

#include "driver/cuda.hpp"
#include "tests/failure/calls.hpp"

namespace sidestep::failure {
namespace {

struct Entry {
    const char* name;
    void* around;
    void* real;
};
Entry& entry(int number);

template <typename Function>
struct Around;
template <typename... Arguments>
struct Around<CUresult (*)(Arguments...)> {
    template <int number>
    static CUresult call(Arguments... arguments) {
        const Entry& me = entry(number);
        if (goes_wrong(me.name)) return CUDA_ERROR_UNKNOWN;
        return reinterpret_cast<CUresult (*)(Arguments...)>(me.real)(arguments...);
    }
};

// Names as they are after the preprocessor: with their versions.
#define SIDESTEP_NAME(name) #name
constexpr int first = __COUNTER__ + 1;
#define SIDESTEP_ENTRY(name)                                                                              \
    {SIDESTEP_NAME(name), reinterpret_cast<void*>(&Around<decltype(&::name)>::call<__COUNTER__ - first>), \
     nullptr},
Entry entries[] = {SIDESTEP_CUDA_SYMBOLS(SIDESTEP_ENTRY)};

Entry& entry(int number) {
    return entries[number];
}

}  // namespace
}  // namespace sidestep::failure

// Instead of the C library's.
extern "C" void* dlsym(void* library, const char* name) noexcept {
    using Find = void* (*)(void*, const char*);
    static const Find find = [] {
        void* found = nullptr;
        for (const char* version : {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"})
            if (found == nullptr) found = ::dlvsym(RTLD_NEXT, "dlsym", version);
        return reinterpret_cast<Find>(found);
    }();
    void* const found = find(library, name);
    // What says in words what went wrong goes well.
    if (found == nullptr || std::strncmp(name, "cuGetError", 10) == 0) return found;
    for (auto& each : sidestep::failure::entries) {
        if (std::strcmp(each.name, name) != 0) continue;
        each.real = found;
        return each.around;
    }
    return found;
}
