// The GPUs as cuFile needs them: a current context, an identity, and host copies for what is not a whole block.
#pragma once

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <fmt/format.h>

#include <sidestep/topology.hpp>
#include "base/try.hpp"
#include "driver/cuda_handles.hpp"

namespace sidestep::backends::cufile {

// What goes directly: whole blocks, at multiples of a block in the file.
inline constexpr Bytes block = 4_KiB;

// Requests given to cuFile, to be held against what cuFile counted. Any thread.
struct Ledger {
    std::atomic<std::uint64_t> begun{0};
    std::atomic<std::uint64_t> ended{0};
};

// An open GPU. Safe to use from several threads.
class DirectGpu {
public:
    static Result<std::unique_ptr<DirectGpu>> open(std::shared_ptr<const driver::Cuda> cuda, int index,
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
        SIDESTEP_CHECK(cuda->check(cuda->cuMemHostAlloc(&gpu->pinned_, block, CU_MEMHOSTALLOC_PORTABLE),
                                   "cuMemHostAlloc"));
        return gpu;
    }
    ~DirectGpu() {
        const driver::ScopedCudaContext current(*context_);
        if (scratch_ != 0) context_->cuda().cuMemFree(scratch_);
        if (pinned_ != nullptr) context_->cuda().cuMemFreeHost(pinned_);
    }

    int index() const { return index_; }
    const driver::CudaContext& context() const { return *context_; }
    // As cuFile's statistics name it.
    const std::array<unsigned char, 16>& uuid() const { return uuid_; }
    Ledger& ledger(bool write) { return ledgers_[write ? 1 : 0]; }

    // Copies at most a block and waits for it, on a stream that waits for no other. Callers take turns.
    Result<void> to_gpu(void* target, const void* source, Bytes bytes) {
        const std::lock_guard lock(mutex_);
        std::memcpy(pinned_, source, bytes);
        return copy(device_pointer(target), device_pointer(pinned_), bytes);
    }
    Result<void> to_host(void* target, const void* source, Bytes bytes) {
        const std::lock_guard lock(mutex_);
        SIDESTEP_CHECK(copy(device_pointer(pinned_), device_pointer(source), bytes));
        std::memcpy(target, pinned_, bytes);
        return {};
    }

    // A block of memory for trials, aligned to 2 MiB. For one thread at a time.
    void* scratch() const { return reinterpret_cast<void*>(scratch_); }

private:
    static constexpr std::size_t scratch_size = std::size_t{2} << 20;

    static CUdeviceptr device_pointer(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

    DirectGpu(int index, std::shared_ptr<const driver::CudaContext> context, driver::CudaStream stream)
        : index_(index), context_(std::move(context)), stream_(std::move(stream)) {}
    Result<void> copy(CUdeviceptr target, CUdeviceptr source, Bytes bytes) const {
        const driver::Cuda& cuda = context_->cuda();
        const driver::ScopedCudaContext current(*context_);
        SIDESTEP_CHECK(cuda.check(cuda.cuMemcpyAsync(target, source, bytes, stream_.get()), "cuMemcpyAsync"));
        return cuda.check(cuda.cuStreamSynchronize(stream_.get()), "cuStreamSynchronize");
    }

    std::mutex mutex_;        // of pinned_
    void* pinned_ = nullptr;  // a block
    const int index_;
    const std::shared_ptr<const driver::CudaContext> context_;
    const driver::CudaStream stream_;
    std::array<unsigned char, 16> uuid_{};
    CUdeviceptr scratch_ = 0;
    Ledger ledgers_[2];
};

// The topology's GPUs, opened on first use.
class DirectGpus {
public:
    // Matches CUDA's devices to the topology's GPUs by their PCI addresses.
    static Result<std::unique_ptr<DirectGpus>> find(std::shared_ptr<const driver::Cuda> cuda,
                                                    const Topology& topology) {
        SIDESTEP_CHECK(cuda->check(cuda->cuInit(0), "cuInit"));
        std::unique_ptr<DirectGpus> gpus(new DirectGpus(cuda));
        SIDESTEP_TRY(const auto addresses, driver::pci_addresses(*cuda));
        for (std::size_t ordinal = 0; ordinal < addresses.size(); ++ordinal)
            for (const Device& known : topology.devices())
                if (known.kind == DeviceKind::gpu &&
                    driver::same_pci_address(known.bus_id, addresses[ordinal]))
                    gpus->slots_[known.index].ordinal = static_cast<int>(ordinal);
        return gpus;
    }

    // ErrorCode::not_found for a GPU that does not exist or that CUDA_VISIBLE_DEVICES hides.
    Result<DirectGpu*> open(int index) {
        const auto found = slots_.find(index);
        if (found == slots_.end())
            return Error{ErrorCode::not_found, fmt::format("CUDA shows this process no gpu:{}", index),
                         "cufile", "see CUDA_VISIBLE_DEVICES"};
        Slot& slot = found->second;
        const std::lock_guard lock(slot.mutex);
        if (!slot.open) {
            SIDESTEP_TRY(slot.open, DirectGpu::open(cuda_, index, slot.ordinal));
        }
        return slot.open.get();
    }

private:
    struct Slot {
        int ordinal = -1;
        std::mutex mutex;
        std::unique_ptr<DirectGpu> open;
    };
    explicit DirectGpus(std::shared_ptr<const driver::Cuda> cuda) : cuda_(std::move(cuda)) {}

    const std::shared_ptr<const driver::Cuda> cuda_;
    std::map<int, Slot> slots_;  // by topology index: those that CUDA shows
};

}  // namespace sidestep::backends::cufile
