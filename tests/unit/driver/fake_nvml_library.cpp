// A libnvidia-ml.so with three GPUs: number 0 of compute capability 9.0 with NVLinks to hidden NVSwitches,
// number 1 of 8.0 with NVLinks to number 0, number 2 without NVLink and refusing most questions. Built
// without functions that older drivers lack where FAKE_NVML_OLD is defined, and without a required one
// where FAKE_NVML_BROKEN is. The environment variable FAKE_NVML_INIT holds what nvmlInit_v2 returns.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "driver/nvml_abi.hpp"

using namespace sidestep::driver::nvml_abi;

struct sidestep::driver::nvml_abi::DeviceTag {
    unsigned int index;
};

namespace {

DeviceTag devices[3] = {{0}, {1}, {2}};
int users = 0;

void fill(PciInfo* pci, unsigned int domain, unsigned int bus, unsigned int device) {
    std::memset(pci, 0xee, sizeof *pci);
    pci->domain = domain;
    pci->bus = bus;
    pci->device = device;
}

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default")))

FAKE int fake_nvml_users() {
    return users;
}

FAKE Return nvmlInit_v2() {
    const char* answer = std::getenv("FAKE_NVML_INIT");
    const int code = answer != nullptr ? std::atoi(answer) : 0;
    if (code == 0) ++users;
    return code;
}

FAKE Return nvmlShutdown() {
    --users;
    return 0;
}

FAKE Return nvmlDeviceGetCount_v2(unsigned int* count) {
    *count = 3;
    return 0;
}

FAKE Return nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device* device) {
    if (index >= 3) return 2;
    *device = &devices[index];
    return 0;
}

FAKE Return nvmlDeviceGetName(Device device, char* name, unsigned int length) {
    // The longest name has no room for its final zero.
    if (device->index == 2) {
        std::memset(name, 'x', length);
    } else {
        std::snprintf(name, length, "Fake GPU %u", device->index);
    }
    return 0;
}

#ifndef FAKE_NVML_BROKEN
FAKE Return nvmlDeviceGetPciInfo_v3(Device device, PciInfo* pci) {
    fill(pci, device->index == 1 ? 0x10000 : 0, 0x1b + device->index, 0x0a);
    return 0;
}
#endif

#ifndef FAKE_NVML_OLD
FAKE const char* nvmlErrorString(Return code) {
    return code == 9 ? "Driver Not Loaded" : "Fake Error";
}

FAKE Return nvmlSystemGetDriverVersion(char* version, unsigned int length) {
    std::snprintf(version, length, "580.1");
    return 0;
}

FAKE Return nvmlDeviceGetMemoryInfo(Device device, Memory* memory) {
    if (device->index == 2) return 15;
    *memory = {1000, 600, 400};
    return 0;
}

FAKE Return nvmlDeviceGetBAR1MemoryInfo(Device device, Bar1Memory* memory) {
    if (device->index == 2) return error_not_supported;
    *memory = {2000, 1, 1999};
    return 0;
}

FAKE Return nvmlDeviceGetUUID(Device device, char* uuid, unsigned int length) {
    std::snprintf(uuid, length, "GPU-%u", device->index);
    return 0;
}

FAKE Return nvmlDeviceGetCudaComputeCapability(Device device, int* major, int* minor) {
    *major = device->index == 0 ? 9 : 8;
    *minor = device->index == 2 ? 9 : 0;
    return 0;
}

FAKE Return nvmlDeviceGetMaxPcieLinkGeneration(Device device, unsigned int* value) {
    *value = 5;
    return device->index == 2 ? error_not_supported : 0;
}

FAKE Return nvmlDeviceGetMaxPcieLinkWidth(Device, unsigned int* value) {
    *value = 16;
    return 0;
}

FAKE Return nvmlDeviceGetMemoryAffinity(Device device, unsigned int words, unsigned long* nodes,
                                        unsigned int scope) {
    if (words != 1 || scope != 0) return 2;
    *nodes = device->index == 1 ? 1UL << 3 : 0;
    return 0;
}

