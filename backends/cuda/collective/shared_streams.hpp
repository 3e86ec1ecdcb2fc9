// Streams for the copies of Shape::copies: a few of each GPU, which all its ranks in this process share, so
// that their number does not grow with ranks and groups. None ever waits for a rank.
//
// Streams of a GPU share its queues: 8 for what goes on within it (CUDA_DEVICE_MAX_CONNECTIONS), given in
// turn as streams are made, and 4 for copies to other GPUs. What a stream puts into the queue that another
// one waits in waits as well, and priorities change nothing of that. So there are more streams of each kind
// than queues, and those that carry copies to other GPUs carry nothing else.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "backends/cuda/gpus.hpp"

namespace sidestep::backends::cuda {

class SharedStreams {
public:
    enum class Kind {
        away,  // copies to other GPUs. One fills a GPU's links on NVSwitch; several hide what starting each costs
        away_else,  // the same, where those are held up
        home,  // copies within the GPU. The driver has kernels for them, which of those of the highest priority begin first
    };
    static constexpr std::array<unsigned, 3> how_many{4, 3, 9};
    static constexpr unsigned all_away = how_many[0] + how_many[1];
    using List = std::vector<driver::CudaStream>;

    // Those of a GPU, made together when they are asked for first: so they have different queues. Any thread.
    Result<std::shared_ptr<const List>> of(const Gpu& gpu, Kind kind);
    // Each stream of a direction copies 8 bytes before all else, the first time that a GPU is asked for it.
    // Those for other GPUs, since words stay in the queue of a stream's last copy; those within the GPU,
    // since the driver may have to make ready for the first such copy, which must not come when streams wait.
    // Waits a moment for that, since memory must not go before. Answers a word for each stream, which is 1
    // once it has copied. In the GPU's context.
    enum class Direction { away, home };
    using Words = std::function<Result<void*>()>;  // zeroed, pinned, and never to be given back
    Result<const std::uint64_t*> prime(const Gpu& gpu, Direction direction, CUdeviceptr to, CUdeviceptr from,
                                       const Words& take);
    // Whether all of those copies have ended.
    bool settled();
    // Of a GPU; stays where it is. Who tells one of its streams to wait, for ranks or for tasks, holds `calls` meanwhile
    // and adds to `count`. Who copies within the GPU holds it from the look at the count until the copies are enqueued:
    // otherwise a wait could come before them into the same queue, and perhaps wait for these very copies.
    struct Waits {
        std::mutex calls;
        std::uint64_t count = 0;
    };
    Waits& waits(const Gpu& gpu);

private:
    std::mutex mutex_;
    std::map<std::pair<int, Kind>, std::shared_ptr<const List>> lists_;  // by GPU
    std::map<int, Waits> waits_;                                         // by GPU
    struct Primed {
        std::uint64_t* words = nullptr;
        std::size_t begun = 0, marked = 0;  // streams: a copy is in it; its word comes behind that
        bool ended() const;
    };
    std::map<std::pair<int, Direction>, Primed> primed_;
};

}  // namespace sidestep::backends::cuda
