// Devices and contexts.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <thread>
#include <vector>

#include "tests/fake_cuda/machine.hpp"

using namespace sidestep::fake_cuda;

namespace {

// Without a destructor: static objects of the program still make contexts current after those of
// thread-local objects have run.
struct ContextStack {
    std::array<Context*, 64> entries;
    std::size_t depth;
};
thread_local ContextStack stack;

bool is_device(int device) {
    return device >= 0 && device < device_count;
}

Context& context_of(CUdevice device) {
    return Machine::get().contexts[static_cast<std::size_t>(device)];
}

struct Name {
    CUresult status;
    const char* name;
};

constexpr Name names[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
    {CUDA_ERROR_ALREADY_MAPPED, "CUDA_ERROR_ALREADY_MAPPED"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
    {CUDA_ERROR_MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
};

}  // namespace

namespace sidestep::fake_cuda {

Context* current_context() {
    return stack.depth == 0 ? nullptr : stack.entries[stack.depth - 1];
}

}  // namespace sidestep::fake_cuda

CUresult cuInit(unsigned) {
    std::lock_guard lock(Machine::get().mutex);
    Machine::get().initialised = true;
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
    *version = 13000;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult status, const char** name) {
    const auto found = std::find_if(std::begin(names), std::end(names),
                                    [status](const Name& known) { return known.status == status; });
    *name = found == std::end(names) ? nullptr : found->name;
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult, const char** text) {
    *text = "said by the stand-in";
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
    std::lock_guard lock(Machine::get().mutex);
    if (!Machine::get().initialised) return CUDA_ERROR_NOT_INITIALIZED;
    *count = device_count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    if (!is_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    std::snprintf(text, static_cast<std::size_t>(length), "0000:%02X:00.0", pci_bus(device));
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    // As an H200 has it. Streams without waits for words of 64 bits, for the tests of what says so.
    if (attribute == CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) {
        *value = std::getenv("FAKE_CUDA_NO_STREAM_WORDS") == nullptr;
        return CUDA_SUCCESS;
    }
    if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) {
        *value = 9;
        return CUDA_SUCCESS;
    }
    if (attribute != CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) return CUDA_ERROR_INVALID_VALUE;
    *value = 132;
    return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* allowed, CUdevice device, CUdevice peer) {
    if (!is_device(device) || !is_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *allowed = device != peer && has_peer_access();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *pool = reinterpret_cast<CUmemoryPool>(&Machine::get().pools[static_cast<std::size_t>(device)]);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    std::lock_guard lock(Machine::get().mutex);
    if (!Machine::get().initialised) return CUDA_ERROR_NOT_INITIALIZED;
    Context& retained = context_of(device);
    ++retained.users;
    if (!retained.default_stream) retained.default_stream = Stream::make(&retained);
    *context = reinterpret_cast<CUcontext>(&retained);
    return CUDA_SUCCESS;
}

// The last release ends the context, and with it the peer access it had.
CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    std::lock_guard lock(Machine::get().mutex);
    Context& released = context_of(device);
    if (released.users == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--released.users == 0) released.peers.clear();
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    std::lock_guard lock(Machine::get().mutex);
    *flags = 0;
    *active = context_of(device).users > 0;
    return CUDA_SUCCESS;
}

// A context that nobody retains any more is gone, though its handle looks as before.
CUresult cuCtxPushCurrent(CUcontext context) {
    auto* pushed = reinterpret_cast<Context*>(context);
    if (!pushed || stack.depth == stack.entries.size()) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(Machine::get().mutex);
    if (pushed->users == 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    stack.entries[stack.depth++] = pushed;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
    if (stack.depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
    *context = reinterpret_cast<CUcontext>(stack.entries[--stack.depth]);
    return CUDA_SUCCESS;
}

// Takes the place of the current context; null leaves the one below it current.
CUresult cuCtxSetCurrent(CUcontext context) {
    if (stack.depth > 0) --stack.depth;
    return context ? cuCtxPushCurrent(context) : CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = reinterpret_cast<CUcontext>(current_context());
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    *device = current_context()->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
    Context* const context = current_context();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    std::vector<std::shared_ptr<Stream>> streams;
    {
        std::lock_guard lock(Machine::get().mutex);
        streams.push_back(context->default_stream);
        for (const auto& entry : Machine::get().streams)
            if (entry.second->context() == context) streams.push_back(entry.second);
    }
    for (const auto& stream : streams) stream->wait_until_idle();
    return CUDA_SUCCESS;
}

// One direction, and a second time is an error, as the driver has it.
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned) {
    Context* const context = current_context();
    auto* const other = reinterpret_cast<Context*>(peer);
    if (!context || !other || other == context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!has_peer_access()) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    // Seconds that it takes, as on a machine with much memory to map.
    if (const char* const slow = std::getenv("FAKE_CUDA_SLOW_PEERS"))
        std::this_thread::sleep_for(std::chrono::seconds(std::atoi(slow)));
    std::lock_guard lock(Machine::get().mutex);
    if (!context->peers.insert(other->device).second) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    return CUDA_SUCCESS;
}
