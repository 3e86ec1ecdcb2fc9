// The exported functions that NCCL 2.29 to 2.32 added, except those about growing, one call's configuration
// and kernels. A program that was built against such a version does not load without them.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include <fmt/format.h>

#include "shims/nccl/calls.hpp"
#include "shims/nccl/exported.hpp"
#include "shims/nccl/failure.hpp"
#include "shims/nccl/handles.hpp"

using namespace sidestep;
using namespace sidestep::nccl;

namespace {

// A refusal that comes after what is wrong with the communicator.
ncclResult_t refuse(const char* name, ncclComm_t comm, const char* why, const char* instead) noexcept {
    return answer(name, [&] {
        const auto communicator = find(comm);
        return noted(communicator.ok() ? misuse(why, instead) : communicator.error());
    });
}

ncclResult_t refuse_one_sided(const char* name, ncclComm_t comm) noexcept {
    return refuse(name, comm, "one-sided operations are not supported by this library",
                  "use ncclSend and ncclRecv");
}

Result<ncclCommProperties_t> properties_of(const Communicator& communicator) {
    if (auto ready = communicator.ready(); !ready.ok()) return ready.error();
    ncclCommProperties_t found{};
    found.rank = communicator.rank();
    found.nRanks = communicator.ranks();
    found.cudaDev = communicator.device().number;
    found.nvmlDev = communicator.device().place.index();
    found.nLsaTeams = 1;
    const GroupId id = communicator.id();
    std::memcpy(&found.commHash, id.bytes.data(), sizeof found.commHash);
    return found;
}

// NCCL's parameters are the values of its environment variables, of which this library reads NCCL_CTA_POLICY
// alone.
ncclResult_t no_parameter(const char* name, const char* key) noexcept {
    return answer(name, [&]() -> Result<ncclResult_t> {
        if (key == nullptr) return bad_argument("the key or the address to write to is NULL");
        return bad_argument(
            fmt::format("unknown parameter '{}': this library has none of NCCL's parameters", key));
    });
}

ncclResult_t no_handle(const char* name) noexcept {
    return answer(name, []() -> Result<ncclResult_t> {
        return bad_argument("unknown parameter handle: this library has none of NCCL's parameters");
    });
}

}  // namespace

extern "C" {

// No function of this library can be called by kernels, so what is said to be there is little.
ncclResult_t pncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* properties) {
    return answer("ncclCommQueryProperties", [&]() -> Result<ncclResult_t> {
        const auto communicator = find(comm);
        if (!communicator.ok()) return communicator.error();
        constexpr std::size_t begin = offsetof(ncclCommProperties_t, rank);
        if (properties == nullptr || properties->size < begin || properties->magic != NCCL_CONFIG_MAGIC)
            return bad_argument(
                "the properties are NULL or not initialised with NCCL_COMM_PROPERTIES_INITIALIZER");
        const auto found = properties_of(**communicator);
        if (!found.ok()) return found.error();
        // What later versions append is something that this library does not have.
        auto* const into = reinterpret_cast<char*>(properties);
        std::memset(into + begin, 0, properties->size - begin);
        std::memcpy(into + begin, reinterpret_cast<const char*>(&*found) + begin,
                    std::min(properties->size, sizeof *found) - begin);
        return ncclSuccess;
    });
}
SIDESTEP_NCCL_ALSO(CommQueryProperties);

ncclResult_t pncclCommSuspend(ncclComm_t comm, int flags) {
    if (flags != NCCL_SUSPEND_MEM)
        return answer("ncclCommSuspend", [&]() -> Result<ncclResult_t> {
            return bad_argument(fmt::format("the flags are {:#x}, but must be NCCL_SUSPEND_MEM", flags));
        });
    return refuse(
        "ncclCommSuspend", comm,
        "communicators of this library cannot be suspended: they keep their memory until they are destroyed",
        "destroy it and create a new one");
}
SIDESTEP_NCCL_ALSO(CommSuspend);

ncclResult_t pncclCommResume(ncclComm_t comm) {
    return refuse("ncclCommResume", comm, "the communicator is not suspended",
                  "this library never suspends one");
}
SIDESTEP_NCCL_ALSO(CommResume);

ncclResult_t pncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value) {
    return answer("ncclCommMemStats", [&]() -> Result<ncclResult_t> {
        const auto communicator = find(comm);
        if (!communicator.ok()) return communicator.error();
        if (value == nullptr) return bad_argument("the address to write to is NULL");
        *value = 0;
        if (stat == ncclStatGpuMemSuspend || stat == ncclStatGpuMemSuspended) return ncclSuccess;
        if (stat == ncclStatGpuMemPersist || stat == ncclStatGpuMemTotal)
            return misuse("this library does not count the memory of a communicator");
        return bad_argument(fmt::format("unknown statistic {}", stat));
    });
}
SIDESTEP_NCCL_ALSO(CommMemStats);

