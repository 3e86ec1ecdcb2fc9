// Calls of one communicator on several streams, in one group: they run on one of them, in the order of all.
#pragma once

#include <vector>

#include "shims/nccl/communicator.hpp"

struct CUevent_st;

namespace sidestep::nccl {

// begin() lets the first call's stream wait for the others and moves the calls there; end() lets the others
// wait for it. Neither does anything for calls that share a stream. May be captured into a graph.
class StreamJoin {
public:
    StreamJoin() = default;
    ~StreamJoin();
    StreamJoin(const StreamJoin&) = delete;
    StreamJoin& operator=(const StreamJoin&) = delete;

    // `device`: CUDA's number of the GPU that the streams belong to.
    Result<void> begin(std::vector<Call>& calls, int device);
    Result<void> end();

private:
    Result<void> follow(cudaStream_t first, cudaStream_t later);

    int device_ = -1;  // whose primary context is current for us; -1: none
    cudaStream_t first_ = nullptr;
    std::vector<cudaStream_t> others_;
    std::vector<CUevent_st*> events_;
};

}  // namespace sidestep::nccl
