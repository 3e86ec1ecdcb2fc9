#include <sidestep/transfer.hpp>

#include <algorithm>
#include <atomic>
#include <utility>

#include "transfer/engine.hpp"

namespace sidestep {

Transfer::Transfer(std::shared_ptr<transfer::Engine> engine, std::shared_ptr<transfer::Activity> activity)
    : engine_(std::move(engine)), activity_(std::move(activity)) {}

Transfer::Transfer(Transfer&&) noexcept = default;

Transfer& Transfer::operator=(Transfer&& other) noexcept {
    Transfer ended(std::move(other));
    std::swap(engine_, ended.engine_);
    std::swap(activity_, ended.activity_);
    return *this;
}

Transfer::~Transfer() {
    if (!activity_) return;
    if (engine_->abandoned(*activity_)) {
        // Its end would touch what is still the parent's.
        new std::shared_ptr<transfer::Activity>(std::move(activity_));
        return;
    }
    if (!activity_->finished()) {
        activity_->cancel();
        engine_->wait(activity_, std::chrono::nanoseconds(0));
    }
    engine_->let_go(*activity_);
    activity_->completion().close_event_fd();  // the engine may keep the activity of a hung device
}

std::optional<Result<Receipt>> Transfer::poll() {
    if (!engine_->poll(activity_)) return std::nullopt;
    return engine_->take(*activity_);
}

Result<Receipt> Transfer::wait() & {
    engine_->wait(activity_, std::chrono::nanoseconds(0));
    return engine_->take(*activity_);
}

Result<Receipt> Transfer::wait() && {
    engine_->wait(activity_, std::chrono::nanoseconds(0));
    return std::move(engine_->take(*activity_));
}

std::optional<Result<Receipt>> Transfer::wait_for(std::chrono::milliseconds limit) {
    // Longer ones have no nanoseconds.
    constexpr std::chrono::milliseconds longest = std::chrono::hours(24 * 365 * 100);
    const auto bounded = std::clamp(limit, std::chrono::milliseconds(1), longest);
    if (!engine_->wait(activity_, bounded)) return std::nullopt;
    return engine_->take(*activity_);
}

void Transfer::cancel() {
    activity_->cancel();
}

Result<int> Transfer::event_fd() {
    auto descriptor = activity_->completion().event_fd();
    if (descriptor && !activity_->finished()) engine_->drive_in_background(activity_);
    return descriptor;
}

TransferAwaiter Transfer::operator co_await() && {
    return TransferAwaiter(std::move(*this), {});
}

TransferAwaiter Transfer::resume_on(Executor executor) && {
    return TransferAwaiter(std::move(*this), std::move(executor));
}

void Transfer::keep(std::shared_ptr<const void> owner) {
    activity_->keep(std::move(owner));
}

Bytes Transfer::bytes_done() const {
    return activity_->bytes_done();
}

Bytes Transfer::bytes_total() const {
    return activity_->bytes_total();
}

// The frame to resume. The side that swaps `armed` to false decides: a resumption, or the frame's end.
struct TransferAwaiter::Waiting {
    std::coroutine_handle<> frame;
    std::atomic<bool> armed{true};

    void resume() {
        if (armed.exchange(false)) frame.resume();
    }
};

TransferAwaiter::TransferAwaiter(Transfer transfer, Executor executor)
    : transfer_(std::move(transfer)), executor_(std::move(executor)) {}

TransferAwaiter::~TransferAwaiter() {
    if (waiting_) waiting_->armed.store(false);
}

bool TransferAwaiter::await_ready() {
    return transfer_.engine_->poll(transfer_.activity_);
}

// Once the call is kept, another thread may resume the frame and end it, this object included: what is used
// after that is held by locals.
bool TransferAwaiter::await_suspend(std::coroutine_handle<> frame) {
    waiting_ = std::make_shared<Waiting>();
    waiting_->frame = frame;
    const std::shared_ptr<transfer::Engine> engine = transfer_.engine_;
    const std::shared_ptr<transfer::Activity> activity = transfer_.activity_;
    auto go_on = [waiting = waiting_] { waiting->resume(); };
    std::function<void()> call = go_on;
    if (executor_) call = [executor = executor_, go_on = std::move(go_on)] { executor(go_on); };
    if (!activity->completion().keep(std::move(call))) return false;
    engine->drive_in_background(activity);
    return true;
}

Result<Receipt> TransferAwaiter::await_resume() {
    return std::move(transfer_).wait();
}

}  // namespace sidestep