ncclResult_t pncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void** memory) {
    return answer("ncclWinGetUserPtr", [&]() -> Result<ncclResult_t> {
        const auto communicator = find(comm);
        if (!communicator.ok()) return communicator.error();
        if (memory == nullptr) return bad_argument("the address to write to is NULL");
        *memory = nullptr;
        auto found = (*communicator)->registered_memory(window);
        if (!found.ok()) return found.error();
        *memory = *found;
        return ncclSuccess;
    });
}
SIDESTEP_NCCL_ALSO(WinGetUserPtr);

ncclResult_t pncclPutSignal(const void*, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int,
                            unsigned int, ncclComm_t comm, cudaStream_t) {
    return refuse_one_sided("ncclPutSignal", comm);
}
SIDESTEP_NCCL_ALSO(PutSignal);

ncclResult_t pncclSignal(int, int, int, unsigned int, ncclComm_t comm, cudaStream_t) {
    return refuse_one_sided("ncclSignal", comm);
}
SIDESTEP_NCCL_ALSO(Signal);

ncclResult_t pncclWaitSignal(int, const void*, ncclComm_t comm, cudaStream_t) {
    return refuse_one_sided("ncclWaitSignal", comm);
}
SIDESTEP_NCCL_ALSO(WaitSignal);

ncclResult_t pncclParamBind(ncclParamHandle_t* handle, const char* key) {
    if (handle != nullptr) *handle = nullptr;
    return no_parameter("ncclParamBind", handle != nullptr ? key : nullptr);
}
SIDESTEP_NCCL_ALSO(ParamBind);

ncclResult_t pncclParamGetParameter(const char* key, const char** value, int* length) {
    if (value != nullptr) *value = nullptr;
    if (length != nullptr) *length = 0;
    return no_parameter("ncclParamGetParameter", value != nullptr ? key : nullptr);
}
SIDESTEP_NCCL_ALSO(ParamGetParameter);

ncclResult_t pncclParamGetAllParameterKeys(const char*** keys, int* count) {
    return answer("ncclParamGetAllParameterKeys", [&]() -> Result<ncclResult_t> {
        if (keys == nullptr || count == nullptr) return bad_argument("an address to write to is NULL");
        static const char* none[] = {nullptr};
        *keys = none;
        *count = 0;
        return ncclSuccess;
    });
}
SIDESTEP_NCCL_ALSO(ParamGetAllParameterKeys);

// There is none to print.
void pncclParamDumpAll(void) {}
SIDESTEP_NCCL_ALSO(ParamDumpAll);

ncclResult_t pncclParamGet(ncclParamHandle_t, void*, int, int*) {
    return no_handle("ncclParamGet");
}
SIDESTEP_NCCL_ALSO(ParamGet);

ncclResult_t pncclParamGetStr(ncclParamHandle_t, const char**) {
    return no_handle("ncclParamGetStr");
}
SIDESTEP_NCCL_ALSO(ParamGetStr);

#define SIDESTEP_NCCL_PARAM(suffix, type)                          \
    ncclResult_t pncclParamGet##suffix(ncclParamHandle_t, type*) { \
        return no_handle("ncclParamGet" #suffix);                  \
    }                                                              \
    SIDESTEP_NCCL_ALSO(ParamGet##suffix)
SIDESTEP_NCCL_PARAM(I8, int8_t);
SIDESTEP_NCCL_PARAM(I16, int16_t);
SIDESTEP_NCCL_PARAM(I32, int32_t);
SIDESTEP_NCCL_PARAM(I64, int64_t);
SIDESTEP_NCCL_PARAM(U8, uint8_t);
SIDESTEP_NCCL_PARAM(U16, uint16_t);
SIDESTEP_NCCL_PARAM(U32, uint32_t);
SIDESTEP_NCCL_PARAM(U64, uint64_t);

// It is about TCP, which ranks of one machine do not use.
ncclResult_t pncclSetEncryption(const ncclEncryptionConfig_t* config) {
    return answer("ncclSetEncryption", [&]() -> Result<ncclResult_t> {
        if (config == nullptr || config->size < sizeof *config || config->magic != NCCL_CONFIG_MAGIC)
            return bad_argument(
                "the configuration is NULL or not initialised with NCCL_ENCRYPTION_CONFIG_INITIALIZER");
        if (config->mode == NCCL_ENCRYPTION_MODE_NONE) return ncclSuccess;
        if (config->mode == NCCL_ENCRYPTION_MODE_PSK)
            return misuse("this library does not encrypt",
                          "its ranks talk over Unix sockets of one machine and user");
        return bad_argument(fmt::format("unknown encryption mode {}", config->mode));
    });
}
SIDESTEP_NCCL_ALSO(SetEncryption);
}
