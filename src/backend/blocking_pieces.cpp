#include "backend/blocking_pieces.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::backend {

Result<Ticket> BlockingPieces::start(Call call) {
    const auto piece = std::make_shared<Piece>();
    piece->call = std::move(call);
    SIDESTEP_CHECK(workers_.add([piece] {
        piece->result = std::exchange(piece->call, nullptr)();
        piece->over.store(true, std::memory_order_release);
    }));
    const std::lock_guard lock(mutex_);
    in_flight_.emplace(next_, piece);
    return Ticket{next_++};
}

Result<Progress> BlockingPieces::poll(Ticket ticket) {
    const std::lock_guard lock(mutex_);
    const auto found = in_flight_.find(ticket.id);
    if (found == in_flight_.end())
        return Error{ErrorCode::internal, fmt::format("ticket {} is not in flight", ticket.id), "poll", {}};
    if (!found->second->over.load(std::memory_order_acquire)) return Progress::pending;
    const Result<void> result = std::move(found->second->result);
    in_flight_.erase(found);
    if (!result) return result.error();
    return Progress::done;
}

}  // namespace sidestep::backend
