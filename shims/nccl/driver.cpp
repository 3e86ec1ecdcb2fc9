#include "shims/nccl/driver.hpp"

#include <dlfcn.h>

namespace sidestep::nccl {
namespace {

template <typename Function>
bool bind(void* library, Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    return function != nullptr;
}

Driver load() {
    Driver d;
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) return d;
    d.usable = bind(library, d.init, "cuInit") && bind(library, d.current, "cuCtxGetCurrent") &&
               bind(library, d.device_of_current, "cuCtxGetDevice") &&
               bind(library, d.device, "cuDeviceGet") && bind(library, d.bus_id, "cuDeviceGetPCIBusId") &&
               bind(library, d.retain_primary, "cuDevicePrimaryCtxRetain") &&
               bind(library, d.release_primary, "cuDevicePrimaryCtxRelease_v2") &&
               bind(library, d.push, "cuCtxPushCurrent_v2") && bind(library, d.pop, "cuCtxPopCurrent_v2") &&
               bind(library, d.create_event, "cuEventCreate") &&
               bind(library, d.destroy_event, "cuEventDestroy_v2") &&
               bind(library, d.record, "cuEventRecord") && bind(library, d.wait, "cuStreamWaitEvent") &&
               d.init(0) == 0;
    return d;
}

}  // namespace

const Driver& Driver::get() {
    static const Driver loaded = load();
    return loaded;
}

}  // namespace sidestep::nccl
