/* The binary interface of NVIDIA's cuFile library, versions 1.0 to 1.19: what a program that was built against it passes and
 * expects.
 *
 * Facts of the interface (names, order of members, numbers), declared anew from NVIDIA's cuFile API Reference Guide,
 * https://docs.nvidia.com/gpudirect-storage/api-reference-guide/, and from the bindings that NVIDIA publishes
 * (cuda_bindings/cuda/bindings/cycufile.pxd of github.com/NVIDIA/cuda-python, versions 12.9 to 13.4). What cuFile declares
 * as an enum is an int here: numbers that a caller makes up must arrive as they are. C99 and C++. */
#ifndef SIDESTEP_SHIMS_CUFILE_ABI_H
#define SIDESTEP_SHIMS_CUFILE_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct timespec;
typedef struct CUstream_st* CUstream;
typedef void* CUfileHandle_t;
typedef void* CUfileBatchHandle_t;

enum {
    CU_FILE_SUCCESS = 0,
    CU_FILE_DRIVER_NOT_INITIALIZED = 5001,
    CU_FILE_DRIVER_INVALID_PROPS = 5002,
    CU_FILE_DRIVER_UNSUPPORTED_LIMIT = 5003,
    CU_FILE_DRIVER_VERSION_MISMATCH = 5004,
    CU_FILE_DRIVER_VERSION_READ_ERROR = 5005,
    CU_FILE_DRIVER_CLOSING = 5006,
    CU_FILE_PLATFORM_NOT_SUPPORTED = 5007,
    CU_FILE_IO_NOT_SUPPORTED = 5008,
    CU_FILE_DEVICE_NOT_SUPPORTED = 5009,
    CU_FILE_NVFS_DRIVER_ERROR = 5010,
    CU_FILE_CUDA_DRIVER_ERROR = 5011,
    CU_FILE_CUDA_POINTER_INVALID = 5012,
    CU_FILE_CUDA_MEMORY_TYPE_INVALID = 5013,
    CU_FILE_CUDA_POINTER_RANGE_ERROR = 5014,
    CU_FILE_CUDA_CONTEXT_MISMATCH = 5015,
    CU_FILE_INVALID_MAPPING_SIZE = 5016,
    CU_FILE_INVALID_MAPPING_RANGE = 5017,
    CU_FILE_INVALID_FILE_TYPE = 5018,
    CU_FILE_INVALID_FILE_OPEN_FLAG = 5019,
    CU_FILE_DIO_NOT_SET = 5020,
    CU_FILE_INVALID_VALUE = 5022,
    CU_FILE_MEMORY_ALREADY_REGISTERED = 5023,
    CU_FILE_MEMORY_NOT_REGISTERED = 5024,
    CU_FILE_PERMISSION_DENIED = 5025,
    CU_FILE_DRIVER_ALREADY_OPEN = 5026,
    CU_FILE_HANDLE_NOT_REGISTERED = 5027,
    CU_FILE_HANDLE_ALREADY_REGISTERED = 5028,
    CU_FILE_DEVICE_NOT_FOUND = 5029,
    CU_FILE_INTERNAL_ERROR = 5030,
    CU_FILE_GETNEWFD_FAILED = 5031,
    CU_FILE_NVFS_SETUP_ERROR = 5033,
    CU_FILE_IO_DISABLED = 5034,
    CU_FILE_BATCH_SUBMIT_FAILED = 5035,
    CU_FILE_GPU_MEMORY_PINNING_FAILED = 5036,
    CU_FILE_BATCH_FULL = 5037,
    CU_FILE_ASYNC_NOT_SUPPORTED = 5038,
    CU_FILE_INTERNAL_BATCH_SETUP_ERROR = 5039,
    CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR = 5040,
    CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR = 5041,
    CU_FILE_INTERNAL_BATCH_CANCEL_ERROR = 5042,
    CU_FILE_NOMEM_ERROR = 5043,
    CU_FILE_IO_ERROR = 5044,
    CU_FILE_INTERNAL_BUF_REGISTER_ERROR = 5045,
    CU_FILE_HASH_OPR_ERROR = 5046,
    CU_FILE_INVALID_CONTEXT_ERROR = 5047,
    CU_FILE_NVFS_INTERNAL_DRIVER_ERROR = 5048,
    CU_FILE_BATCH_NOCOMPAT_ERROR = 5049,
    CU_FILE_IO_MAX_ERROR = 5050 /* 5039 before 1.14 */
};

