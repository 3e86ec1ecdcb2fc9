#include "backends/cuda/ipc.hpp"

#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "base/try.hpp"
#include "driver/local_socket.hpp"

namespace sidestep::backends::cuda {
namespace {

constexpr std::string_view allocation_scheme = "cuda-ipc";
constexpr std::string_view descriptor_scheme = "cuda-fd";
constexpr std::string_view fabric_scheme = "cuda-fabric";

constexpr std::size_t longest_handle = 1024;  // of backend::Exported
// Physical allocations behind one buffer: 320 GiB of PyTorch's segments of 20 MiB.
constexpr std::size_t max_pieces = 16384;

// What lies in Exported::handle. Both ends are this library on one machine.
struct AllocationHandle {
    CUuuid gpu;
    CUipcMemHandle memory;
    std::uint64_t size;  // of the allocation
};

struct MappingsHandle {
    CUuuid gpu;
    std::uint64_t identity;  // so that two ranges never have equal handles
    std::uint32_t runs;      // of PieceRun, that many follow, and behind them the fabric handles
    std::uint32_t pieces;
};

// `count` pieces of `size` bytes, one behind the other.
struct PieceRun {
    std::uint64_t size;
    std::uint64_t count;
};

template <typename Part>
void append(std::string& handle, const Part& part) {
    handle.append(reinterpret_cast<const char*>(&part), sizeof(part));
}

// Takes a part off the front; false where it is not there.
template <typename Part>
bool take(std::string_view& handle, Part& part) {
    if (handle.size() < sizeof(part)) return false;
    std::memcpy(&part, handle.data(), sizeof(part));
    handle.remove_prefix(sizeof(part));
    return true;
}

Error senseless(const char* what) {
    return Error{
        ErrorCode::io_error, fmt::format("a handle of GPU memory makes no sense: {}", what), "cuda", {}};
}

Error cannot_share(const Buffer& buffer, std::string what, std::string hint) {
    return Error{ErrorCode::unsupported, std::move(what), buffer.to_string(), std::move(hint)};
}

Result<CUuuid> uuid_of(const Gpu& gpu) {
    CUuuid uuid{};
    const driver::Cuda& cuda = gpu.context()->cuda();
    SIDESTEP_CHECK(cuda.check(cuda.cuDeviceGetUuid(&uuid, gpu.context()->device()), "cuDeviceGetUuid"));
    return uuid;
}

std::string text_of(const CUuuid& uuid) {
    std::string text = "GPU-";
    for (std::size_t i = 0; i < sizeof(uuid.bytes); ++i) {
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
    }
    return text;
}

std::string remedy_for(MemoryKind kind) {
    if (kind == MemoryKind::pool)
        return "use cudaMalloc or MemoryKind::device: the driver's own pools are not made for other "
               "processes";
    return "use MemoryKind::device or MemoryKind::vmm";
}

constexpr const char* torch_remedy =
    "create it with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR (MemoryKind::vmm does; PyTorch's expandable "
    "segments do "
    "with TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=1)";

// A mapping of physical memory of another process, piece by piece; undone as far as it came.
struct ImportedRange {
    std::shared_ptr<const driver::CudaContext> context;
    CUdeviceptr address = 0;
    Bytes size = 0;
    std::vector<std::pair<CUdeviceptr, Bytes>> mapped;

    explicit ImportedRange(std::shared_ptr<const driver::CudaContext> owner) : context(std::move(owner)) {}
    ImportedRange(const ImportedRange&) = delete;
    ImportedRange& operator=(const ImportedRange&) = delete;
    ~ImportedRange() {
        const driver::Cuda& cuda = context->cuda();
        driver::ScopedCudaContext current(*context);
        for (const auto& [at, bytes] : mapped) cuda.cuMemUnmap(at, bytes);
        if (address) cuda.cuMemAddressFree(address, size);
    }

