// What an address is, and copies.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/fake_cuda/machine.hpp"

using namespace sidestep::fake_cuda;

namespace {

// What the driver tells about an address; zeros for memory that it does not know.
struct Answers {
    unsigned memory = 0;  // CUmemorytype
    bool managed = false;
    int device = CU_DEVICE_INVALID;
    bool legacy_ipc = false;
    CUmemoryPool pool = nullptr;
    CUdeviceptr start = 0;
    std::size_t size = 0;
    unsigned long long id = 0;
};

// The machine's mutex is held.
Answers answers_for(CUdeviceptr address) {
    Machine& machine = Machine::get();
    Answers answers;
    const auto found = machine.block_at(address);
    if (found == machine.blocks.end()) return answers;
    const Block& block = found->second;
    answers.memory = block.kind == Kind::host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    answers.managed = block.kind == Kind::managed;
    answers.device = block.device;
    answers.legacy_ipc = block.kind == Kind::device;
    if (block.kind == Kind::pool)
        answers.pool = reinterpret_cast<CUmemoryPool>(&machine.pools[static_cast<std::size_t>(block.device)]);
    answers.start = found->first;
    answers.size = block.size;
    answers.id = block.id;
    if (block.kind == Kind::mapped) {
        // The reserved addresses, whether or not all of them are mapped.
        const auto reserved = std::prev(machine.reservations.upper_bound(address));
        answers.start = reserved->first;
        answers.size = reserved->second;
    }
    return answers;
}

template <typename Value>
void put(void* place, Value value) {
    std::memcpy(place, &value, sizeof value);
}

bool answer(const Answers& answers, CUpointer_attribute attribute, void* place) {
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            put(place, answers.memory);
            return true;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            put(place, answers.managed);
            return true;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            put(place, answers.device);
            return true;
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
            put(place, answers.legacy_ipc);
            return true;
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
            put(place, answers.pool);
            return true;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            put(place, answers.start);
            return true;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            put(place, answers.size);
            return true;
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
            put(place, answers.id);
            return true;
        default:
            return false;
    }
}

bool reaches(int device, CUdeviceptr address, std::size_t bytes) {
    std::lock_guard lock(Machine::get().mutex);
    return Machine::get().reaches(device, address, bytes);
}

bool between_gpus(CUdeviceptr to, CUdeviceptr from) {
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    const auto a = machine.block_at(to);
    const auto b = machine.block_at(from);
    if (a == machine.blocks.end() || b == machine.blocks.end()) return false;
    return a->second.kind != Kind::host && b->second.kind != Kind::host &&
           a->second.device != b->second.device;
}

// As seen on H200 (driver 580).
Carrier carrier_of(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    constexpr std::size_t max_beside_kernels = 4096;
    if (between_gpus(to, from)) return Carrier::peer;
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    const auto host = [&](CUdeviceptr at) {
        const auto found = machine.block_at(at);
        return found == machine.blocks.end() || found->second.kind == Kind::host;
    };
    return host(to) || (host(from) && bytes > max_beside_kernels) ? Carrier::other : Carrier::compute;
}

// The first copy within a GPU comes back only while no stream is held. On H200 (driver 580.159.04) the first
// operation of a process that waited in a stream of one GPU, and then made the first copy within another, did
// not go on.
void expect_copies_within(Context& context, CUdeviceptr to, CUdeviceptr from) {
    Machine& machine = Machine::get();
    std::unique_lock lock(machine.mutex);
    const auto here = [&](CUdeviceptr at) {
        const auto found = machine.block_at(at);
        return found != machine.blocks.end() && found->second.kind != Kind::host &&
               found->second.device == context.device;
    };
    if (context.copied_within || !here(to) || !here(from)) return;
    machine.none_held.wait(lock, [&] { return machine.held_streams == 0; });
    context.copied_within = true;
}

