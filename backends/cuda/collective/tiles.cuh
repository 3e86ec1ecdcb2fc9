// A long range of bytes whose tiles thread blocks take as they come. Of equal shares that of the slowest block ends last: long
// blocks of pairs took 4 % longer so between two GPUs (docs/lab-book.md, "Tiles").
#pragma once

#include "backends/cuda/collective/wait.cuh"

namespace sidestep::backends::cuda {

class Tiles {
public:
    // As measured between two GPUs: what is shorter takes as long, or 3 % more.
    static __device__ bool pay(unsigned ranks, uint64_t bytes) { return ranks == 2 && bytes >= 32 << 20; }

    // The range that goes to rank `to`, or is worked on here where that is this rank. `blocks` of this rank take its tiles.
    __device__ Tiles(const KernelContext& kernel, unsigned to, uint64_t bytes, unsigned blocks)
        : next_(&kernel.station.control->tiles[to]),
          bytes_(bytes),
          tiles_(static_cast<unsigned>((bytes + tile - 1) / tile)),
          blocks_(blocks) {}

    // All threads: work(begin, bytes) for each tile that is this block's. It lets all threads come together first of all.
    template <typename Work>
    __device__ void take(Work&& work) const {
        __shared__ unsigned taken[2];
        if (threadIdx.x == 0) taken[0] = ask();
        __syncthreads();
#pragma unroll 1
        for (unsigned turn = 0; taken[turn & 1] < tiles_; ++turn) {
            const uint64_t begin = uint64_t{taken[turn & 1]} * tile;
            if (threadIdx.x == 0) taken[~turn & 1] = ask();
            work(begin, min(bytes_ - begin, uint64_t{tile}));
        }
    }

private:
    static constexpr unsigned tile = 64 << 10;

    // Each block asks once too often, and who asks last of all leaves the counter as it was.
    __device__ unsigned ask() const {
        const unsigned answer = atomicAdd(next_, 1u);
        if (answer + 1 == tiles_ + blocks_) *static_cast<volatile uint32_t*>(next_) = 0;
        return answer;
    }

    uint32_t* const next_;
    const uint64_t bytes_;
    const unsigned tiles_;
    const unsigned blocks_;
};

}  // namespace sidestep::backends::cuda
