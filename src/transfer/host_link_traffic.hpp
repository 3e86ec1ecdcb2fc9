// Which GPUs' host links are in use by copies of their own: lanes that only pass through a GPU make way for
// them.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

namespace sidestep::transfer {

enum class Direction { to_gpu, from_gpu };

// Copies between host memory and each GPU that are at work. Safe to use from several threads; outlives every
// Use.
class HostLinkTraffic {
public:
    explicit HostLinkTraffic(int gpus) : counters_(static_cast<std::size_t>(gpus) * 2) {}

    // Counts one copy from its making to its end.
    class Use {
    public:
        Use() = default;
        explicit Use(std::atomic<int>* counter) : counter_(counter) {
            counter_->fetch_add(1, std::memory_order_relaxed);
        }
        Use(Use&& other) noexcept : counter_(std::exchange(other.counter_, nullptr)) {}
        Use& operator=(Use&& other) noexcept {
            std::swap(counter_, other.counter_);
            return *this;
        }
        ~Use() {
            if (counter_ != nullptr) counter_->fetch_sub(1, std::memory_order_relaxed);
        }

    private:
        std::atomic<int>* counter_ = nullptr;
    };

    Use use(int gpu, Direction direction) { return Use(&counter(gpu, direction)); }
    // How many copies of that GPU's own are at work.
    std::atomic<int>& counter(int gpu, Direction direction) {
        return counters_[static_cast<std::size_t>(gpu) * 2 + (direction == Direction::to_gpu ? 0 : 1)];
    }

private:
    std::vector<std::atomic<int>> counters_;
};

}  // namespace sidestep::transfer
