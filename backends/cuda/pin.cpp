#include "backends/cuda/pin.hpp"

#include <fmt/format.h>

#include "base/rounding.hpp"
#include "base/try.hpp"
#include "driver/memory_map.hpp"

namespace sidestep::backends::cuda {
namespace {

// A range of registered pages.
class LockedPages {
public:
    LockedPages(std::shared_ptr<const driver::CudaContext> context, void* begin)
        : context_(std::move(context)), begin_(begin) {}
    ~LockedPages() {
        driver::ScopedCudaContext current(*context_);
        context_->cuda().cuMemHostUnregister(begin_);
    }
    LockedPages(const LockedPages&) = delete;
    LockedPages& operator=(const LockedPages&) = delete;

private:
    std::shared_ptr<const driver::CudaContext> context_;
    void* begin_;
};

Error explain(const driver::Cuda& cuda, CUresult status, const Buffer& buffer) {
    if (status == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
        return Error{ErrorCode::invalid_argument, "part of this memory is page-locked already",
                     buffer.to_string(), "lock the whole range at once, or unlock the part first"};
    Error error = cuda.error(status, "cuMemHostRegister", buffer.to_string());
    if (error.hint.empty() && !buffer.read_only())
        error.hint =
            "memory that is mapped for reading only is given as const; memory of a device cannot be locked";
    return error;
}

}  // namespace

Result<std::shared_ptr<void>> pin_host(Gpus& gpus, const Buffer& buffer) {
    if (!buffer.place().is_host() || buffer.size() == 0)
        return Error{
            ErrorCode::invalid_argument, "only host memory can be page-locked", buffer.to_string(), {}};
    const Bytes page = driver::page_size();
    const auto address = reinterpret_cast<std::uintptr_t>(buffer.address());
    const std::uintptr_t first = address / page * page;
    const std::uintptr_t end = base::round_up(address + buffer.size(), page);
    void* const begin = static_cast<char*>(buffer.address()) - (address - first);

    SIDESTEP_TRY(Gpu * gpu, gpus.open_near(buffer.place().index()));
    const driver::Cuda& cuda = gpu->context()->cuda();
    driver::ScopedCudaContext current(*gpu->context());
    constexpr unsigned everywhere = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    CUresult status = cuda.cuMemHostRegister(begin, end - first, everywhere);
    // Const memory is often writable all the same; only where it is not, the driver needs to be told.
    const bool worth_another = status != CUDA_SUCCESS && status != CUDA_ERROR_OUT_OF_MEMORY &&
                               status != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (worth_another && buffer.read_only())
        status = cuda.cuMemHostRegister(begin, end - first, everywhere | CU_MEMHOSTREGISTER_READ_ONLY);
    if (status != CUDA_SUCCESS) return explain(cuda, status, buffer);
    return std::shared_ptr<void>(std::make_shared<LockedPages>(gpu->context(), begin));
}

}  // namespace sidestep::backends::cuda
