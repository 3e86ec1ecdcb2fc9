#include "backend/flight.hpp"

#include <thread>
#include <utility>

namespace sidestep::backend {

void PieceOwner::close() const {
    while (inside_.load(std::memory_order_acquire) > 0) std::this_thread::yield();
}

// The owner may go once it has seen the end, and close() holds it until ended() has returned.
void Flight::end(Result<void> result) {
    PieceOwner& owner = owner_;
    owner.inside_.fetch_add(1, std::memory_order_relaxed);
    result_ = std::move(result);
    over_.store(true, std::memory_order_release);
    owner.ended();
    owner.inside_.fetch_sub(1, std::memory_order_release);
}

}  // namespace sidestep::backend
