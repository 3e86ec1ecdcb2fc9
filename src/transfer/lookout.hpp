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
    struct Mark {
        std::uint64_t rings = 0, begun = 0;
    };

    // `drive_beside`: nothing: as drives_beside() says.
    explicit Lookout(const backend::Registry& registry, std::optional<bool> drive_beside = {});

    // Whether threads of backends go on with what they carry out pieces of. Where processors are few, a thread that drives
    // would be missing among those that read.
    bool drives_beside() const { return drives_beside_; }

    // This thread is in a look. One that ends a piece goes on with its movement, and does not look again.
    static bool looks_here() { return looking_here_; }
    // Lets backends without threads end finished pieces (backend::Backend::look). Answers whether pieces are
    // left that only a look can end.
    bool look();
    // From now on look() does nothing; waits for those who are at it.
    void close();

    // To be read before the look that finds nothing to do.
    Mark mark() const { return {rings_.load(), begun_.load()}; }
    // Wakes all who sleep.
    void ring();
    // A thread of a backend has begun pieces. If only a look shows their ends, this wakes the drivers that
    // sleep without looking.
    void begun_beside();
    // Until it was woken since the mark, or until that time. `looks`: the caller comes back soon, to look.
    void sleep(Mark mark, Clock::time_point until, bool looks);

private:
    // With so many the readers of files take all processors (backends/file), and rely on one another to go on.
    static constexpr unsigned processors_to_spare = 4;
    static inline thread_local bool looking_here_ = false;

    const std::vector<backend::Backend*> backends_;
    const bool drives_beside_;
    std::atomic<bool> closed_{false};
    std::atomic<unsigned> looking_{0};
    std::atomic<std::uint64_t> rings_{0};
    std::atomic<std::uint64_t> begun_{0};  // how often pieces were begun beside those who drive
    std::atomic<unsigned> sleepers_{0};
    std::atomic<unsigned> without_looks_{0};  // of them
    std::mutex mutex_;
    std::condition_variable rung_;
};

}  // namespace sidestep::transfer
