// One movement of bytes in flight.
#pragma once

#include <chrono>
#include <coroutine>
#include <functional>
#include <memory>
#include <optional>

#include <sidestep/api.h>
#include <sidestep/receipt.hpp>
#include <sidestep/result.hpp>

namespace sidestep {

namespace transfer {
class Activity;
class Engine;
}  // namespace transfer

class TransferAwaiter;

// Where a coroutine goes on: calls what it is given, once, soon, and not from within this call; or drops it.
// For asio: [&](auto go_on) { asio::post(io, std::move(go_on)); }. Called by the library's thread.
using Executor = std::function<void(std::function<void()> go_on)>;

// A handle, move-only. The copy runs on whether or not anybody looks; dropping the handle of a copy
// that has not ended cancels it, and waits for the pieces in flight, so the buffers may be freed after: for ten
// seconds at most, where a device hangs. So does dropping that of one whose deadline passed; wait() does not.
// Methods may be called from any one thread at a time; cancel() from any thread. docs/async.md shows
// event loops, coroutines and streams.
class SIDESTEP_API Transfer {
public:
    Transfer(Transfer&&) noexcept;
    Transfer& operator=(Transfer&&) noexcept;
    ~Transfer();

    // The result if the copy has ended, nothing otherwise. Never blocks.
    std::optional<Result<Receipt>> poll();

    // Blocks until the copy has ended. The deadline and stall limit of the copy's options bound it. From a temporary, as in
    // context.copy(from, to).wait(), the receipt is moved out and not copied.
    Result<Receipt> wait() &;
    Result<Receipt> wait() &&;

    // Blocks for at most `limit`, and never less than 1 ms; nothing if the copy is still running then. It goes
    // on.
    std::optional<Result<Receipt>> wait_for(std::chrono::milliseconds limit);

    // Asks the copy to stop: nothing new is started, and it ends with ErrorCode::cancelled once the pieces
    // in flight have ended, unless it had ended already. What was to be written is then:
    //   memory, a range of a file, a block device   partly written; which bytes arrived is not known
    //   a whole file                                 as it was before; there is no file where there was none
    //   the targets of a batch                       each as above: some whole, some not begun
    // The same holds for a copy that failed, or whose deadline or stall limit passed; a file system that did not
    // answer until the deadline may still give the file its name, and the error says so. The source is only read.
    void cancel();

    // A descriptor (eventfd) that becomes readable when the copy has ended, well or not, and stays so: poll()
    // then has the result. For epoll, poll and io_uring; do not read from it or close it. It belongs to this
    // Transfer and is closed with it. From the first call on the library's own thread drives the copy and
    // sees its end within about 0.2 ms. ErrorCode::out_of_memory where there is no descriptor left.
    Result<int> event_fd();

    // Result<Receipt> done = co_await context.copy(from, to);
    // Result<Receipt> done = co_await std::move(transfer);
    //
    // Goes on at once where the copy has ended, else on the library's own thread, which drives all copies of
    // the Context: a coroutine that blocks there holds them up; see resume_on(). The coroutine's frame owns
    // the transfer from here on: destroying a frame that waits cancels the copy, waits for the pieces in
    // flight, and the frame is not resumed. It is resumed once at most.
    TransferAwaiter operator co_await() &&;

    // co_await std::move(transfer).resume_on(executor): goes on where the executor takes it. A frame that is
    // destroyed after the executor was told and before it acts is not resumed either, as long as both happen
    // on one thread.
    TransferAwaiter resume_on(Executor executor) &&;

    // Keeps `owner` until this handle is gone and no device may touch the buffers any more. Where a device hangs, the copy
    // is reported before that: hand over what owns the buffers if your program frees them after an error. May be called
    // several times. The last to let go of it may be the library's own thread, which holds no lock then.
    void keep(std::shared_ptr<const void> owner);

    // Bytes that have arrived at the target so far, and bytes to move in all (0 until known).
    Bytes bytes_done() const;
    Bytes bytes_total() const;

private:
    friend struct ContextAccess;
    friend class TransferAwaiter;
    Transfer(std::shared_ptr<transfer::Engine> engine, std::shared_ptr<transfer::Activity> activity);
    std::shared_ptr<transfer::Engine> engine_;
    std::shared_ptr<transfer::Activity> activity_;
};

// What co_await works with; lives in the coroutine's frame. Not for use by hand.
class SIDESTEP_API TransferAwaiter {
public:
    TransferAwaiter(const TransferAwaiter&) = delete;
    TransferAwaiter& operator=(const TransferAwaiter&) = delete;
    ~TransferAwaiter();

    bool await_ready();
    bool await_suspend(std::coroutine_handle<> waiting);
    Result<Receipt> await_resume();

private:
    friend class Transfer;
    struct Waiting;
    TransferAwaiter(Transfer transfer, Executor executor);

    Transfer transfer_;
    Executor executor_;
    std::shared_ptr<Waiting> waiting_;
};

}  // namespace sidestep
