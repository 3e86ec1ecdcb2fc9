#include "backends/cuda/pointer.hpp"

#include <array>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::backends::cuda {
namespace {

// The answers of one cuPointerGetAttributes call; all zero for memory that CUDA does not know.
struct Attributes {
    CUmemorytype memory = {};
    unsigned managed = 0;
    int ordinal = -1;
    unsigned legacy_ipc = 0;  // 1 for cuMemAlloc memory; 0 for that of pools and of cuMemMap
    CUmemoryPool pool = nullptr;
    CUdeviceptr start = 0;
    std::size_t size = 0;
    unsigned long long id = 0;  // no other memory of this process has, or had, the same
};

CUresult ask(const driver::Cuda& cuda, CUdeviceptr address, Attributes& attributes) {
    attributes = {};
    std::array names{CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_IS_MANAGED,
                     CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                     CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                     CU_POINTER_ATTRIBUTE_RANGE_SIZE,     CU_POINTER_ATTRIBUTE_BUFFER_ID};
    std::array<void*, names.size()> values{&attributes.memory,     &attributes.managed, &attributes.ordinal,
                                           &attributes.legacy_ipc, &attributes.pool,    &attributes.start,
                                           &attributes.size,       &attributes.id};
    return cuda.cuPointerGetAttributes(static_cast<unsigned>(names.size()), names.data(), values.data(),
                                       address);
}

// The driver may want a current context to answer: then any open GPU's is used, else that of `to_open`
// (-1: none) is opened. Without either, nothing is known.
Result<Attributes> attributes_of(Gpus& gpus, const Buffer& buffer, int to_open) {
    const driver::Cuda& cuda = *gpus.cuda();
    const auto address = reinterpret_cast<CUdeviceptr>(buffer.address());
    Attributes attributes;
    CUresult status = ask(cuda, address, attributes);
    if (status == CUDA_ERROR_INVALID_CONTEXT) {
        Gpu* gpu = gpus.any_opened();
        if (!gpu && to_open >= 0) {
            SIDESTEP_TRY(gpu, gpus.open(to_open));
        }
        if (!gpu) return Attributes{};
        driver::ScopedCudaContext current(*gpu->context());
        status = ask(cuda, address, attributes);
        if (status == CUDA_ERROR_INVALID_CONTEXT) return Attributes{};
    }
    if (status != CUDA_SUCCESS) return cuda.error(status, "cuPointerGetAttributes", buffer.to_string());
    return attributes;
}

std::optional<int> preferred_gpu(const Gpus& gpus, const void* address) {
    int ordinal = -1;
    CUresult status = gpus.cuda()->cuMemRangeGetAttribute(&ordinal, sizeof(ordinal),
                                                          CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION,
                                                          reinterpret_cast<CUdeviceptr>(address), 1);
    if (status != CUDA_SUCCESS) return std::nullopt;
    return gpus.index_of(ordinal);
}

Error wrong_place(const Buffer& buffer, const std::string& really, std::string hint) {
    return Error{ErrorCode::invalid_argument, fmt::format("this address is {}", really), buffer.to_string(),
                 std::move(hint)};
}

bool fits(const Buffer& buffer, Bytes start, Bytes size) {
    const auto address = reinterpret_cast<Bytes>(buffer.address());
    return address >= start && buffer.size() <= size && address - start <= size - buffer.size();
}

Error too_long(const Buffer& buffer, Bytes start, Bytes size) {
    const Bytes left = size - (reinterpret_cast<Bytes>(buffer.address()) - start);
    return Error{ErrorCode::invalid_argument, "the buffer reaches past its allocation", buffer.to_string(),
                 fmt::format("the allocation ends {} after the buffer's address", format_bytes(left))};
}

// One number of the numbers of several mappings; 0 if one of them has none.
class MixedId {
public:
    void add(unsigned long long id) {
        known_ = known_ && id != 0;
        mixed_ = (mixed_ ^ id) * 0x9E3779B97F4A7C15ull;
        mixed_ ^= mixed_ >> 29;
    }
    std::uint64_t value() const { return known_ ? mixed_ | 1 : 0; }

private:
    bool known_ = true;
    std::uint64_t mixed_ = 0;
};

// Pool and VMM memory: the attributes tell the reserved addresses, so the mappings are asked for. Answers the
// identity of all of them, since each can be replaced on its own.
Result<std::uint64_t> check_mapped(Gpus& gpus, const Buffer& buffer) {
    SIDESTEP_TRY(Gpu * gpu, gpus.open(buffer.place().index()));
    driver::ScopedCudaContext current(*gpu->context());
    const driver::Cuda& cuda = *gpus.cuda();
    MixedId identity;
    const auto see = [&](CUdeviceptr base, Bytes) -> Result<void> {
        CUpointer_attribute name = CU_POINTER_ATTRIBUTE_BUFFER_ID;
        unsigned long long id = 0;
        void* value = &id;
        SIDESTEP_CHECK(
            cuda.check(cuda.cuPointerGetAttributes(1, &name, &value, base), "cuPointerGetAttributes"));
        identity.add(id);
        return {};
    };
    auto found = for_each_mapping(cuda, reinterpret_cast<CUdeviceptr>(buffer.address()), buffer.size(), see);
    if (found) return identity.value();
    return Error{ErrorCode::invalid_argument, "part of the buffer is not mapped to memory",
                 buffer.to_string(), found.error().message};
}

Result<std::optional<Pointer>> look_up_host(const Gpus& gpus, const Buffer& buffer,
                                            const Attributes& attributes) {
    if (attributes.managed) return std::optional(Pointer{MemoryKind::managed, -1, nullptr, attributes.id});
    if (attributes.memory == CU_MEMORYTYPE_DEVICE) {
        const auto index = gpus.index_of(attributes.ordinal);
        if (!index) return wrong_place(buffer, "memory of a GPU that is not in the topology", "");
        return wrong_place(buffer, fmt::format("memory of gpu:{}, not host memory", *index),
                           fmt::format("give it as Buffer::gpu({}, ...)", *index));
    }
    if (attributes.memory != CU_MEMORYTYPE_HOST) return std::optional<Pointer>();
    // A buffer that is pinned in part only is treated as pageable: always correct.
    if (attributes.size != 0 && !fits(buffer, attributes.start, attributes.size))
        return std::optional<Pointer>();
    return std::optional(Pointer{MemoryKind::pinned, -1, nullptr, attributes.id});
}

Result<std::optional<Pointer>> look_up_gpu(Gpus& gpus, const Buffer& buffer, const Attributes& attributes) {
    const int claimed = buffer.place().index();
    if (attributes.managed) return std::optional(Pointer{MemoryKind::managed, -1, nullptr, attributes.id});
    if (attributes.memory == CU_MEMORYTYPE_HOST)
        return wrong_place(buffer, "pinned host memory, not that of a GPU", "give it as Buffer::host(...)");
    if (attributes.memory != CU_MEMORYTYPE_DEVICE)
        return wrong_place(buffer, "not GPU memory, or was freed", "give host memory as Buffer::host(...)");
    const auto index = gpus.index_of(attributes.ordinal);
    if (index != claimed)
        return wrong_place(buffer,
                           index ? fmt::format("memory of gpu:{}, not of gpu:{}", *index, claimed)
                                 : "memory of a GPU that is not in the topology",
                           index ? fmt::format("give it as Buffer::gpu({}, ...)", *index) : "");
    Pointer pointer{MemoryKind::device, claimed, attributes.pool, attributes.id};
    if (attributes.pool)
        pointer.kind = MemoryKind::pool;
    else if (!attributes.legacy_ipc)
        pointer.kind = MemoryKind::vmm;
    if (attributes.size != 0 && !fits(buffer, attributes.start, attributes.size))
        return too_long(buffer, attributes.start, attributes.size);
    if (pointer.kind != MemoryKind::device) {
        SIDESTEP_TRY(pointer.identity, check_mapped(gpus, buffer));
    }
    return std::optional(pointer);
}

}  // namespace

