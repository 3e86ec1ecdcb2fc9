// The kernels of collectives, loaded into one GPU's context.
#pragma once

#include <array>
#include <memory>

#include "driver/cuda_handles.hpp"
#include "protocol/collective_task.hpp"

namespace sidestep::backends::cuda {

class CollectiveKernels {
public:
    // Loads all code now: a kernel that is loaded lazily may wait for one that waits for it. Fails with
    // ErrorCode::unsupported on GPUs older than compute capability 8.0.
    static Result<std::shared_ptr<const CollectiveKernels>> load(
        std::shared_ptr<const driver::CudaContext> context);
    CollectiveKernels(const CollectiveKernels&) = delete;
    CollectiveKernels& operator=(const CollectiveKernels&) = delete;
    ~CollectiveKernels();

    // The kernel that runs such a task. `plain`: the shorter one will do, where there are two. Of lamport:
    // all ranks are sent the same whole, aligned units, which this one combines; of lines: all ranks are
    // sources and targets of every slice; of pairs: all that leaves this GPU or comes to it is eager.
    // `blocks`: of pairs, thread blocks of each.
    CUfunction kernel(const protocol::CollectiveTask& task, unsigned ranks, bool plain,
                      unsigned blocks) const;
    // Whether a launch of `blocks` may be brought to the multiprocessors while the kernel before it still
    // runs: all of few blocks but rings. More could take the room that kernels of another group need, for
    // which this one's peers wait.
    bool may_come_early(const protocol::CollectiveTask& task, unsigned blocks) const;

private:
    struct Combining {
        CUfunction packets[2] = {};  // for up to four ranks, and for more
        CUfunction coalesced[2] = {};
        CUfunction lamport[2] = {};       // of types that have it
        CUfunction some_lamport[2] = {};  // that is not plain
        CUfunction lines[2] = {};
        CUfunction some_lines[2] = {};  // of slices that not all ranks give to, or take
        CUfunction slices[2] = {};
    };

    explicit CollectiveKernels(std::shared_ptr<const driver::CudaContext> context)
        : context_(std::move(context)) {}
    Result<void> load_module(const unsigned char* image);
    Result<void> find(CUfunction& function, const char* name);
    Result<void> load_all();

    std::shared_ptr<const driver::CudaContext> context_;
    std::array<CUmodule, protocol::elements + 2> modules_{};
    unsigned loaded_ = 0;
    bool overlaps_ = false;                                  // the GPU takes such launches
    std::array<Combining, protocol::elements> combining_{};  // by element
    CUfunction lines_copy_[2] = {};
    CUfunction slices_copy_ = nullptr;
    CUfunction pairs_ = nullptr;
    CUfunction many_pairs_ = nullptr;
    CUfunction eager_pairs_ = nullptr;
    std::array<CUfunction, protocol::elements> rings_{};  // by element
    CUfunction ring_move_ = nullptr;
};

}  // namespace sidestep::backends::cuda
