// Pieces that are calls which block, carried out by threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "backend/backend.hpp"
#include "base/workers.hpp"

namespace sidestep::backend {

// Any thread may call. Ends as base::Workers does.
class BlockingPieces {
public:
    using Call = std::function<Result<void>()>;

    BlockingPieces(std::size_t max_threads, std::string name) : workers_({max_threads}, std::move(name)) {}

    // Fails as base::Workers::add does.
    Result<Ticket> start(Call call);
    Result<Progress> poll(Ticket ticket);

    // base::Workers::end(): where it is false, what the calls use has to be kept.
    bool end() { return workers_.end(); }

private:
    struct Piece {
        Call call;
        Result<void> result;
        std::atomic<bool> over{false};
    };
    std::mutex mutex_;  // guards what follows
    std::unordered_map<std::uint64_t, std::shared_ptr<Piece>> in_flight_;
    std::uint64_t next_ = 1;
    base::Workers workers_;  // last: destroyed first
};

}  // namespace sidestep::backend