/* `cu_err` is the CUDA driver's code where `err` says that it failed. Eight bytes: returned in a register. */
typedef struct {
    int err;
    int cu_err;
} CUfileError_t;

/* Of dstatusflags; each is the number of a bit. */
enum {
    CU_FILE_LUSTRE_SUPPORTED = 0,
    CU_FILE_WEKAFS_SUPPORTED = 1,
    CU_FILE_NFS_SUPPORTED = 2,
    CU_FILE_GPFS_SUPPORTED = 3,
    CU_FILE_NVME_SUPPORTED = 4,
    CU_FILE_NVMEOF_SUPPORTED = 5,
    CU_FILE_SCSI_SUPPORTED = 6,
    CU_FILE_SCALEFLUX_CSD_SUPPORTED = 7,
    CU_FILE_NVMESH_SUPPORTED = 8,
    CU_FILE_BEEGFS_SUPPORTED = 9,
    CU_FILE_NVME_P2P_SUPPORTED = 11,
    CU_FILE_SCATEFS_SUPPORTED = 12,
    CU_FILE_VIRTIOFS_SUPPORTED = 13,
    CU_FILE_MAX_TARGET_TYPES = 14
};
typedef int CUfileDriverStatusFlags_t;

/* Of dcontrolflags, as bits. */
enum { CU_FILE_USE_POLL_MODE = 0, CU_FILE_ALLOW_COMPAT_MODE = 1, CU_FILE_VANILLA_POSIX_IO_MODE = 2 };

/* Of fflags, as bits. */
enum {
    CU_FILE_DYN_ROUTING_SUPPORTED = 0,
    CU_FILE_BATCH_IO_SUPPORTED = 1,
    CU_FILE_STREAMS_SUPPORTED = 2,
    CU_FILE_PARALLEL_IO_SUPPORTED = 3,
    CU_FILE_P2P_SUPPORTED = 4
};

/* May be or-ed. */
enum { CUFILE_P2PDMA = 1, CUFILE_NVFS = 2, CUFILE_DMABUF = 4, CUFILE_C2C = 8, CUFILE_NVIDIA_PEERMEM = 16 };
typedef int CUfileP2PFlags_t;

/* Sizes in KiB. */
typedef struct {
    struct {
        unsigned major_version; /* of nvidia-fs */
        unsigned minor_version;
        size_t poll_thresh_size;
        size_t max_direct_io_size;
        unsigned dstatusflags;
        unsigned dcontrolflags;
    } nvfs;
    unsigned fflags;
    unsigned max_device_cache_size;
    unsigned per_buffer_cache_size;
    unsigned max_device_pinned_mem_size;
    unsigned max_batch_io_size; /* entries */
    unsigned max_batch_io_timeout_msecs;
} CUfileDrvProps_t;

enum {
    CU_FILE_HANDLE_TYPE_OPAQUE_FD = 1,
    CU_FILE_HANDLE_TYPE_OPAQUE_WIN32 = 2,
    CU_FILE_HANDLE_TYPE_USERSPACE_FS = 3
};

typedef struct {
    int type;
    union {
        int fd;
        void* handle;
    } handle;
    const void* fs_ops; /* functions of a file system in user space, which are never called here */
} CUfileDescr_t;

enum { CU_FILE_RDMA_REGISTER = 1, CU_FILE_RDMA_RELAXED_ORDERING = 2 }; /* flags of cuFileBufRegister */

typedef struct {
    void* base;
    size_t len;
} CUfileIOVec_t;

enum { CUFILE_READ = 0, CUFILE_WRITE = 1 }; /* opcodes */
enum { CUFILE_BATCH = 1 };                  /* modes */

typedef int CUfileStatus_t;
enum {
    CUFILE_WAITING = 1,
    CUFILE_PENDING = 2,
    CUFILE_INVALID = 4,
    CUFILE_CANCELED = 8,
    CUFILE_COMPLETE = 16,
    CUFILE_TIMEOUT = 32,
    CUFILE_FAILED = 64
};

typedef struct {
    int mode;
    union {
        struct {
            void* devPtr_base;
            off_t file_offset;
            off_t devPtr_offset;
            size_t size;
        } batch;
    } u;
    CUfileHandle_t fh;
    int opcode;
    void* cookie;
} CUfileIOParams_t;