// A copy between host memory of any kind and a GPU, behind what is on the default stream.
CUresult copy_now(void* to, const void* from, CUdeviceptr on_gpu, std::size_t bytes) {
    Context* const context = current_context();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!reaches(context->device, on_gpu, bytes)) return CUDA_ERROR_INVALID_VALUE;
    context->default_stream->wait_until_idle();
    std::memcpy(to, from, bytes);
    return CUDA_SUCCESS;
}

}  // namespace

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** places,
                                CUdeviceptr address) {
    std::lock_guard lock(Machine::get().mutex);
    const Answers answers = answers_for(address);
    for (unsigned i = 0; i < count; ++i)
        if (!answer(answers, attributes[i], places[i])) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

// Nothing prefers a place here.
CUresult cuMemRangeGetAttribute(void* place, std::size_t, CUmem_range_attribute attribute, CUdeviceptr,
                                std::size_t) {
    if (attribute != CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION) return CUDA_ERROR_INVALID_VALUE;
    put(place, int{CU_DEVICE_INVALID});
    return CUDA_SUCCESS;
}

// Without a current context the driver answers CUDA_ERROR_INVALID_CONTEXT, and pool memory and mappings it
// finds in the context of their own device only: CUDA_ERROR_NOT_FOUND in another (both seen on H200, driver
// 580.159.04).
CUresult cuMemGetAddressRange(CUdeviceptr* base, std::size_t* size, CUdeviceptr address) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    const auto found = machine.block_at(address);
    if (found == machine.blocks.end()) return CUDA_ERROR_NOT_FOUND;
    const bool only_at_home = found->second.kind == Kind::pool || found->second.kind == Kind::mapped;
    if (only_at_home && found->second.device != current_context()->device) return CUDA_ERROR_NOT_FOUND;
    *base = found->first;
    *size = found->second.size;
    return CUDA_SUCCESS;
}

// Stricter than the driver, which would take memory out of reach through the host, or pageable memory through
// pages of its own: a backend that asks for that has gone wrong.
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    const std::shared_ptr<Stream> found = find_stream(stream);
    if (!found) return CUDA_ERROR_INVALID_HANDLE;
    const int device = found->context()->device;
    if (!reaches(device, to, bytes) || !reaches(device, from, bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (fails_now("cuMemcpyAsync")) return CUDA_ERROR_OUT_OF_MEMORY;
    // Milliseconds until the stream has the copy: other threads' calls come before it.
    if (const char* const slow = std::getenv("FAKE_CUDA_SLOW_CALLS"))
        std::this_thread::sleep_for(std::chrono::milliseconds(std::atol(slow)));
    expect_copies_within(*found->context(), to, from);
    // A broken bridge, for tests of what finds it: the copy says it went well.
    const bool broken = std::getenv("FAKE_CUDA_CORRUPT_PEER") != nullptr && between_gpus(to, from);
    return found->push(
        [=] {
            std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
            if (broken) *(reinterpret_cast<unsigned char*>(to) + bytes / 2) ^= 1;
        },
        true, carrier_of(to, from, bytes));
}

// In one piece of work; neither on the legacy default stream nor while the stream is captured. Those before one that fails
// are enqueued.
CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, std::size_t* sizes, std::size_t count,
                            CUmemcpyAttributes* attributes, std::size_t* applies_from,
                            std::size_t attribute_count, CUstream stream) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    if (stream == nullptr || stream == CU_STREAM_LEGACY || count == 0) return CUDA_ERROR_INVALID_VALUE;
    if (attribute_count != 1 || applies_from[0] != 0 ||
        attributes[0].srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    const std::shared_ptr<Stream> found = find_stream(stream);
    if (!found) return CUDA_ERROR_INVALID_HANDLE;
    const int device = found->context()->device;
    struct Copy {
        CUdeviceptr to, from;
        std::size_t bytes;
    };
    std::vector<Copy> copies;
    bool failed = false;
    for (std::size_t i = 0; i < count && !failed; ++i) {
        if (!reaches(device, to[i], sizes[i]) || !reaches(device, from[i], sizes[i]))
            return CUDA_ERROR_INVALID_VALUE;
        failed = fails_now("cuMemcpyBatchAsync");
        if (!failed) copies.push_back({to[i], from[i], sizes[i]});
    }
    const Carrier carrier = carrier_of(to[0], from[0], sizes[0]);
    const CUresult pushed = found->push(
        [copies = std::move(copies)] {
            // Any order will do: the last first.
            for (auto copy = copies.rbegin(); copy != copies.rend(); ++copy)
                std::memmove(reinterpret_cast<void*>(copy->to), reinterpret_cast<const void*>(copy->from),
                             copy->bytes);
        },
        false, carrier);
    return failed ? CUDA_ERROR_OUT_OF_MEMORY : pushed;
}

// The contexts say where the memory is; here every address tells that by itself.
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, std::size_t bytes,
                           CUstream stream) {
    return cuMemcpyAsync(to, from, bytes, stream);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t bytes, CUstream stream) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    const std::shared_ptr<Stream> found = find_stream(stream);
    if (!found) return CUDA_ERROR_INVALID_HANDLE;
    if (!reaches(found->context()->device, to, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return found->push([=] { std::memset(reinterpret_cast<void*>(to), value, bytes); }, true);
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, std::size_t bytes) {
    return copy_now(reinterpret_cast<void*>(to), from, to, bytes);
}

CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t bytes) {
    return copy_now(to, reinterpret_cast<const void*>(from), from, bytes);
}
