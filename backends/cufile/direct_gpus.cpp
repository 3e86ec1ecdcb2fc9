#include "backends/cufile/direct_gpus.hpp"

#include <cstring>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::backends::cufile {
namespace {

constexpr std::size_t scratch_size = std::size_t{2} << 20;

CUdeviceptr device_pointer(const void* address) {
    return reinterpret_cast<CUdeviceptr>(address);
}

}  // namespace

Result<std::unique_ptr<DirectGpu>> DirectGpu::open(std::shared_ptr<const driver::Cuda> cuda, int index,
                                                   int ordinal) {
    SIDESTEP_TRY(auto context, driver::CudaContext::retain(cuda, ordinal));
    SIDESTEP_TRY(auto stream, driver::CudaStream::create(context));
    std::unique_ptr<DirectGpu> gpu(new DirectGpu(index, context, std::move(stream)));
    CUuuid uuid{};
    SIDESTEP_CHECK(cuda->check(cuda->cuDeviceGetUuid(&uuid, context->device()), "cuDeviceGetUuid"));
    static_assert(sizeof uuid == sizeof gpu->uuid_);
    std::memcpy(gpu->uuid_.data(), &uuid, sizeof uuid);
    const driver::ScopedCudaContext current(*context);
    SIDESTEP_CHECK(cuda->check(cuda->cuMemAlloc(&gpu->scratch_, scratch_size), "cuMemAlloc"));
    SIDESTEP_CHECK(
        cuda->check(cuda->cuMemHostAlloc(&gpu->pinned_, block, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc"));
    return gpu;
}

DirectGpu::~DirectGpu() {
    const driver::ScopedCudaContext current(*context_);
    if (scratch_ != 0) context_->cuda().cuMemFree(scratch_);
    if (pinned_ != nullptr) context_->cuda().cuMemFreeHost(pinned_);
}

Result<void> DirectGpu::copy(CUdeviceptr target, CUdeviceptr source, Bytes bytes) const {
    const driver::Cuda& cuda = context_->cuda();
    const driver::ScopedCudaContext current(*context_);
    SIDESTEP_CHECK(cuda.check(cuda.cuMemcpyAsync(target, source, bytes, stream_.get()), "cuMemcpyAsync"));
    return cuda.check(cuda.cuStreamSynchronize(stream_.get()), "cuStreamSynchronize");
}

Result<void> DirectGpu::to_gpu(void* target, const void* source, Bytes bytes) {
    const std::lock_guard lock(mutex_);
    std::memcpy(pinned_, source, bytes);
    return copy(device_pointer(target), device_pointer(pinned_), bytes);
}

Result<void> DirectGpu::to_host(void* target, const void* source, Bytes bytes) {
    const std::lock_guard lock(mutex_);
    SIDESTEP_CHECK(copy(device_pointer(pinned_), device_pointer(source), bytes));
    std::memcpy(target, pinned_, bytes);
    return {};
}

Result<std::unique_ptr<DirectGpus>> DirectGpus::find(std::shared_ptr<const driver::Cuda> cuda,
                                                     const Topology& topology) {
    SIDESTEP_CHECK(cuda->check(cuda->cuInit(0), "cuInit"));
    std::unique_ptr<DirectGpus> gpus(new DirectGpus(cuda));
    gpus->slots_ = std::vector<Slot>(static_cast<std::size_t>(topology.gpu_count()));
    SIDESTEP_TRY(const auto addresses, driver::pci_addresses(*cuda));
    for (std::size_t ordinal = 0; ordinal < addresses.size(); ++ordinal)
        for (const Device& known : topology.devices())
            if (known.kind == DeviceKind::gpu && driver::same_pci_address(known.bus_id, addresses[ordinal]))
                gpus->slots_[static_cast<std::size_t>(known.index)].ordinal = static_cast<int>(ordinal);
    return gpus;
}

Result<DirectGpu*> DirectGpus::open(int index) {
    if (index < 0 || static_cast<std::size_t>(index) >= slots_.size() ||
        slots_[static_cast<std::size_t>(index)].ordinal < 0)
        return Error{ErrorCode::not_found, fmt::format("CUDA shows this process no gpu:{}", index), "cufile",
                     "see CUDA_VISIBLE_DEVICES"};
    Slot& slot = slots_[static_cast<std::size_t>(index)];
    const std::lock_guard lock(slot.mutex);
    if (!slot.open) {
        SIDESTEP_TRY(slot.open, DirectGpu::open(cuda_, index, slot.ordinal));
    }
    return slot.open.get();
}

}  // namespace sidestep::backends::cufile