typedef struct {
    void* cookie;
    CUfileStatus_t status;
    size_t ret; /* bytes, or a negative error */
} CUfileIOEvents_t;

/* Flags of cuFileStreamRegister. */
enum {
    CU_FILE_STREAM_FIXED_BUF_OFFSET = 1,
    CU_FILE_STREAM_FIXED_FILE_OFFSET = 2,
    CU_FILE_STREAM_FIXED_FILE_SIZE = 4,
    CU_FILE_STREAM_PAGE_ALIGNED_INPUTS = 8
};

typedef int CUFileSizeTConfigParameter_t;
enum {
    CUFILE_PARAM_PROFILE_STATS = 0,
    CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH = 1,
    CUFILE_PARAM_EXECUTION_MAX_IO_THREADS = 2,
    CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB = 3,
    CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM = 4,
    CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB = 5,
    CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB = 6,
    CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB = 7,
    CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB = 8,
    CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE = 9,
    CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB = 10,
    CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS = 11
};

typedef int CUFileBoolConfigParameter_t;
enum {
    CUFILE_PARAM_PROPERTIES_USE_POLL_MODE = 0,
    CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE = 1,
    CUFILE_PARAM_FORCE_COMPAT_MODE = 2,
    CUFILE_PARAM_FS_MISC_API_CHECK_AGGRESSIVE = 3,
    CUFILE_PARAM_EXECUTION_PARALLEL_IO = 4,
    CUFILE_PARAM_PROFILE_NVTX = 5,
    CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY = 6,
    CUFILE_PARAM_USE_PCIP2PDMA = 7,
    CUFILE_PARAM_PREFER_IO_URING = 8,
    CUFILE_PARAM_FORCE_ODIRECT_MODE = 9,
    CUFILE_PARAM_SKIP_TOPOLOGY_DETECTION = 10,
    CUFILE_PARAM_STREAM_MEMOPS_BYPASS = 11,
    CUFILE_PARAM_PROPERTIES_POSIX_IO_MODE = 12,
    CUFILE_PARAM_GDS_FALLBACK_IO = 13
};

typedef int CUFileStringConfigParameter_t;
enum {
    CUFILE_PARAM_LOGGING_LEVEL = 0,
    CUFILE_PARAM_ENV_LOGFILE_PATH = 1,
    CUFILE_PARAM_LOG_DIR = 2,
    CUFILE_PARAM_RDMA_TRANSPORT = 3
};

typedef int CUFileArrayConfigParameter_t;
enum {
    CUFILE_PARAM_POSIX_POOL_SLAB_SIZE_KB = 0,
    CUFILE_PARAM_POSIX_POOL_SLAB_COUNT = 1,
    CUFILE_PARAM_GPU_BOUNCE_BUFFER_SLAB_SIZE_KB = 2,
    CUFILE_PARAM_GPU_BOUNCE_BUFFER_SLAB_COUNT = 3
};

typedef struct {
    uint64_t ok;
    uint64_t err;
} CUfileOpCounter_t;

/* Up to 1.18 it ends before readv_ops, and everything behind it lies lower: see CUFILE_STATS_L1_BEFORE_1_19. */
typedef struct {
    CUfileOpCounter_t read_ops, write_ops, hdl_register_ops, hdl_deregister_ops, buf_register_ops,
        buf_deregister_ops;
    uint64_t read_bytes, write_bytes, read_bw_bytes_per_sec, write_bw_bytes_per_sec;
    uint64_t read_lat_avg_us, write_lat_avg_us, read_ops_per_sec, write_ops_per_sec;
    uint64_t read_lat_sum_us, write_lat_sum_us;
    CUfileOpCounter_t batch_submit_ops, batch_complete_ops, batch_setup_ops, batch_cancel_ops,
        batch_destroy_ops;
    CUfileOpCounter_t batch_enqueued_ops, batch_posix_enqueued_ops, batch_processed_ops,
        batch_posix_processed_ops;
    CUfileOpCounter_t batch_nvfs_submit_ops, batch_p2p_submit_ops, batch_aio_submit_ops,
        batch_iouring_submit_ops;
    CUfileOpCounter_t batch_mixed_io_submit_ops, batch_total_submit_ops;
    uint64_t batch_read_bytes, batch_write_bytes, batch_read_bw_bytes, batch_write_bw_bytes;
    uint64_t batch_submit_lat_avg_us, batch_completion_lat_avg_us, batch_submit_ops_per_sec,
        batch_complete_ops_per_sec;
    uint64_t batch_submit_lat_sum_us, batch_completion_lat_sum_us, last_batch_read_bytes,
        last_batch_write_bytes;
    CUfileOpCounter_t readv_ops, writev_ops;
    uint64_t readv_bytes, writev_bytes, readv_bw_bytes_per_sec, writev_bw_bytes_per_sec;
    uint64_t readv_lat_avg_us, writev_lat_avg_us, readv_ops_per_sec, writev_ops_per_sec;
    uint64_t readv_lat_sum_us, writev_lat_sum_us;
} CUfileStatsLevel1_t;

