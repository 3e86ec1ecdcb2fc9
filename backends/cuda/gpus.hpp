// The GPUs of this process, numbered as the topology numbers them.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <sidestep/topology.hpp>
#include "backend/support.hpp"
#include "backends/cuda/batch.hpp"
#include "backends/cuda/copy_kernel.hpp"
#include "backends/cuda/in_flight.hpp"
#include "driver/cuda_handles.hpp"

namespace sidestep::backends::cuda {

// What work a stream is for. Each has streams of its own, so that opposite directions run side by side.
enum class Traffic { to_gpu, to_host, to_peer, local, kernel };

// An open GPU: its context, streams, events and copy kernel. Safe to use from several threads.
class Gpu {
public:
    static Result<std::unique_ptr<Gpu>> open(std::shared_ptr<const driver::Cuda> cuda, int index,
                                             int ordinal);
    Gpu(const Gpu&) = delete;
    Gpu& operator=(const Gpu&) = delete;

    int index() const { return index_; }
    const std::shared_ptr<const driver::CudaContext>& context() const { return context_; }
    const std::shared_ptr<const driver::CudaStream>& allocation_stream() const { return allocation_stream_; }

    // One of at most this size is over in some microseconds: 5 at 55 GB/s.
    static constexpr Bytes small = Bytes{256} << 10;

    // The stream whose turn it is.
    CUstream stream(Traffic traffic) const;
    // The stream of a copy between the GPU and one piece of host memory. Large ones end there in the order of their start, and
    // so do small ones of one thread.
    CUstream link_stream(Traffic traffic, const void* host_memory, Bytes size) const;

    // The copy kernel, or why this GPU has none.
    const Result<CopyKernel>& kernel() const { return *kernel_; }
    // The same for batches.
    const Result<BatchKernel>& batch_kernel() const { return *batch_kernel_; }

    InFlight& in_flight() { return in_flight_; }

private:
    // Several streams hide the submission of one copy behind the run of another, and keep copies to
    // several peers from queueing behind each other.
    static constexpr std::size_t streams_a_traffic = 4;
    static constexpr std::size_t traffics = 5;
    struct Lane {
        std::vector<driver::CudaStream> streams;
        mutable std::atomic<unsigned> turn{0};
    };

    Gpu(int index, std::shared_ptr<const driver::CudaContext> context)
        : index_(index), context_(std::move(context)), in_flight_(context_, index) {}

    int index_;
    std::shared_ptr<const driver::CudaContext> context_;
    std::shared_ptr<const driver::CudaStream> allocation_stream_;
    Lane lanes_[traffics];
    std::optional<Result<CopyKernel>> kernel_;
    std::optional<Result<BatchKernel>> batch_kernel_;
    InFlight in_flight_;
};

// Every GPU of the topology; those that CUDA hides from this process are known as such.
class Gpus {
public:
    // Initialises the driver and matches its devices to the topology's GPUs by their PCI addresses.
    static Result<std::unique_ptr<Gpus>> find(std::shared_ptr<const driver::Cuda> cuda,
                                              const Topology& topology);

    const std::shared_ptr<const driver::Cuda>& cuda() const { return cuda_; }
    // "4 GPUs, CUDA driver 13.0".
    std::string summary() const;
    // One more than the highest number of a GPU.
    std::size_t end() const {
        return slots_.empty() ? 0 : static_cast<std::size_t>(slots_.rbegin()->first) + 1;
    }
    // How many devices CUDA shows.
    int devices() const { return static_cast<int>(index_of_.size()); }
    // Whether copies are left in flight after a look at all.
    bool look() const;
    bool several_numa_nodes() const { return numa_nodes_ > 1; }

    // Fails with not_found for a GPU that does not exist, or that CUDA_VISIBLE_DEVICES hides.
    Result<void> check(int index) const;
    // The GPU, opened now if it was not.
    Result<Gpu*> open(int index);
    // Any open GPU, or null.
    Gpu* any_opened() const;
    // A GPU for work that belongs to none, such as pinning host memory of NUMA node `node` (-1: any): one
    // that is near the node, of those one that is open already.
    Result<Gpu*> open_near(int node);

    // The topology's number of a CUDA device; nothing for a device that the topology lacks.
    std::optional<int> index_of(CUdevice ordinal) const;
    // CUDA's number of a GPU, -1 if hidden or not there.
    int ordinal_of(int index) const {
        const auto slot = slots_.find(index);
        return slot == slots_.end() ? -1 : slot->second.ordinal;
    }

private:
    struct Slot {
        int ordinal = -1;
        int numa_node = -1;
        std::mutex mutex;
        std::unique_ptr<Gpu> owned;
        std::atomic<Gpu*> open{nullptr};
    };
    explicit Gpus(std::shared_ptr<const driver::Cuda> cuda) : cuda_(std::move(cuda)) {}
    Result<void> match(const Topology& topology, const std::vector<std::string>& addresses);

    std::shared_ptr<const driver::Cuda> cuda_;
    int driver_version_ = 0;
    int numa_nodes_ = 0;
    std::map<int, Slot> slots_;  // by topology index
    std::vector<int> index_of_;  // by CUDA ordinal, -1: not in the topology
};

}  // namespace sidestep::backends::cuda
