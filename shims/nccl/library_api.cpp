// The exported functions about the library itself: version, errors, memory.
#include "shims/nccl/exported.hpp"
#include "shims/nccl/failure.hpp"
#include "shims/nccl/handles.hpp"
#include "shims/nccl/memory.hpp"

using namespace sidestep;
using namespace sidestep::nccl;

extern "C" {

ncclResult_t pncclGetVersion(int* version) {
    return answer("ncclGetVersion", [&]() -> Result<ncclResult_t> {
        if (version == nullptr) return bad_argument("version is NULL");
        *version = NCCL_VERSION_CODE;
        return ncclSuccess;
    });
}
SIDESTEP_NCCL_ALSO(GetVersion);

const char* pncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess:
            return "no error";
        case ncclUnhandledCudaError:
            return "CUDA failed, or memory ran out (ncclGetLastError tells more)";
        case ncclSystemError:
            return "a call of the operating system failed (ncclGetLastError tells more)";
        case ncclInternalError:
            return "a defect in this library (ncclGetLastError tells more)";
        case ncclInvalidArgument:
            return "invalid argument (ncclGetLastError tells which)";
        case ncclInvalidUsage:
            return "invalid usage, or not supported by this library (ncclGetLastError tells more)";
        case ncclRemoteError:
            return "another rank failed, left or did not come in time (ncclGetLastError tells which)";
        case ncclInProgress:
            return "the operation is in progress";
        default:
            return "unknown result code";
    }
}
SIDESTEP_NCCL_ALSO(GetErrorString);

const char* pncclGetLastError(ncclComm_t comm) {
    try {
        if (comm == nullptr) return last_message();
        const auto communicator = find(comm);
        if (!communicator.ok()) return last_message();
        const auto [number, error] = (*communicator)->state();
        return number == ncclSuccess || number == ncclInProgress ? last_message() : keep(error.to_string());
    } catch (...) {
        return last_message();
    }
}
SIDESTEP_NCCL_ALSO(GetLastError);

// NCCL reads its variables for logging again. This library has none: SIDESTEP_LOG is read once.
void pncclResetDebugInit(void) {}
SIDESTEP_NCCL_ALSO(ResetDebugInit);

ncclResult_t pncclMemAlloc(void** memory, size_t size) {
    return answer("ncclMemAlloc", [&]() -> Result<ncclResult_t> {
        if (memory == nullptr) return bad_argument("the address to write to is NULL");
        *memory = nullptr;
        if (size == 0) return ncclSuccess;
        auto allocated = allocate_memory(size);
        if (!allocated.ok()) return allocated.error();
        *memory = *allocated;
        return ncclSuccess;
    });
}
SIDESTEP_NCCL_ALSO(MemAlloc);

ncclResult_t pncclMemFree(void* memory) {
    return answer("ncclMemFree", [&]() -> Result<ncclResult_t> {
        if (memory == nullptr) return ncclSuccess;
        if (auto freed = free_memory(memory); !freed.ok()) return freed.error();
        return ncclSuccess;
    });
}
SIDESTEP_NCCL_ALSO(MemFree);

ncclResult_t sidestepNcclSetDevice(int device) {
    return answer("sidestepNcclSetDevice", [&]() -> Result<ncclResult_t> {
        const auto machine = context();
        if (!machine.ok()) return machine.error();
        if (auto set = set_emulated_device(**machine, device, true); !set.ok()) return set.error();
        return ncclSuccess;
    });
}
}
