#include "backends/cuda/collective/host_arena.hpp"

#include <fmt/format.h>

#include "base/try.hpp"
#include "driver/memory_map.hpp"
#include "driver/shared_pages.hpp"

namespace sidestep::backends::cuda {
namespace {

// Pages that are locked as long as this lives.
class Lock {
public:
    static Result<std::unique_ptr<Lock>> put_on(Gpu& gpu, void* address, Bytes bytes) {
        const driver::Cuda& cuda = gpu.context()->cuda();
        driver::ScopedCudaContext current(*gpu.context());
        constexpr unsigned everywhere = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
        const CUresult status = cuda.cuMemHostRegister(address, bytes, everywhere);
        SIDESTEP_CHECK(cuda.check(status, "cuMemHostRegister"));
        std::unique_ptr<Lock> lock(new Lock(gpu.context(), address));
        SIDESTEP_CHECK(check_seen_alike(gpu, address));
        return lock;
    }
    ~Lock() {
        driver::ScopedCudaContext current(*context_);
        context_->cuda().cuMemHostUnregister(address_);
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

private:
    Lock(std::shared_ptr<const driver::CudaContext> context, void* address)
        : context_(std::move(context)), address_(address) {}
    std::shared_ptr<const driver::CudaContext> context_;
    void* address_;
};

// Unlocked before it is unmapped.
struct OwnPages {
    driver::MemoryMap map;
    driver::Fd descriptor;
    std::unique_ptr<Lock> lock;
};
struct OpenedPages {
    explicit OpenedPages(driver::SharedMap opened) : map(std::move(opened)) {}
    driver::SharedMap map;
    std::unique_ptr<Lock> lock;
};

}  // namespace

Result<void> check_seen_alike(Gpu& gpu, void* address) {
    const driver::Cuda& cuda = gpu.context()->cuda();
    driver::ScopedCudaContext current(*gpu.context());
    CUdeviceptr seen = 0;
    SIDESTEP_CHECK(
        cuda.check(cuda.cuMemHostGetDevicePointer(&seen, address, 0), "cuMemHostGetDevicePointer"));
    if (seen == reinterpret_cast<CUdeviceptr>(address)) return {};
    return Error{ErrorCode::unsupported,
                 fmt::format("gpu:{} sees locked host memory at another address than the host", gpu.index()),
                 "cuMemHostGetDevicePointer",
                 {}};
}

Result<HostArena> make_host_arena(Gpu& gpu, Bytes bytes) {
    auto pages = std::make_shared<OwnPages>();
    SIDESTEP_TRY(pages->map, driver::MemoryMap::anonymous(bytes));
    void* const address = pages->map.address();
    const Bytes length = pages->map.length();
    // Before they are locked: it puts other pages there.
    SIDESTEP_TRY(pages->descriptor, driver::share_pages(address, length, -1));
    SIDESTEP_TRY(pages->lock, Lock::put_on(gpu, address, length));
    auto exported = std::make_shared<backend::Exported>();
    exported->scheme = host_arena_scheme;
    exported->descriptor = pages->descriptor.get();
    exported->place = Place::host();
    exported->memory = MemoryKind::pinned;
    exported->size = bytes;
    exported->keeps = pages;
    return HostArena{
        Allocation(Buffer::host(address, bytes), MemoryKind::pinned, [pages]() mutable { pages.reset(); }),
        std::move(exported)};
}

Result<Allocation> open_host_arena(Gpu& gpu, const backend::Exported& exported) {
    SIDESTEP_TRY(auto map, driver::SharedMap::open(exported.descriptor, exported.offset + exported.size));
    auto pages = std::make_shared<OpenedPages>(std::move(map));
    SIDESTEP_TRY(pages->lock, Lock::put_on(gpu, pages->map.address(), pages->map.length()));
    const Buffer buffer = Buffer::host(pages->map.address(), pages->map.length());
    return Allocation(buffer, MemoryKind::pinned, [pages]() mutable { pages.reset(); });
}

}  // namespace sidestep::backends::cuda
