// The part of NVML's binary interface that is used here, restated: names, numbers and layouts after
// nvml.h of API version 13 (published in github.com/NVIDIA/go-nvml). NVML keeps them stable; functions
// that changed carry the version in their names.
#pragma once

#include <cstddef>

namespace sidestep::driver::nvml_abi {

using Return = int;  // nvmlReturn_t
constexpr Return success = 0;
constexpr Return error_not_supported = 3;
constexpr Return error_function_not_found = 13;

struct DeviceTag;
using Device = DeviceTag*;  // nvmlDevice_t

struct PciInfo {  // nvmlPciInfo_t
    char bus_id_legacy[16];
    unsigned int domain;
    unsigned int bus;
    unsigned int device;
    unsigned int pci_device_id;
    unsigned int pci_subsystem_id;
    char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68 && offsetof(PciInfo, bus_id) == 36);

struct Memory {  // nvmlMemory_t
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
};

struct Bar1Memory {  // nvmlBAR1Memory_t
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
};

constexpr unsigned int fabric_info_version = 36U | (2U << 24);  // nvmlGpuFabricInfo_v2

struct FabricInfo {  // nvmlGpuFabricInfo_v2_t
    unsigned int version;
    unsigned char cluster_uuid[16];
    Return status;
    unsigned int clique;
    unsigned char state;
    unsigned int health;
};
static_assert(sizeof(FabricInfo) == 36 && offsetof(FabricInfo, health) == 32);

struct ConfidentialState {  // nvmlConfComputeSystemState_t
    unsigned int environment;
    unsigned int feature;  // 1: on
    unsigned int dev_tools;
};

union Value {  // nvmlValue_t
    double real;
    int signed_int;
    unsigned int unsigned_int;
    unsigned long unsigned_long;
    unsigned long long unsigned_long_long;
    long long signed_long_long;
    unsigned short unsigned_short;
};

// nvmlValueType_t
enum ValueType : int {
    type_double = 0,
    type_unsigned_int = 1,
    type_unsigned_long = 2,
    type_unsigned_long_long = 3,
    type_signed_long_long = 4,
    type_signed_int = 5,
    type_unsigned_short = 6,
};

struct FieldValue {  // nvmlFieldValue_t
    unsigned int field;
    unsigned int scope;  // of the NVLink fields: the link's number
    long long timestamp_us;
    long long latency_us;
    int type;
    Return result;
    Value value;
};
static_assert(sizeof(FieldValue) == 40 && offsetof(FieldValue, value) == 32);

// NVML_FI_DEV_NVLINK_*; speeds in MB/s (10^6 bytes), one direction.
constexpr unsigned int field_nvlink_speed_common = 90;
constexpr unsigned int field_nvlink_count = 91;
constexpr unsigned int field_nvlink_speed = 164;
constexpr unsigned int field_nvlink_state = 165;  // 0 inactive, 1 active, 2 asleep

// nvmlNvLinkErrorCounter_t, those that nvidia-smi prints. The fields of the same name are not told by Hopper, and its
// counter of CRC errors in data is above 0 where nothing is wrong (H100, driver 580.159.04).
constexpr int nvlink_replays = 0;
constexpr int nvlink_recoveries = 1;
constexpr int nvlink_crc_errors = 2;

// nvmlMemoryErrorType_t, nvmlEccCounterType_t
constexpr int ecc_corrected = 0;
constexpr int ecc_uncorrected = 1;
constexpr int ecc_since_load = 0;

// NVML_FI_DEV_C2C_*; the status and the speed (MB/s) are asked link by link.
constexpr unsigned int field_c2c_count = 170;
constexpr unsigned int field_c2c_state = 171;
constexpr unsigned int field_c2c_speed = 172;

constexpr int max_nvlinks = 36;  // NVML_NVLINK_MAX_LINKS

// nvmlIntNvLinkDeviceType_t
constexpr int remote_gpu = 0;
constexpr int remote_ibm_npu = 1;
constexpr int remote_switch = 2;

constexpr unsigned int affinity_scope_node = 0;  // NVML_AFFINITY_SCOPE_NODE

// What the library must have, then what is done without where it is older. X(member, symbol, arguments)
#define SIDESTEP_NVML_REQUIRED(X)                                                \
    X(init, "nvmlInit_v2", ())                                                   \
    X(shutdown, "nvmlShutdown", ())                                              \
    X(device_count, "nvmlDeviceGetCount_v2", (unsigned int*))                    \
    X(device_by_index, "nvmlDeviceGetHandleByIndex_v2", (unsigned int, Device*)) \
    X(device_name, "nvmlDeviceGetName", (Device, char*, unsigned int))           \
    X(device_pci, "nvmlDeviceGetPciInfo_v3", (Device, PciInfo*))

#define SIDESTEP_NVML_OPTIONAL(X)                                                                           \
    X(driver_version, "nvmlSystemGetDriverVersion", (char*, unsigned int))                                  \
    X(device_uuid, "nvmlDeviceGetUUID", (Device, char*, unsigned int))                                      \
    X(device_memory, "nvmlDeviceGetMemoryInfo", (Device, Memory*))                                          \
    X(device_bar1, "nvmlDeviceGetBAR1MemoryInfo", (Device, Bar1Memory*))                                    \
    X(device_cc, "nvmlDeviceGetCudaComputeCapability", (Device, int*, int*))                                \
    X(pcie_generation, "nvmlDeviceGetMaxPcieLinkGeneration", (Device, unsigned int*))                       \
    X(pcie_width, "nvmlDeviceGetMaxPcieLinkWidth", (Device, unsigned int*))                                 \
    X(memory_affinity, "nvmlDeviceGetMemoryAffinity", (Device, unsigned int, unsigned long*, unsigned int)) \
    X(field_values, "nvmlDeviceGetFieldValues", (Device, int, FieldValue*))                                 \
    X(nvlink_state, "nvmlDeviceGetNvLinkState", (Device, unsigned int, int*))                               \
    X(nvlink_remote_pci, "nvmlDeviceGetNvLinkRemotePciInfo_v2", (Device, unsigned int, PciInfo*))           \
    X(nvlink_remote_type, "nvmlDeviceGetNvLinkRemoteDeviceType", (Device, unsigned int, int*))              \
    X(p2p_status, "nvmlDeviceGetP2PStatus", (Device, Device, int, int*))                                    \
    X(common_ancestor, "nvmlDeviceGetTopologyCommonAncestor", (Device, Device, int*))                       \
    X(pcie_generation_now, "nvmlDeviceGetCurrPcieLinkGeneration", (Device, unsigned int*))                  \
    X(pcie_width_now, "nvmlDeviceGetCurrPcieLinkWidth", (Device, unsigned int*))                            \
    X(pcie_replays, "nvmlDeviceGetPcieReplayCounter", (Device, unsigned int*))                              \
    X(ecc_errors, "nvmlDeviceGetTotalEccErrors", (Device, int, int, unsigned long long*))                   \
    X(remapped_rows, "nvmlDeviceGetRemappedRows",                                                           \
      (Device, unsigned int*, unsigned int*, unsigned int*, unsigned int*))                                 \
    X(nvlink_errors, "nvmlDeviceGetNvLinkErrorCounter", (Device, unsigned int, int, unsigned long long*))   \
    X(slowed_by, "nvmlDeviceGetCurrentClocksThrottleReasons", (Device, unsigned long long*))                \
    X(mig_mode, "nvmlDeviceGetMigMode", (Device, unsigned int*, unsigned int*))                             \
    X(virtualization, "nvmlDeviceGetVirtualizationMode", (Device, int*))                                    \
    X(fabric_info, "nvmlDeviceGetGpuFabricInfoV", (Device, FabricInfo*))                                    \
    X(confidential_state, "nvmlSystemGetConfComputeState", (ConfidentialState*))

struct Functions {
#define SIDESTEP_NVML_MEMBER(member, symbol, arguments) Return(*member) arguments = nullptr;
    SIDESTEP_NVML_REQUIRED(SIDESTEP_NVML_MEMBER)
    SIDESTEP_NVML_OPTIONAL(SIDESTEP_NVML_MEMBER)
    // The only one that returns no nvmlReturn_t.
    const char* (*error_string)(Return) = nullptr;
#undef SIDESTEP_NVML_MEMBER
};

}  // namespace sidestep::driver::nvml_abi
