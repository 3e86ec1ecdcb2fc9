// Streams for the copies of Shape::copies: a few of each GPU, which all its ranks in this process share, so that their
// number does not grow with ranks and groups. Streams beyond what a GPU has queues for share one, and what comes behind a
// stream that waits in the same queue waits as well.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/cuda/gpus.hpp"

namespace sidestep::backends::cuda {

class UrgentStreams {
public:
    // One copy from GPU to GPU fills the links of a GPU on NVSwitch; several at a time hide what starting each one costs.
    static constexpr unsigned each = 4;
    using List = std::vector<driver::CudaStream>;

    // Those of a GPU, made when they are asked for first. Of the highest priority: streams of one priority may share a
    // queue of the GPU, also with the stream of a caller. None ever waits for a rank. Any thread.
    Result<std::shared_ptr<const List>> of(const Gpu& gpu);

private:
    std::mutex mutex_;
    std::map<int, std::shared_ptr<const List>> lists_;  // by GPU
};

}  // namespace sidestep::backends::cuda
