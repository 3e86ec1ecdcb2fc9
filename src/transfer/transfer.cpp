#include <sidestep/transfer.hpp>

#include "transfer/engine.hpp"

namespace sidestep {

Transfer::Transfer(std::shared_ptr<transfer::Engine> engine, std::shared_ptr<transfer::Job> job)
    : engine_(std::move(engine)), job_(std::move(job)) {}

Transfer::Transfer(Transfer&&) noexcept = default;

Transfer& Transfer::operator=(Transfer&& other) noexcept {
    Transfer ended(std::move(other));
    std::swap(engine_, ended.engine_);
    std::swap(job_, ended.job_);
    return *this;
}

Transfer::~Transfer() {
    if (!job_ || job_->finished()) return;
    job_->cancel();
    engine_->wait(job_, std::chrono::nanoseconds(0));
}

std::optional<Result<Receipt>> Transfer::poll() {
    if (!engine_->poll(job_)) return std::nullopt;
    return job_->result();
}

Result<Receipt> Transfer::wait() {
    engine_->wait(job_, std::chrono::nanoseconds(0));
    return job_->result();
}

std::optional<Result<Receipt>> Transfer::wait_for(std::chrono::milliseconds limit) {
    const auto bounded = std::max(limit, std::chrono::milliseconds(1));
    if (!engine_->wait(job_, bounded)) return std::nullopt;
    return job_->result();
}

void Transfer::cancel() { job_->cancel(); }

Bytes Transfer::bytes_done() const { return job_->bytes_done(); }

Bytes Transfer::bytes_total() const { return job_->bytes_total(); }

}  // namespace sidestep