    // Maps a piece behind the ones before it.
    Result<void> add(void* handle, CUmemAllocationHandleType type, Bytes bytes) {
        const driver::Cuda& cuda = context->cuda();
        CUmemGenericAllocationHandle memory = 0;
        CUresult status = cuda.cuMemImportFromShareableHandle(&memory, handle, type);
        SIDESTEP_CHECK(cuda.check(status, "cuMemImportFromShareableHandle"));
        const CUdeviceptr at = mapped.empty() ? address : mapped.back().first + mapped.back().second;
        status = cuda.cuMemMap(at, bytes, 0, memory, 0);
        if (status == CUDA_SUCCESS) mapped.emplace_back(at, bytes);
        cuda.cuMemRelease(memory);  // the mapping holds it from here on
        return cuda.check(status, "cuMemMap");
    }

    Result<void> allow_access() {
        CUmemAccessDesc access{};
        access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access.location.id = context->device();
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        const driver::Cuda& cuda = context->cuda();
        return cuda.check(cuda.cuMemSetAccess(address, size, &access, 1), "cuMemSetAccess");
    }
};

// The parts of a handle of mappings, checked against each other.
struct ParsedMappings {
    MappingsHandle head{};
    std::vector<Bytes> sizes;
    Bytes total = 0;
    std::vector<CUmemFabricHandle> fabric;
};

Result<ParsedMappings> parse_mappings(std::string_view handle, bool fabric) {
    ParsedMappings parsed;
    if (!take(handle, parsed.head)) return senseless("it is too short");
    if (parsed.head.pieces == 0 || parsed.head.pieces > max_pieces)
        return senseless("it has too many pieces");
    for (std::uint32_t i = 0; i < parsed.head.runs; ++i) {
        PieceRun run{};
        if (!take(handle, run)) return senseless("it is too short");
        if (run.count > parsed.head.pieces - parsed.sizes.size())
            return senseless("its pieces do not add up");
        if (run.size == 0 || run.size > (Bytes{1} << 48)) return senseless("a piece has a wrong size");
        for (std::uint64_t n = 0; n < run.count; ++n) parsed.total += run.size;
        parsed.sizes.insert(parsed.sizes.end(), run.count, run.size);
    }
    if (parsed.sizes.size() != parsed.head.pieces) return senseless("its pieces do not add up");
    if (fabric) {
        parsed.fabric.resize(parsed.sizes.size());
        for (CUmemFabricHandle& one : parsed.fabric)
            if (!take(handle, one)) return senseless("it is too short");
    }
    if (!handle.empty()) return senseless("it is too long");
    return parsed;
}

}  // namespace

struct Ipc::Pieces {
    std::shared_ptr<const driver::CudaContext> context;
    std::vector<CUmemGenericAllocationHandle>
        handles;  // held, so that their numbers mean nothing else meanwhile
    std::vector<Bytes> sizes;
    CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_NONE;
    driver::Fd bundle;                      // of descriptors
    std::vector<CUmemFabricHandle> fabric;  // or these
    std::uint64_t identity = 0;

    ~Pieces() {
        for (const CUmemGenericAllocationHandle handle : handles) context->cuda().cuMemRelease(handle);
    }

    Bytes size() const {
        Bytes all = 0;
        for (const Bytes piece : sizes) all += piece;
        return all;
    }