typedef struct {
    CUfileStatsLevel1_t basic;
    uint64_t read_size_kb_hist[32];
    uint64_t write_size_kb_hist[32];
} CUfileStatsLevel2_t;

typedef struct {
    char uuid[16];
    uint64_t read_bytes, read_bw_bytes_per_sec, read_utilization, read_duration_us;
    uint64_t n_total_reads, n_p2p_reads, n_nvfs_reads, n_posix_reads, n_unaligned_reads, n_dr_reads;
    uint64_t n_sparse_regions, n_inline_regions, n_reads_err;
    uint64_t writes_bytes, write_bw_bytes_per_sec, write_utilization, write_duration_us;
    uint64_t n_total_writes, n_p2p_writes, n_nvfs_writes, n_posix_writes, n_unaligned_writes, n_dr_writes,
        n_writes_err;
    uint64_t n_mmap, n_mmap_ok, n_mmap_err, n_mmap_free, reg_bytes;
} CUfilePerGpuStats_t;

typedef struct {
    CUfileStatsLevel2_t detailed;
    uint32_t num_gpus;
    CUfilePerGpuStats_t per_gpu_stats[16];
} CUfileStatsLevel3_t;

enum {
    CUFILE_STATS_L1_BEFORE_1_19 = 512,
    CUFILE_STATS_L2_BEFORE_1_19 = 1024,
    CUFILE_STATS_L3_BEFORE_1_19 = 5000
};

CUfileError_t cuFileDriverOpen(void);
CUfileError_t cuFileDriverClose(void);
CUfileError_t cuFileDriverClose_v2(void);
long cuFileUseCount(void);
CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t* props);
CUfileError_t cuFileDriverSetPollMode(bool poll, size_t poll_threshold_kb);
CUfileError_t cuFileDriverSetMaxDirectIOSize(size_t kb);
CUfileError_t cuFileDriverSetMaxCacheSize(size_t kb);
CUfileError_t cuFileDriverSetMaxPinnedMemSize(size_t kb);
CUfileError_t cuFileGetVersion(int* version);

CUfileError_t cuFileHandleRegister(CUfileHandle_t* fh, CUfileDescr_t* descr);
void cuFileHandleDeregister(CUfileHandle_t fh);
CUfileError_t cuFileBufRegister(const void* base, size_t length, int flags);
CUfileError_t cuFileBufDeregister(const void* base);

ssize_t cuFileRead(CUfileHandle_t fh, void* base, size_t size, off_t file_offset, off_t base_offset);
ssize_t cuFileWrite(CUfileHandle_t fh, const void* base, size_t size, off_t file_offset, off_t base_offset);
ssize_t cuFileReadv(CUfileHandle_t fh, const CUfileIOVec_t* parts, size_t count, off_t file_offset,
                    unsigned flags);
ssize_t cuFileWritev(CUfileHandle_t fh, const CUfileIOVec_t* parts, size_t count, off_t file_offset,
                     unsigned flags);

CUfileError_t cuFileBatchIOSetUp(CUfileBatchHandle_t* batch, unsigned entries);
CUfileError_t cuFileBatchIOSubmit(CUfileBatchHandle_t batch, unsigned count, CUfileIOParams_t* entries,
                                  unsigned flags);
CUfileError_t cuFileBatchIOGetStatus(CUfileBatchHandle_t batch, unsigned fewest, unsigned* count,
                                     CUfileIOEvents_t* events, struct timespec* timeout);
CUfileError_t cuFileBatchIOCancel(CUfileBatchHandle_t batch);
void cuFileBatchIODestroy(CUfileBatchHandle_t batch);

CUfileError_t cuFileReadAsync(CUfileHandle_t fh, void* base, size_t* size, off_t* file_offset,
                              off_t* base_offset, ssize_t* bytes_read, CUstream stream);
