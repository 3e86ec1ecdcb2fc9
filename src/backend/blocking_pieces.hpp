// Pieces whose calls block, carried out by threads.
#pragma once

#include <functional>
#include <string>

#include "backend/backend.hpp"
#include "base/workers.hpp"

namespace sidestep::backend {

// Any thread may call. Ends as base::Workers does.
class BlockingPieces {
public:
    using Call = std::function<Result<void>()>;

    BlockingPieces(std::size_t max_threads, std::string name) : workers_({max_threads}, std::move(name)) {}

    // The flight ends when the call has returned, and is destroyed. Fails as base::Workers::add does.
    Result<Progress> start(Call call, Flight& flight) {
        auto added = workers_.add([call = std::move(call), &flight]() mutable {
            const Result<void> result = std::exchange(call, nullptr)();
            flight.end(result);
        });
        if (!added) return added.error();
        return Progress::pending;
    }

    // base::Workers::end(): where it is false, what the calls use has to be kept.
    bool end() { return workers_.end(); }

private:
    base::Workers workers_;
};

}  // namespace sidestep::backend