    // The handle type that all pieces were created for.
    Result<void> choose_type() {
        const driver::Cuda& cuda = context->cuda();
        unsigned common = ~0u;
        for (const CUmemGenericAllocationHandle handle : handles) {
            CUmemAllocationProp properties{};
            CUresult status = cuda.cuMemGetAllocationPropertiesFromHandle(&properties, handle);
            SIDESTEP_CHECK(cuda.check(status, "cuMemGetAllocationPropertiesFromHandle"));
            common &= static_cast<unsigned>(properties.requestedHandleTypes);
        }
        if ((common & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0)
            type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        else if ((common & CU_MEM_HANDLE_TYPE_FABRIC) != 0)
            type = CU_MEM_HANDLE_TYPE_FABRIC;
        else
            return Error{ErrorCode::unsupported, "the memory was not created to be shared among processes",
                         "cuMemCreate", torch_remedy};
        return {};
    }

    Result<void> export_all() {
        SIDESTEP_CHECK(choose_type());
        const driver::Cuda& cuda = context->cuda();
        std::vector<driver::Fd> descriptors;
        std::vector<int> numbers;
        for (const CUmemGenericAllocationHandle handle : handles) {
            int number = -1;
            CUmemFabricHandle wide{};
            const bool by_descriptor = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            void* const out = by_descriptor ? static_cast<void*>(&number) : static_cast<void*>(&wide);
            CUresult status = cuda.cuMemExportToShareableHandle(out, handle, type, 0);
            SIDESTEP_CHECK(cuda.check(status, "cuMemExportToShareableHandle"));
            if (!by_descriptor) {
                fabric.push_back(wide);
                continue;
            }
            descriptors.emplace_back(number);
            numbers.push_back(number);
        }
        if (numbers.empty()) return {};
        SIDESTEP_TRY(bundle, driver::bundle_descriptors(numbers));
        return {};
    }

    Result<std::string> handle(const CUuuid& gpu) const {
        std::vector<PieceRun> runs;
        for (const Bytes size : sizes) {
            if (!runs.empty() && runs.back().size == size)
                ++runs.back().count;
            else
                runs.push_back({size, 1});
        }
        std::string text;
        append(text, MappingsHandle{gpu, identity, static_cast<std::uint32_t>(runs.size()),
                                    static_cast<std::uint32_t>(sizes.size())});
        for (const PieceRun& run : runs) append(text, run);
        for (const CUmemFabricHandle& one : fabric) append(text, one);
        if (text.size() > longest_handle)
            return Error{
                ErrorCode::unsupported,
                fmt::format("the memory consists of {} pieces of {} sizes, more than can be described",
                            sizes.size(), runs.size()),
                "cuda", "share a smaller part of it"};
        return text;
    }
};

Result<backend::Exported> Ipc::share(const Buffer& buffer, const Pointer& pointer) {
    if (!buffer.place().is_gpu())
        return cannot_share(buffer, fmt::format("{} host memory cannot be shared", to_string(pointer.kind)),
                            "use memory of Context::allocate(Place::host(), bytes, MemoryKind::pageable)");
    SIDESTEP_TRY(Gpu * gpu, gpus_.open(buffer.place().index()));
    driver::ScopedCudaContext current(*gpu->context());
    if (pointer.kind == MemoryKind::device) return share_allocation(*gpu, buffer, pointer);
    if (pointer.kind == MemoryKind::vmm) return share_mappings(*gpu, buffer);
    return cannot_share(buffer, fmt::format("{} memory of a GPU cannot be shared", to_string(pointer.kind)),
                        remedy_for(pointer.kind));
}

// The handle stands for the whole allocation, wherever in it the buffer lies.
Result<backend::Exported> Ipc::share_allocation(const Gpu& gpu, const Buffer& buffer,
                                                const Pointer& pointer) {
    const driver::Cuda& cuda = *gpus_.cuda();
    const auto address = reinterpret_cast<CUdeviceptr>(buffer.address());
    CUdeviceptr base = 0;
    std::size_t size = 0;
    SIDESTEP_CHECK(cuda.check(cuda.cuMemGetAddressRange(&base, &size, address), "cuMemGetAddressRange"));
    AllocationHandle handle{};
    handle.size = size;
    SIDESTEP_TRY(handle.gpu, uuid_of(gpu));
    if (CUresult status = cuda.cuIpcGetMemHandle(&handle.memory, base); status != CUDA_SUCCESS) {
        Error error = cuda.error(status, "cuIpcGetMemHandle", buffer.to_string());
        if (error.hint.empty()) error.hint = "memory that another process shared cannot be shared on";
        return error;
    }
    backend::Exported exported;
    exported.scheme = allocation_scheme;
    append(exported.handle, handle);
    exported.place = buffer.place();
    exported.memory = MemoryKind::device;
    exported.size = buffer.size();
    exported.offset = address - base;
    exported.identity = pointer.identity;
    exported.keeps = std::const_pointer_cast<driver::CudaContext>(gpu.context());
    return exported;
}

Result<std::shared_ptr<Ipc::Pieces>> Ipc::pieces_of(const Gpu& gpu, const Buffer& buffer,
                                                    CUdeviceptr& first) {
    const driver::Cuda& cuda = *gpus_.cuda();
    auto pieces = std::make_shared<Pieces>();
    pieces->context = gpu.context();
    first = 0;
    const auto retain = [&](CUdeviceptr base, Bytes size) -> Result<void> {
        if (pieces->handles.size() == max_pieces)
            return cannot_share(buffer,
                                fmt::format("it consists of more than {} physical allocations", max_pieces),
                                "share a smaller part of it");
        if (pieces->handles.empty()) first = base;
        CUmemGenericAllocationHandle handle = 0;
        CUresult status = cuda.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(base));
        if (status != CUDA_SUCCESS)
            return cannot_share(buffer, cuda.error(status, "cuMemRetainAllocationHandle").message,
                                torch_remedy);
        pieces->handles.push_back(handle);
        pieces->sizes.push_back(size);
        return {};
    };
    SIDESTEP_CHECK(
        for_each_mapping(cuda, reinterpret_cast<CUdeviceptr>(buffer.address()), buffer.size(), retain));
    return pieces;
}

Result<backend::Exported> Ipc::share_mappings(const Gpu& gpu, const Buffer& buffer) {
    CUdeviceptr first = 0;
    SIDESTEP_TRY(auto pieces, pieces_of(gpu, buffer, first));
    {
        std::lock_guard lock(mutex_);
        std::weak_ptr<Pieces>& known = shared_[pieces->handles];
        if (auto before = known.lock()) {
            pieces = std::move(before);
        } else {
            pieces->identity = next_identity_++;
            if (auto made = pieces->export_all(); !made) {
                shared_.erase(pieces->handles);
                Error error = made.error();
                error.where = buffer.to_string();
                return error;
            }
            known = pieces;
        }
        std::erase_if(shared_, [](const auto& entry) { return entry.second.expired(); });
    }
    SIDESTEP_TRY(const CUuuid uuid, uuid_of(gpu));
    backend::Exported exported;
    exported.scheme = pieces->type == CU_MEM_HANDLE_TYPE_FABRIC ? fabric_scheme : descriptor_scheme;
    SIDESTEP_TRY(exported.handle, pieces->handle(uuid));
    exported.descriptor = pieces->bundle ? pieces->bundle.get() : -1;
    exported.place = buffer.place();
    exported.memory = MemoryKind::vmm;
    exported.size = buffer.size();
    exported.offset = reinterpret_cast<CUdeviceptr>(buffer.address()) - first;
    exported.identity = pieces->identity;
    exported.keeps = std::move(pieces);
    return exported;
}

// `user`, or else the GPU of that number.
Result<Gpu*> Ipc::find(const CUuuid& uuid, Gpu* user) {
    if (user) return user;
    for (int ordinal = 0; ordinal < gpus_.devices(); ++ordinal) {
        const auto index = gpus_.index_of(ordinal);
        CUdevice device = 0;
        CUuuid found{};
        if (!index || gpus_.cuda()->cuDeviceGet(&device, ordinal) != CUDA_SUCCESS) continue;
        if (gpus_.cuda()->cuDeviceGetUuid(&found, device) != CUDA_SUCCESS) continue;
        if (std::memcmp(&found, &uuid, sizeof(uuid)) == 0) return gpus_.open(*index);
    }
    return Error{ErrorCode::not_found,
                 fmt::format("the memory lies on {}, which this process does not see", text_of(uuid)), "cuda",
                 "name that GPU in CUDA_VISIBLE_DEVICES too, or give the container that GPU"};
}

Result<std::optional<Allocation>> Ipc::open(const backend::Exported& exported, Gpu* user) {
    const auto opened = [](Result<Allocation> memory) -> Result<std::optional<Allocation>> {
        if (!memory) return memory.error();
        return std::optional(std::move(*memory));
    };
    if (exported.scheme == allocation_scheme) return opened(open_allocation(exported, user));
    if (exported.scheme == descriptor_scheme) return opened(open_mappings(exported, false, user));
    if (exported.scheme == fabric_scheme) return opened(open_mappings(exported, true, user));
    return std::optional<Allocation>();
}

Result<Allocation> Ipc::open_allocation(const backend::Exported& exported, Gpu* user) {
    std::string_view text = exported.handle;
    AllocationHandle handle{};
    if (!take(text, handle) || !text.empty()) return senseless("its length is wrong");
    if (handle.size == 0 || handle.size > (Bytes{1} << 48)) return senseless("its size is wrong");
    SIDESTEP_TRY(Gpu * gpu, find(handle.gpu, user));
    auto context = gpu->context();
    const driver::Cuda& cuda = context->cuda();
    driver::ScopedCudaContext current(*context);
    CUdeviceptr address = 0;
    CUresult status = cuda.cuIpcOpenMemHandle(&address, handle.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (status != CUDA_SUCCESS) {
        Error error = cuda.error(status, "cuIpcOpenMemHandle", fmt::format("gpu:{}", gpu->index()));
        if (error.hint.empty())
            error.hint = "was the memory freed, or is its process in another container (--ipc=host)?";
        return error;
    }
    return Allocation(Buffer::gpu(gpu->index(), reinterpret_cast<void*>(address), handle.size),
                      MemoryKind::device, [context, address] {
                          driver::ScopedCudaContext mine(*context);
                          context->cuda().cuIpcCloseMemHandle(address);
                      });
}

Result<Allocation> Ipc::open_mappings(const backend::Exported& exported, bool fabric, Gpu* user) {
    SIDESTEP_TRY(ParsedMappings parsed, parse_mappings(exported.handle, fabric));
    SIDESTEP_TRY(Gpu * gpu, find(parsed.head.gpu, user));
    std::vector<driver::Fd> descriptors;
    if (!fabric) {
        SIDESTEP_TRY(descriptors, driver::open_bundle(exported.descriptor, max_pieces));
        if (descriptors.size() != parsed.sizes.size())
            return senseless("it came with another number of descriptors");
    }
    driver::ScopedCudaContext current(*gpu->context());
    const driver::Cuda& cuda = gpu->context()->cuda();
    auto range = std::make_shared<ImportedRange>(gpu->context());
    range->size = parsed.total;
    CUresult status = cuda.cuMemAddressReserve(&range->address, parsed.total, 0, 0, 0);
    SIDESTEP_CHECK(cuda.check(status, "cuMemAddressReserve"));
    for (std::size_t i = 0; i < parsed.sizes.size(); ++i) {
        const auto type = fabric ? CU_MEM_HANDLE_TYPE_FABRIC : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        void* const handle = fabric
                                 ? static_cast<void*>(&parsed.fabric[i])
                                 : reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptors[i].get()));
        SIDESTEP_CHECK(range->add(handle, type, parsed.sizes[i]));
    }
    SIDESTEP_CHECK(range->allow_access());
    const Buffer buffer = Buffer::gpu(gpu->index(), reinterpret_cast<void*>(range->address), parsed.total);
    return Allocation(buffer, MemoryKind::vmm, [range]() mutable { range.reset(); });
}

}  // namespace sidestep::backends::cuda
