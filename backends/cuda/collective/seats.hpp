// Seats of ranks on this process's GPUs.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "backend/backend.hpp"
#include "backends/cuda/collective/control.hpp"
#include "backends/cuda/collective/kernels.hpp"
#include "backends/cuda/collective/shared_streams.hpp"
#include "backends/cuda/ipc.hpp"
#include "backends/cuda/reach.hpp"

namespace sidestep::backends::cuda {

// HostWords for seats, in pinned pages that stay: freeing pinned memory waits for all work of a GPU, among it
// tasks that wait for somebody else. Any thread may call.
class HostPages {
public:
    explicit HostPages(Gpus& gpus) : gpus_(gpus) {}
    // 128 bytes, zeroed.
    Result<void*> take();
    void give_back(void* words);

private:
    static constexpr std::size_t bytes_a_page = 4096;
    static constexpr std::size_t bytes_each = 128;

    Gpus& gpus_;
    std::mutex mutex_;
    std::vector<Allocation> pages_;
    std::vector<void*> free_;
};

// What seats have in common; outlives them.
class Seats final : public backend::Seats {
public:
    Seats(Gpus& all, Peers& between, std::mutex& of_grants, Ipc& shared, const Topology& topology);

    // ErrorCode::unsupported for a place that is no GPU of this process, invalid_argument for ranks out of
    // range. The first seat on a GPU loads the kernels.
    Result<std::unique_ptr<backend::Seat>> seat(const backend::SeatRequest& request) override;

    // By the topology's numbers. False for GPUs that it does not have.
    bool over_nvlink(int gpu, int other) const { return nvlinks_.count({gpu, other}) != 0; }

    Gpus& gpus;
    Peers& peers;
    std::mutex& grants;  // held while the access of a mapping or pool is changed
    Ipc& ipc;
    HostPages pages;
    SharedStreams shared_streams;

private:
    Result<std::shared_ptr<const CollectiveKernels>> kernels_of(const Gpu& gpu);

    std::set<std::pair<int, int>> nvlinks_;  // pairs of GPUs that reach each other over them
    std::mutex mutex_;
    std::map<int, std::shared_ptr<const CollectiveKernels>> kernels_;  // by GPU
};

}  // namespace sidestep::backends::cuda
