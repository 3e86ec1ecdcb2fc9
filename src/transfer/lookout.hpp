// What wakes those who drive the activities of one engine.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

#include "backend/registry.hpp"

namespace sidestep::transfer {

// Any thread. Outlives the engine where something hangs; the backends do not, hence close().
class Lookout {
public:
    using Clock = std::chrono::steady_clock;
    using Mark = std::uint64_t;

    // `drive_beside`: nothing: as drives_beside() says.
    explicit Lookout(const backend::Registry& registry, std::optional<bool> drive_beside = {});

    // Whether threads of backends go on with what they carry out pieces of. Where processors are few, a thread that drives
    // would be missing among those that read.
    bool drives_beside() const { return drives_beside_; }

    // Lets backends without threads end what is over (backend::Backend::look). Answers whether pieces are left that only
    // a look tells of.
    bool look();
    // From now on look() does nothing; waits for those who are at it.
    void close();

    // To be read before the look that finds nothing to do.
    Mark mark() const { return rings_.load(); }
    // Wakes all who sleep.
    void ring();
    // Until somebody has rung since the mark, or that time.
    void sleep(Mark mark, Clock::time_point until);

private:
    const std::vector<backend::Backend*> backends_;
    const bool drives_beside_;
    std::atomic<bool> closed_{false};
    std::atomic<unsigned> looking_{0};
    std::atomic<Mark> rings_{0};
    std::atomic<unsigned> sleepers_{0};
    std::mutex mutex_;
    std::condition_variable rung_;
};

}  // namespace sidestep::transfer
