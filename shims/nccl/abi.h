/* The binary interface of NCCL 2.28, and the functions that came with 2.29 to 2.32: what a program that was
 * built against them passes and expects.
 *
 * Facts of the interface (names, order of arguments, numbers, layouts), declared anew from NVIDIA's user
 * guide, https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html, and from the symbols of the
 * library. What NCCL declares as an enum is an int here: numbers that a caller makes up must arrive as they
 * are. C99 and C++. */
#ifndef SIDESTEP_SHIMS_NCCL_ABI_H
#define SIDESTEP_SHIMS_NCCL_ABI_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct ncclComm* ncclComm_t;
typedef struct ncclWindow_vidmem* ncclWindow_t;
typedef struct CUstream_st* cudaStream_t;

typedef struct {
    char internal[128];
} ncclUniqueId;

typedef int ncclResult_t;
enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
    ncclNumResults = 8
};

typedef int ncclDataType_t;
enum {
    ncclInt8 = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclFloat32 = 7,
    ncclFloat64 = 8,
    ncclBfloat16 = 9,
    ncclFloat8e4m3 = 10,
    ncclFloat8e5m2 = 11,
    ncclNumTypes = 12
};

/* From ncclNumOps on: operations that ncclRedOpCreatePreMulSum made. */
typedef int ncclRedOp_t;
enum { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4, ncclNumOps = 5 };

typedef int ncclScalarResidence_t;
enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 };

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_MAGIC 0xcafebeefu
#define NCCL_SIM_INFO_MAGIC 0x74685283u
#define NCCL_VERSION_CODE 22809
#define NCCL_SPLIT_NOCOLOR (-1)
#define NCCL_SHRINK_DEFAULT 0
#define NCCL_SHRINK_ABORT 1
#define NCCL_REVOKE_DEFAULT 0
#define NCCL_CTA_POLICY_EFFICIENCY 1
#define NCCL_CTA_POLICY_ZERO 2
#define NCCL_WIN_DEFAULT 0
#define NCCL_WIN_COLL_SYMMETRIC 1
#define NCCL_WIN_STRICT_ORDERING 2 /* since 2.30 */

/* Later versions are longer, earlier ones shorter: `size` tells how much of it the caller has. */
typedef struct {
    size_t size;
    unsigned int magic;
    unsigned int version;
    int blocking;
    int cgaClusterSize;
    int minCTAs;
    int maxCTAs;
    const char* netName;
    int splitShare;
    int trafficClass;
    const char* commName;
    int collnetEnable;
    int CTAPolicy;
    int shrinkShare;
    int nvlsCTAs;
    int nChannelsPerNetPeer;
    int nvlinkCentricSched;
} ncclConfig_t;

typedef struct {
    size_t size;
    unsigned int magic;
    unsigned int version;
    float estimatedTime; /* microseconds */
} ncclSimInfo_t;

typedef struct {
    int nRanks;
    int rank;
    int stride;
} ncclTeam_t;

/* Since 2.29. Later versions append; `size` tells how much the caller has. */
typedef struct {
    size_t size;
    unsigned int magic;
    unsigned int version;
    int rank;
    int nRanks;
    int cudaDev;
    int nvmlDev;
    unsigned char deviceApiSupport;
    unsigned char multimemSupport;
    int ginType; /* 0: none */
    int nLsaTeams;
    unsigned char hostRmaSupport;
    int railedGinType;
    uint64_t commHash; /* from here on since 2.31 */
    int ginMinStride;
    int ginConnectionType;
    unsigned char ginSupport[64];
    size_t devCommRuntimeVersionSize;
    unsigned char cftSupport; /* from here on since 2.32 */
    unsigned char cftMulticastSupport;
    unsigned char cftCountedSupport;
} ncclCommProperties_t;

/* Since 2.29. */
typedef int ncclCommMemStat_t;
enum {
    ncclStatGpuMemSuspend = 0,
    ncclStatGpuMemSuspended = 1,
    ncclStatGpuMemPersist = 2,
    ncclStatGpuMemTotal = 3
};
#define NCCL_SUSPEND_MEM 1

/* Since 2.30. */
typedef struct ncclParamHandle* ncclParamHandle_t;

/* Since 2.31, for one collective. */
typedef struct {
    size_t size;
    unsigned int magic;
    unsigned int version;
    const void* ext;
    int minCTAs;
    int maxCTAs;
    int nvlsCTAs;
    int cgaClusterSize;
    const char* algSelection;
    int forceAlgSelection;
    int CTAPolicy;
    uint64_t userProfilerTag;
    void* launchCompletionEvent; /* a cudaEvent_t; since 2.32 */
} ncclCollConfig_t;