FAKE Return nvmlDeviceGetFieldValues(Device device, int count, FieldValue* values) {
    if (device->index == 2) return error_not_supported;
    for (int i = 0; i < count; ++i) {
        FieldValue& field = values[i];
        field.result = success;
        field.type = type_unsigned_int;
        field.value.unsigned_long_long = ~0ULL;
        if (field.field == field_nvlink_count) {
            field.value.unsigned_int = device->index == 0 ? 4 : 2;
        } else if (field.field == field_nvlink_state && device->index == 0) {
            field.value.unsigned_int = field.scope < 3 ? field.scope : 0;  // down, up, asleep, down
        } else if (field.field == field_nvlink_speed && device->index == 0) {
            field.value.unsigned_int = 26562;
        } else if (field.field == field_nvlink_speed_common && device->index == 1) {
            field.type = type_unsigned_long_long;
            field.value.unsigned_long_long = 25781;
        } else if (field.field == field_c2c_count && device->index == 0) {
            field.value.unsigned_int = 3;
        } else if (field.field == field_c2c_state && device->index == 0) {
            field.value.unsigned_int = field.scope == 1 ? 0 : 1;
        } else if (field.field == field_c2c_speed && device->index == 0) {
            field.value.unsigned_int = 45000;
        } else {
            field.result = error_not_supported;
        }
    }
    return 0;
}

FAKE Return nvmlDeviceGetCurrPcieLinkGeneration(Device, unsigned int* value) {
    *value = 1;
    return 0;
}

FAKE Return nvmlDeviceGetCurrPcieLinkWidth(Device, unsigned int* value) {
    *value = 8;
    return 0;
}

FAKE Return nvmlDeviceGetPcieReplayCounter(Device device, unsigned int* value) {
    *value = 7;
    return device->index == 2 ? error_not_supported : 0;
}

FAKE Return nvmlDeviceGetTotalEccErrors(Device device, int kind, int since, unsigned long long* value) {
    if (device->index == 2 || since != ecc_since_load) return error_not_supported;
    *value = kind == ecc_uncorrected ? 2 : 50;
    return 0;
}

FAKE Return nvmlDeviceGetRemappedRows(Device device, unsigned int* corrected, unsigned int* uncorrected,
                                      unsigned int* pending, unsigned int* failed) {
    if (device->index != 0) return error_not_supported;
    *corrected = 3;
    *uncorrected = 4;
    *pending = 1;
    *failed = 0;
    return 0;
}

FAKE Return nvmlDeviceGetCurrentClocksThrottleReasons(Device device, unsigned long long* value) {
    if (device->index == 2) return error_not_supported;
    *value = 0x41;
    return 0;
}

FAKE Return nvmlDeviceGetNvLinkErrorCounter(Device device, unsigned int link, int counter,
                                            unsigned long long* value) {
    if (device->index == 2 || link == 1 || counter > nvlink_crc_errors) return error_not_supported;
    *value = counter == nvlink_recoveries ? 0 : 10;
    return 0;
}

FAKE Return nvmlDeviceGetMigMode(Device device, unsigned int* current, unsigned int* pending) {
    if (device->index == 2) return error_not_supported;
    *current = device->index == 1 ? 1 : 0;
    *pending = 1;
    return 0;
}

FAKE Return nvmlDeviceGetVirtualizationMode(Device device, int* mode) {
    *mode = device->index == 1 ? 99 : 1;  // a mode of the future, pass-through
    return 0;
}

FAKE Return nvmlDeviceGetGpuFabricInfoV(Device device, FabricInfo* info) {
    if (device->index == 2) return error_not_supported;
    if (info->version != fabric_info_version) return 25;  // NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    for (unsigned char& byte : info->cluster_uuid) byte = device->index == 0 ? 0xab : 0;
    info->status = 0;
    info->clique = 32766;
    info->state = 3;
    info->health = 2;
    return 0;
}

FAKE Return nvmlSystemGetConfComputeState(ConfidentialState* state) {
    *state = {0, 1, 0};
    return 0;
}

FAKE Return nvmlDeviceGetP2PStatus(Device a, Device b, int capability, int* status) {
    if (a->index == 2) return error_not_supported;
    *status = b->index == 2 ? 77 : capability == 3 ? 5 : 0;
    return 0;
}

FAKE Return nvmlDeviceGetTopologyCommonAncestor(Device a, Device b, int* level) {
    if (b->index == 2) return error_not_supported;
    *level = a->index == b->index ? 0 : 40;
    return 0;
}

FAKE Return nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned int, PciInfo* pci) {
    if (device->index == 0) {
        fill(pci, 0xffffffff, 0xffff, 0xff);
    } else {
        fill(pci, 0, 0x1b, 0x0a);
    }
    return 0;
}

FAKE Return nvmlDeviceGetNvLinkRemoteDeviceType(Device device, unsigned int, int* type) {
    *type = device->index == 0 ? remote_switch : remote_gpu;
    return 0;
}
#endif

FAKE Return nvmlDeviceGetNvLinkState(Device device, unsigned int link, int* active) {
    if (device->index != 1 || link >= 2) return 2;
    *active = link == 0 ? 1 : 0;
    return 0;
}
