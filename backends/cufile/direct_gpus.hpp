// The GPUs as cuFile needs them: a current context, an identity, and host copies for what is not a whole block.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include <sidestep/topology.hpp>
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
                                                   int ordinal);
    ~DirectGpu();

    int index() const { return index_; }
    const driver::CudaContext& context() const { return *context_; }
    // As cuFile's statistics name it.
    const std::array<unsigned char, 16>& uuid() const { return uuid_; }
    Ledger& ledger(bool write) { return ledgers_[write ? 1 : 0]; }

    // Copies at most a block and waits for it, on a stream that waits for no other. Callers take turns.
    Result<void> to_gpu(void* target, const void* source, Bytes bytes);
    Result<void> to_host(void* target, const void* source, Bytes bytes);

    // A block of memory for trials, aligned to 2 MiB. For one thread at a time.
    void* scratch() const { return reinterpret_cast<void*>(scratch_); }

private:
    DirectGpu(int index, std::shared_ptr<const driver::CudaContext> context, driver::CudaStream stream)
        : index_(index), context_(std::move(context)), stream_(std::move(stream)) {}
    Result<void> copy(CUdeviceptr target, CUdeviceptr source, Bytes bytes) const;

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
                                                    const Topology& topology);

    // ErrorCode::not_found for a GPU that does not exist or that CUDA_VISIBLE_DEVICES hides.
    Result<DirectGpu*> open(int index);

private:
    struct Slot {
        int ordinal = -1;
        std::mutex mutex;
        std::unique_ptr<DirectGpu> open;
    };
    explicit DirectGpus(std::shared_ptr<const driver::Cuda> cuda) : cuda_(std::move(cuda)) {}

    const std::shared_ptr<const driver::Cuda> cuda_;
    std::vector<Slot> slots_;  // by topology index
};

}  // namespace sidestep::backends::cufile