/* Since 2.32. */
typedef struct {
    size_t size;
    unsigned int magic;
    unsigned int version;
    int mode;
    const char* psk;
} ncclEncryptionConfig_t;
enum { NCCL_ENCRYPTION_MODE_NONE = 0, NCCL_ENCRYPTION_MODE_PSK = 1 };

/* Every function has two names: the plain one, which a profiler may define too, and the one with a p. */
#define NCCL_BOTH(result, name, ...) \
    result nccl##name(__VA_ARGS__);  \
    result pnccl##name(__VA_ARGS__)

NCCL_BOTH(ncclResult_t, GetVersion, int* version);
NCCL_BOTH(ncclResult_t, GetUniqueId, ncclUniqueId* id);
NCCL_BOTH(const char*, GetErrorString, ncclResult_t result);
NCCL_BOTH(const char*, GetLastError, ncclComm_t comm);
NCCL_BOTH(void, ResetDebugInit, void);

NCCL_BOTH(ncclResult_t, MemAlloc, void** memory, size_t size);
NCCL_BOTH(ncclResult_t, MemFree, void* memory);

NCCL_BOTH(ncclResult_t, CommInitRank, ncclComm_t* comm, int ranks, ncclUniqueId id, int rank);
NCCL_BOTH(ncclResult_t, CommInitRankConfig, ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
          ncclConfig_t* config);
NCCL_BOTH(ncclResult_t, CommInitRankScalable, ncclComm_t* comm, int ranks, int rank, int id_count,
          ncclUniqueId* ids, ncclConfig_t* config);
NCCL_BOTH(ncclResult_t, CommInitAll, ncclComm_t* comms, int devices, const int* device_list);
NCCL_BOTH(ncclResult_t, CommFinalize, ncclComm_t comm);
NCCL_BOTH(ncclResult_t, CommDestroy, ncclComm_t comm);
NCCL_BOTH(ncclResult_t, CommAbort, ncclComm_t comm);
NCCL_BOTH(ncclResult_t, CommRevoke, ncclComm_t comm, int flags);
NCCL_BOTH(ncclResult_t, CommSplit, ncclComm_t comm, int color, int key, ncclComm_t* new_comm,
          ncclConfig_t* config);
NCCL_BOTH(ncclResult_t, CommShrink, ncclComm_t comm, int* excluded, int excluded_count, ncclComm_t* new_comm,
          ncclConfig_t* config, int flags);
NCCL_BOTH(ncclResult_t, CommGetAsyncError, ncclComm_t comm, ncclResult_t* error);
NCCL_BOTH(ncclResult_t, CommCount, const ncclComm_t comm, int* count);
NCCL_BOTH(ncclResult_t, CommCuDevice, const ncclComm_t comm, int* device);
NCCL_BOTH(ncclResult_t, CommUserRank, const ncclComm_t comm, int* rank);
NCCL_BOTH(ncclResult_t, CommRegister, const ncclComm_t comm, void* memory, size_t size, void** handle);
NCCL_BOTH(ncclResult_t, CommDeregister, const ncclComm_t comm, void* handle);
NCCL_BOTH(ncclResult_t, CommWindowRegister, ncclComm_t comm, void* memory, size_t size, ncclWindow_t* window,
          int flags);
NCCL_BOTH(ncclResult_t, CommWindowDeregister, ncclComm_t comm, ncclWindow_t window);

NCCL_BOTH(ncclResult_t, RedOpCreatePreMulSum, ncclRedOp_t* op, void* scalar, ncclDataType_t type,
          ncclScalarResidence_t residence, ncclComm_t comm);
NCCL_BOTH(ncclResult_t, RedOpDestroy, ncclRedOp_t op, ncclComm_t comm);

