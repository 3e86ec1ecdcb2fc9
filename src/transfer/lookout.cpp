#include "transfer/lookout.hpp"

#include <thread>

#include "transfer/spread.hpp"

namespace sidestep::transfer {

Lookout::Lookout(const backend::Registry& registry, std::optional<bool> drive_beside)
    : backends_(registry.usable()),
      drives_beside_(drive_beside.value_or(usable_processors() >= processors_to_spare)) {}

bool Lookout::look() {
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

void Lookout::close() {
    closed_.store(true);
    while (looking_.load() > 0) std::this_thread::yield();
}

// Either the sleeper sees the ring, or the ringer the sleeper.
void Lookout::ring() {
    rings_.fetch_add(1);
    if (sleepers_.load() == 0) return;
    const std::lock_guard lock(mutex_);
    rung_.notify_all();
}

// Either a sleeper whose last look came before these pieces sees begun_, or it is seen here.
void Lookout::begun_beside() {
    begun_.fetch_add(1);
    if (without_looks_.load() == 0) return;
    // A thread that looks here now may stop looking afterwards.
    if (!looking_here_ && !look()) return;
    const std::lock_guard lock(mutex_);
    rung_.notify_all();
}

void Lookout::sleep(Mark mark, Clock::time_point until, bool looks) {
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    if (!looks) without_looks_.fetch_add(1);
    rung_.wait_until(lock, until,
                     [&] { return rings_.load() != mark.rings || (!looks && begun_.load() != mark.begun); });
    if (!looks) without_looks_.fetch_sub(1);
    sleepers_.fetch_sub(1);
}

}  // namespace sidestep::transfer