Result<std::optional<Pointer>> look_up(Gpus& gpus, const Buffer& buffer) {
    if (buffer.place().is_gpu()) SIDESTEP_CHECK(gpus.check(buffer.place().index()));
    // No byte of an empty buffer will be touched, and its address may be the end of an allocation.
    if (buffer.size() == 0)
        return std::optional(buffer.place().is_gpu()
                                 ? Pointer{MemoryKind::device, buffer.place().index(), nullptr, 0}
                                 : Pointer{});
    const int to_open = buffer.place().is_gpu() ? buffer.place().index() : -1;
    SIDESTEP_TRY(const Attributes attributes, attributes_of(gpus, buffer, to_open));
    if (buffer.place().is_gpu()) return look_up_gpu(gpus, buffer, attributes);
    return look_up_host(gpus, buffer, attributes);
}

Result<backend::Description> locate(Gpus& gpus, const void* address, Bytes bytes) {
    SIDESTEP_TRY(Gpu * near, gpus.open_near(-1));
    Buffer buffer = Buffer::host(address, bytes);
    SIDESTEP_TRY(const Attributes attributes, attributes_of(gpus, buffer, near->index()));
    backend::Description found;
    found.size = bytes;
    std::optional<int> gpu;
    if (attributes.managed)
        gpu = preferred_gpu(gpus, address);
    else if (attributes.memory == CU_MEMORYTYPE_DEVICE)
        gpu = gpus.index_of(attributes.ordinal);
    if (gpu) {
        found.place = Place::gpu(*gpu);
        buffer = Buffer::gpu(*gpu, address, bytes);
    }
    SIDESTEP_TRY(const auto pointer,
                 gpu ? look_up_gpu(gpus, buffer, attributes) : look_up_host(gpus, buffer, attributes));
    if (pointer) found.memory = pointer->kind;
    return found;
}

}  // namespace sidestep::backends::cuda
