// Which GPUs' host links are in use by copies of their own: lanes that only pass through a GPU make way for
// them.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

namespace sidestep::transfer {

enum class Direction { to_gpu, from_gpu };

// Copies between host memory and each GPU that are at work. Safe to use from several threads; outlives every
// Use.
class HostLinkTraffic {
public:
    explicit HostLinkTraffic(int gpus) : counters_(static_cast<std::size_t>(gpus) * 2) {}

    struct Leave {
        void operator()(std::atomic<int>* counter) const { counter->fetch_sub(1, std::memory_order_relaxed); }
    };
    // Counts one copy for as long as it is there.
    using Use = std::unique_ptr<std::atomic<int>, Leave>;

    Use use(int gpu, Direction direction) {
        counter(gpu, direction).fetch_add(1, std::memory_order_relaxed);
        return Use(&counter(gpu, direction));
    }
    // How many copies of that GPU's own are at work.
    std::atomic<int>& counter(int gpu, Direction direction) {
        return counters_[static_cast<std::size_t>(gpu) * 2 + (direction == Direction::to_gpu ? 0 : 1)];
    }

private:
    std::vector<std::atomic<int>> counters_;
};

}  // namespace sidestep::transfer