NCCL_BOTH(ncclResult_t, AllReduce, const void* send, void* recv, size_t count, ncclDataType_t type,
          ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
NCCL_BOTH(ncclResult_t, Broadcast, const void* send, void* recv, size_t count, ncclDataType_t type, int root,
          ncclComm_t comm, cudaStream_t stream);
NCCL_BOTH(ncclResult_t, Bcast, void* data, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
          cudaStream_t stream);
NCCL_BOTH(ncclResult_t, Reduce, const void* send, void* recv, size_t count, ncclDataType_t type,
          ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);
NCCL_BOTH(ncclResult_t, AllGather, const void* send, void* recv, size_t count, ncclDataType_t type,
          ncclComm_t comm, cudaStream_t stream);
NCCL_BOTH(ncclResult_t, ReduceScatter, const void* send, void* recv, size_t count, ncclDataType_t type,
          ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
NCCL_BOTH(ncclResult_t, AlltoAll, const void* send, void* recv, size_t count, ncclDataType_t type,
          ncclComm_t comm, cudaStream_t stream);
NCCL_BOTH(ncclResult_t, Gather, const void* send, void* recv, size_t count, ncclDataType_t type, int root,
          ncclComm_t comm, cudaStream_t stream);
NCCL_BOTH(ncclResult_t, Scatter, const void* send, void* recv, size_t count, ncclDataType_t type, int root,
          ncclComm_t comm, cudaStream_t stream);
NCCL_BOTH(ncclResult_t, Send, const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
          cudaStream_t stream);
NCCL_BOTH(ncclResult_t, Recv, void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
          cudaStream_t stream);

NCCL_BOTH(ncclResult_t, GroupStart, void);
NCCL_BOTH(ncclResult_t, GroupEnd, void);
NCCL_BOTH(ncclResult_t, GroupSimulateEnd, ncclSimInfo_t* info);

/* Communication from within kernels: the structures are NCCL's own and are not looked at here. */
NCCL_BOTH(ncclResult_t, DevCommCreate, ncclComm_t comm, const void* requirements, void* device_comm);
NCCL_BOTH(ncclResult_t, DevCommDestroy, ncclComm_t comm, const void* device_comm);
NCCL_BOTH(ncclResult_t, LsaBarrierCreateRequirement, ncclTeam_t team, int barriers, void* handle,
          void* requirement);
NCCL_BOTH(ncclResult_t, GinBarrierCreateRequirement, ncclComm_t comm, ncclTeam_t team, int barriers,
          void* handle, void* requirement);
NCCL_BOTH(int, LLA2ACalcSlots, int max_elements, int max_element_size);
NCCL_BOTH(ncclResult_t, LLA2ACreateRequirement, int blocks, int slots, void* handle, void* requirement);
NCCL_BOTH(ncclTeam_t, TeamWorld, ncclComm_t comm);
NCCL_BOTH(ncclTeam_t, TeamLsa, ncclComm_t comm);
NCCL_BOTH(ncclTeam_t, TeamRail, ncclComm_t comm);
NCCL_BOTH(int, TeamRankToWorld, ncclComm_t comm, ncclTeam_t team, int rank);
NCCL_BOTH(int, TeamRankToLsa, ncclComm_t comm, ncclTeam_t team, int rank);

/* Since 2.29. */
NCCL_BOTH(ncclResult_t, CommGetUniqueId, ncclComm_t comm, ncclUniqueId* id);
NCCL_BOTH(ncclResult_t, CommGrow, ncclComm_t comm, int ranks, const ncclUniqueId* id, int rank,
          ncclComm_t* new_comm, ncclConfig_t* config);
NCCL_BOTH(ncclResult_t, CommMemStats, ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value);
NCCL_BOTH(ncclResult_t, CommQueryProperties, ncclComm_t comm, ncclCommProperties_t* properties);
NCCL_BOTH(ncclResult_t, CommResume, ncclComm_t comm);
NCCL_BOTH(ncclResult_t, CommSuspend, ncclComm_t comm, int flags);
NCCL_BOTH(ncclResult_t, WinGetUserPtr, ncclComm_t comm, ncclWindow_t window, void** memory);
NCCL_BOTH(ncclResult_t, PutSignal, const void* data, size_t count, ncclDataType_t type, int peer,
          ncclWindow_t window, size_t offset, int signal, int context, unsigned int flags, ncclComm_t comm,
          cudaStream_t stream);
NCCL_BOTH(ncclResult_t, Signal, int peer, int signal, int context, unsigned int flags, ncclComm_t comm,
          cudaStream_t stream);
NCCL_BOTH(ncclResult_t, WaitSignal, int count, const void* descriptions, ncclComm_t comm,
          cudaStream_t stream);
NCCL_BOTH(ncclResult_t, GetLsaDevicePointer, ncclWindow_t window, size_t offset, int rank, void** pointer);
NCCL_BOTH(ncclResult_t, GetLsaMultimemDevicePointer, ncclWindow_t window, size_t offset, void** pointer);
NCCL_BOTH(ncclResult_t, GetMultimemDevicePointer, ncclWindow_t window, size_t offset, void* multimem,
          void** pointer);
NCCL_BOTH(ncclResult_t, GetPeerDevicePointer, ncclWindow_t window, size_t offset, int rank, void** pointer);
NCCL_BOTH(ncclResult_t, GinInboxA2ACreateRequirement, ncclTeam_t team, int blocks, int size_log2,
          void* handle, void* requirement);
NCCL_BOTH(ncclResult_t, GinOutboxCreateRequirement, int blocks, int size_log2, void* handle,
          void* requirement);

/* Since 2.30. */
NCCL_BOTH(ncclResult_t, ParamBind, ncclParamHandle_t* handle, const char* key);
NCCL_BOTH(ncclResult_t, ParamGet, ncclParamHandle_t handle, void* value, int max, int* length);
NCCL_BOTH(ncclResult_t, ParamGetI8, ncclParamHandle_t handle, int8_t* value);
NCCL_BOTH(ncclResult_t, ParamGetI16, ncclParamHandle_t handle, int16_t* value);
NCCL_BOTH(ncclResult_t, ParamGetI32, ncclParamHandle_t handle, int32_t* value);
NCCL_BOTH(ncclResult_t, ParamGetI64, ncclParamHandle_t handle, int64_t* value);
NCCL_BOTH(ncclResult_t, ParamGetU8, ncclParamHandle_t handle, uint8_t* value);
NCCL_BOTH(ncclResult_t, ParamGetU16, ncclParamHandle_t handle, uint16_t* value);
NCCL_BOTH(ncclResult_t, ParamGetU32, ncclParamHandle_t handle, uint32_t* value);
NCCL_BOTH(ncclResult_t, ParamGetU64, ncclParamHandle_t handle, uint64_t* value);
NCCL_BOTH(ncclResult_t, ParamGetStr, ncclParamHandle_t handle, const char** value);
NCCL_BOTH(ncclResult_t, ParamGetParameter, const char* key, const char** value, int* length);
NCCL_BOTH(ncclResult_t, ParamGetAllParameterKeys, const char*** keys, int* count);
NCCL_BOTH(void, ParamDumpAll, void);

/* Since 2.31. */
NCCL_BOTH(ncclResult_t, AllReduceConfig, const void* send, void* recv, size_t count, ncclDataType_t type,
          ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
NCCL_BOTH(ncclResult_t, BroadcastConfig, const void* send, void* recv, size_t count, ncclDataType_t type,
          int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
NCCL_BOTH(ncclResult_t, ReduceConfig, const void* send, void* recv, size_t count, ncclDataType_t type,
          ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
NCCL_BOTH(ncclResult_t, AllGatherConfig, const void* send, void* recv, size_t count, ncclDataType_t type,
          ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
NCCL_BOTH(ncclResult_t, ReduceScatterConfig, const void* send, void* recv, size_t count, ncclDataType_t type,
          ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
NCCL_BOTH(ncclResult_t, AlltoAllConfig, const void* send, void* recv, size_t count, ncclDataType_t type,
          ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
NCCL_BOTH(ncclResult_t, GatherConfig, const void* send, void* recv, size_t count, ncclDataType_t type,
          int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
NCCL_BOTH(ncclResult_t, ScatterConfig, const void* send, void* recv, size_t count, ncclDataType_t type,
          int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
NCCL_BOTH(ncclResult_t, GetMultimemDeviceLeInfo, ncclWindow_t window, size_t offset, void* id, size_t* at);
NCCL_BOTH(ncclResult_t, GetCftDeviceLeInfo, ncclWindow_t window, size_t offset, int rank, ncclTeam_t team,
          void* id, size_t* at);
NCCL_BOTH(ncclResult_t, GetPeerDeviceLeInfo, ncclWindow_t window, size_t offset, int rank, void* id,
          size_t* at);
NCCL_BOTH(ncclTeam_t, TeamCft, ncclComm_t comm, int mode);
NCCL_BOTH(ncclTeam_t, TeamCftMultimem, ncclComm_t comm);

/* Since 2.32. */
NCCL_BOTH(ncclResult_t, SetEncryption, const ncclEncryptionConfig_t* config);

/* Not NCCL's. On emulated GPUs, where there is no cudaSetDevice: the GPU on which this thread allocates with
 * ncclMemAlloc and joins communicators. ncclInvalidUsage on a machine with CUDA. */
ncclResult_t sidestepNcclSetDevice(int device);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
