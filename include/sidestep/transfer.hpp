// One movement of bytes in flight.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include <sidestep/api.h>
#include <sidestep/receipt.hpp>

namespace sidestep {

namespace transfer {
class Activity;
class Engine;
}  // namespace transfer

// A handle, move-only. The copy runs on whether or not anybody looks; dropping the handle of a copy
// that has not ended cancels it and waits for the pieces in flight, so the buffers may be freed after.
// Methods may be called from any one thread at a time; cancel() from any thread.
class SIDESTEP_API Transfer {
public:
    Transfer(Transfer&&) noexcept;
    Transfer& operator=(Transfer&&) noexcept;
    ~Transfer();

    // The result if the copy has ended, nothing otherwise. Never blocks.
    std::optional<Result<Receipt>> poll();

    // Blocks until the copy has ended. The deadline and stall limit of the copy's options bound it.
    Result<Receipt> wait();

    // Blocks for at most `limit`; nothing if the copy is still running then. The copy goes on.
    std::optional<Result<Receipt>> wait_for(std::chrono::milliseconds limit);

    // Asks the copy to stop: it ends with ErrorCode::cancelled once the pieces in flight have ended,
    // unless it had ended already. Memory and in-place file targets are then partly written; a whole-file
    // target is untouched.
    void cancel();

    // Bytes that have arrived at the target so far, and bytes to move in all (0 until known).
    Bytes bytes_done() const;
    Bytes bytes_total() const;

private:
    friend struct ContextAccess;
    Transfer(std::shared_ptr<transfer::Engine> engine, std::shared_ptr<transfer::Activity> activity);
    std::shared_ptr<transfer::Engine> engine_;
    std::shared_ptr<transfer::Activity> activity_;
};

}  // namespace sidestep
