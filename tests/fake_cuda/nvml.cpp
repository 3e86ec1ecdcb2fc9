// NVML for the made-up machine: the two GPUs of its CUDA driver, joined by NVLinks without a switch.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "driver/nvml_abi.hpp"
#include "tests/fake_cuda/machine.hpp"

using namespace sidestep::driver::nvml_abi;
using sidestep::fake_cuda::device_count;

struct sidestep::driver::nvml_abi::DeviceTag {
    int index;
};

namespace {

constexpr unsigned int links = 18;  // of 26.562 GB/s each, as H200 has them

constexpr Return gpu_is_lost = 15;

DeviceTag devices[device_count] = {{0}, {1}};

// With SIDESTEP_STAND_IN_LOST NVML has lost a third one, between the two.
unsigned int lost() {
    return std::getenv("SIDESTEP_STAND_IN_LOST") != nullptr ? 1 : 0;
}

void fill(PciInfo* pci, int index) {
    *pci = {};
    pci->bus = sidestep::fake_cuda::pci_bus(index);
}

}  // namespace

extern "C" {

Return nvmlInit_v2() {
    return success;
}

Return nvmlShutdown() {
    return success;
}

Return nvmlDeviceGetCount_v2(unsigned int* count) {
    *count = device_count + lost();
    return success;
}

Return nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device* device) {
    if (lost() != 0 && index == 1) return gpu_is_lost;
    *device = &devices[lost() != 0 && index == 2 ? 1 : index];
    return success;
}

Return nvmlDeviceGetName(Device, char* name, unsigned int length) {
    std::snprintf(name, length, "stand-in GPU");
    return success;
}

Return nvmlDeviceGetPciInfo_v3(Device device, PciInfo* pci) {
    fill(pci, device->index);
    return success;
}

Return nvmlDeviceGetMemoryInfo(Device, Memory* memory) {
    *memory = {sidestep::fake_cuda::memory_of_a_device, sidestep::fake_cuda::memory_of_a_device, 0};
    return success;
}

Return nvmlDeviceGetCudaComputeCapability(Device, int* major, int* minor) {
    *major = 9;
    *minor = 0;
    return success;
}

Return nvmlDeviceGetMaxPcieLinkGeneration(Device, unsigned int* generation) {
    *generation = 5;
    return success;
}

Return nvmlDeviceGetMaxPcieLinkWidth(Device, unsigned int* width) {
    *width = 16;
    return success;
}

Return nvmlDeviceGetFieldValues(Device, int count, FieldValue* values) {
    for (int i = 0; i < count; ++i) {
        FieldValue& field = values[i];
        field.result = success;
        field.type = type_unsigned_int;
        if (field.field == field_nvlink_count) {
            field.value.unsigned_int = links;
        } else if (field.field == field_nvlink_state) {
            field.value.unsigned_int = 1;
        } else if (field.field == field_nvlink_speed) {
            field.value.unsigned_int = 26562;
        } else {
            field.result = error_not_supported;
        }
    }
    return success;
}

Return nvmlDeviceGetNvLinkRemoteDeviceType(Device, unsigned int, int* type) {
    *type = remote_gpu;
    return success;
}

Return nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned int, PciInfo* pci) {
    fill(pci, 1 - device->index);
    return success;
}

Return nvmlDeviceGetP2PStatus(Device, Device, int, int* status) {
    const char* const peers = std::getenv("SIDESTEP_STAND_IN_PEERS");
    constexpr int allowed = 0, refused_by_the_chipset = 1;
    *status = peers != nullptr && std::strcmp(peers, "none") == 0 ? refused_by_the_chipset : allowed;
    return success;
}

// Each GPU below a host bridge of its own, in one NUMA node.
Return nvmlDeviceGetTopologyCommonAncestor(Device a, Device b, int* level) {
    *level = a == b ? 0 : 40;
    return success;
}

}  // extern "C"
