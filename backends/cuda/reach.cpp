#include "backends/cuda/reach.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::backends::cuda {
namespace {

Error refused(const Error& cause, int gpu, const std::string& what) {
    return Error{ErrorCode::unsupported, fmt::format("gpu:{} may not reach {}: {}", gpu, what, cause.message),
                 cause.where, cause.hint};
}

Result<void> enable_one_way(const Gpu& from, const Gpu& to) {
    const driver::CudaContext& context = *from.context();
    const driver::Cuda& cuda = context.cuda();
    int allowed = 0;
    CUresult status = cuda.cuDeviceCanAccessPeer(&allowed, context.device(), to.context()->device());
    SIDESTEP_CHECK(cuda.check(status, "cuDeviceCanAccessPeer"));
    if (!allowed)
        return Error{ErrorCode::unsupported,
                     fmt::format("gpu:{} cannot access the memory of gpu:{}", from.index(), to.index()),
                     "cuDeviceCanAccessPeer", "see `nvidia-smi topo -p2p rw`"};
    driver::ScopedCudaContext current(context);
    status = cuda.cuCtxEnablePeerAccess(to.context()->get(), 0);
    if (status == CUDA_SUCCESS || status == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return {};
    return refused(cuda.error(status, "cuCtxEnablePeerAccess"), from.index(),
                   fmt::format("gpu:{}", to.index()));
}

CUmemAccessDesc access_of(const Gpu& gpu) {
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = gpu.context()->device();
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return access;
}

Result<void> grant_pool(const Gpu& gpu, CUmemoryPool pool) {
    const driver::Cuda& cuda = gpu.context()->cuda();
    CUmemAccessDesc access = access_of(gpu);
    CUmemAccess_flags now = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CUresult status = cuda.cuMemPoolGetAccess(&now, pool, &access.location);
    if (status == CUDA_SUCCESS && now == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return {};
    return cuda.check(cuda.cuMemPoolSetAccess(pool, &access, 1), "cuMemPoolSetAccess");
}

// `owner`: the GPU whose memory it is; the driver looks mappings up in its context only.
Result<bool> grant_mappings(const Gpu& gpu, const Gpu& owner, const Buffer& buffer) {
    const driver::Cuda& cuda = gpu.context()->cuda();
    CUmemAccessDesc access = access_of(gpu);
    bool takes_access = true;
    auto grant_one = [&](CUdeviceptr base, Bytes size) -> Result<void> {
        unsigned long long now = 0;
        CUresult status = cuda.cuMemGetAccess(&now, &access.location, base);
        if (status == CUDA_SUCCESS && now == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return {};
        if (status != CUDA_ERROR_INVALID_VALUE) status = cuda.cuMemSetAccess(base, size, &access, 1);
        takes_access &= status != CUDA_ERROR_INVALID_VALUE;
        return takes_access ? cuda.check(status, "cuMemSetAccess") : Result<void>();
    };
    driver::ScopedCudaContext current(*owner.context());
    const auto address = reinterpret_cast<CUdeviceptr>(buffer.address());
    SIDESTEP_CHECK(for_each_mapping(cuda, address, buffer.size(), grant_one));
    return takes_access;
}

}  // namespace

Result<void> Peers::enable(const Gpu& a, const Gpu& b) {
    const auto low = static_cast<std::size_t>(std::min(a.index(), b.index()));
    const auto high = static_cast<std::size_t>(std::max(a.index(), b.index()));
    std::atomic<bool>& enabled = enabled_[low * gpus_ + high];
    if (enabled.load(std::memory_order_acquire)) return {};
    std::lock_guard lock(mutex_);
    if (enabled.load(std::memory_order_acquire)) return {};
    SIDESTEP_CHECK(enable_one_way(a, b));
    SIDESTEP_CHECK(enable_one_way(b, a));
    enabled.store(true, std::memory_order_release);
    return {};
}

Result<bool> grant(const Gpu& gpu, const Gpu& owner, const Buffer& buffer, const Pointer& pointer) {
    if (pointer.gpu == gpu.index()) return true;
    Result<bool> granted = true;
    if (pointer.kind == MemoryKind::vmm) granted = grant_mappings(gpu, owner, buffer);
    if (pointer.kind == MemoryKind::pool)
        if (auto access = grant_pool(gpu, pointer.pool); !access) granted = access.error();
    if (granted) return granted;
    return refused(granted.error(), gpu.index(), buffer.to_string());
}

}  // namespace sidestep::backends::cuda