CUfileError_t cuFileWriteAsync(CUfileHandle_t fh, void* base, size_t* size, off_t* file_offset,
                               off_t* base_offset, ssize_t* bytes_written, CUstream stream);
CUfileError_t cuFileStreamRegister(CUstream stream, unsigned flags);
CUfileError_t cuFileStreamDeregister(CUstream stream);

CUfileError_t cuFileGetParameterSizeT(CUFileSizeTConfigParameter_t parameter, size_t* value);
CUfileError_t cuFileGetParameterBool(CUFileBoolConfigParameter_t parameter, bool* value);
CUfileError_t cuFileGetParameterString(CUFileStringConfigParameter_t parameter, char* text, int length);
CUfileError_t cuFileSetParameterSizeT(CUFileSizeTConfigParameter_t parameter, size_t value);
CUfileError_t cuFileSetParameterBool(CUFileBoolConfigParameter_t parameter, bool value);
CUfileError_t cuFileSetParameterString(CUFileStringConfigParameter_t parameter, const char* text);
CUfileError_t cuFileGetParameterMinMaxValue(CUFileSizeTConfigParameter_t parameter, size_t* least,
                                            size_t* most);
CUfileError_t cuFileSetParameterPosixPoolSlabArray(const size_t* sizes_kb, const size_t* counts, int length);
CUfileError_t cuFileGetParameterPosixPoolSlabArray(size_t* sizes_kb, size_t* counts, int length);
CUfileError_t cuFileDriverSetP2PFlags(CUfileDriverStatusFlags_t storage, CUfileP2PFlags_t flags);
CUfileError_t cuFileDriverGetP2PFlags(CUfileDriverStatusFlags_t storage, CUfileP2PFlags_t* flags);
CUfileError_t cuFileGetBARSizeInKB(int gpu, size_t* kb);
CUfileError_t cuFileExportPCIeTopology(const char* filename);

CUfileError_t cuFileSetStatsLevel(int level);
CUfileError_t cuFileGetStatsLevel(int* level);
CUfileError_t cuFileStatsStart(void);
CUfileError_t cuFileStatsStop(void);
CUfileError_t cuFileStatsReset(void);
CUfileError_t cuFileGetStatsL1(CUfileStatsLevel1_t* stats);
CUfileError_t cuFileGetStatsL2(CUfileStatsLevel2_t* stats);
CUfileError_t cuFileGetStatsL3(CUfileStatsLevel3_t* stats);

/* Not of cuFile: memory of a GPU, for programs that run on emulated ones and have no CUDA; null where there is none. By their
 * presence this library is also told from NVIDIA's. */
void* sidestepCufileAllocate(int gpu, size_t bytes);
void sidestepCufileFree(void* memory);
/* What the last call of this thread that failed had to say; "" before the first. Valid until the thread's next failure. */
const char* sidestepCufileLastError(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}

static_assert(sizeof(CUfileError_t) == 8);
static_assert(sizeof(CUfileDescr_t) == 24 && offsetof(CUfileDescr_t, handle) == 8 &&
              offsetof(CUfileDescr_t, fs_ops) == 16);
static_assert(sizeof(CUfileDrvProps_t) == 56 && offsetof(CUfileDrvProps_t, fflags) == 32 &&
              offsetof(CUfileDrvProps_t, max_batch_io_size) == 48);
static_assert(sizeof(CUfileIOVec_t) == 16);
static_assert(sizeof(CUfileIOParams_t) == 64 && offsetof(CUfileIOParams_t, u) == 8 &&
              offsetof(CUfileIOParams_t, fh) == 40 && offsetof(CUfileIOParams_t, opcode) == 48 &&
              offsetof(CUfileIOParams_t, cookie) == 56);
static_assert(sizeof(CUfileIOEvents_t) == 24 && offsetof(CUfileIOEvents_t, status) == 8 &&
              offsetof(CUfileIOEvents_t, ret) == 16);
static_assert(offsetof(CUfileStatsLevel1_t, readv_ops) == CUFILE_STATS_L1_BEFORE_1_19 &&
              sizeof(CUfileStatsLevel1_t) == 624);
static_assert(sizeof(CUfileStatsLevel2_t) == 1136 && sizeof(CUfilePerGpuStats_t) == 248);
static_assert(sizeof(CUfileStatsLevel3_t) == 5112 && offsetof(CUfileStatsLevel3_t, per_gpu_stats) == 1144);
#endif

#endif
