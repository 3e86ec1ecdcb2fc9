#include <sidestep/transfer.hpp>

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
    if (!activity_ || activity_->finished()) return;
    activity_->cancel();
    engine_->wait(activity_, std::chrono::nanoseconds(0));
}

std::optional<Result<Receipt>> Transfer::poll() {
    if (!engine_->poll(activity_)) return std::nullopt;
    return activity_->result();
}

Result<Receipt> Transfer::wait() {
    engine_->wait(activity_, std::chrono::nanoseconds(0));
    return activity_->result();
}

std::optional<Result<Receipt>> Transfer::wait_for(std::chrono::milliseconds limit) {
    const auto bounded = std::max(limit, std::chrono::milliseconds(1));
    if (!engine_->wait(activity_, bounded)) return std::nullopt;
    return activity_->result();
}

void Transfer::cancel() { activity_->cancel(); }

Bytes Transfer::bytes_done() const { return activity_->bytes_done(); }

Bytes Transfer::bytes_total() const { return activity_->bytes_total(); }

}  // namespace sidestep
