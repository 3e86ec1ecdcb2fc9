// What wakes those who drive the activities of one engine.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "backend/registry.hpp"
#include "transfer/spread.hpp"

namespace sidestep::transfer {

// Any thread. Outlives the engine where something hangs; the backends do not, hence close().
class Lookout {
public:
    using Clock = std::chrono::steady_clock;
    struct Mark {
        std::uint64_t rings = 0, begun = 0;
    };

    // `drive_beside`: nothing: as drives_beside() says.
    explicit Lookout(const backend::Registry& registry, std::optional<bool> drive_beside = {})
        : backends_(registry.usable()),
          drives_beside_(drive_beside.value_or(usable_processors() >= processors_to_spare)) {}

    // Whether threads of backends go on with what they carry out pieces of. Where processors are few, a thread that drives
    // would be missing among those that read.
    bool drives_beside() const { return drives_beside_; }

    // This thread is in a look. One that ends a piece goes on with its movement, and does not look again.
    static bool looks_here() { return looking_here_; }
    // Lets backends without threads end finished pieces (backend::Backend::look). Answers whether pieces are
    // left that only a look can end.
    bool look() {
        if (looking_here_) return false;
        looking_.fetch_add(1);
        bool left = false;
        if (!closed_.load()) {
            looking_here_ = true;
            for (backend::Backend* backend : backends_) left |= backend->look();
            looking_here_ = false;
        }
        looking_.fetch_sub(1);
        return left;
    }
    // From now on look() does nothing; waits for those who are at it.
    void close() {
        closed_.store(true);
        while (looking_.load() > 0) std::this_thread::yield();
    }

    // To be read before the look that finds nothing to do.
    Mark mark() const { return {rings_.load(), begun_.load()}; }
    // Wakes all who sleep.
    void ring() {
        // Either the sleeper sees the ring, or the ringer the sleeper.
        rings_.fetch_add(1);
        if (sleepers_.load() == 0) return;
        const std::lock_guard lock(mutex_);
        rung_.notify_all();
    }
    // A thread of a backend has begun pieces. If only a look shows their ends, this wakes the drivers that
    // sleep without looking.
    void begun_beside() {
        // Either a sleeper whose last look came before these pieces sees begun_, or it is seen here.
        begun_.fetch_add(1);
        if (without_looks_.load() == 0) return;
        // A thread that looks here now may stop looking afterwards.
        if (!looking_here_ && !look()) return;
        const std::lock_guard lock(mutex_);
        rung_.notify_all();
    }
    // Until it was woken since the mark, or until that time. `looks`: the caller comes back soon, to look.
    void sleep(Mark mark, Clock::time_point until, bool looks) {
        std::unique_lock lock(mutex_);
        sleepers_.fetch_add(1);
        if (!looks) without_looks_.fetch_add(1);
        rung_.wait_until(lock, until, [&] {
            return rings_.load() != mark.rings || (!looks && begun_.load() != mark.begun);
        });
        if (!looks) without_looks_.fetch_sub(1);
        sleepers_.fetch_sub(1);
    }

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
