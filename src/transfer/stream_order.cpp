#include "transfer/stream_order.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace sidestep::transfer {
namespace {

Error behind(Error first) {
    first.message = fmt::format("a copy before it on the stream failed, so that these bytes may be old: {}",
                                first.message);
    return first;
}

}  // namespace

void GateRecord::end(std::optional<Error> error) {
    const std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true)) return;
    error_ = std::move(error);
    before_.reset();
}

void GateRecord::end_as_before() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
}

std::optional<Error> GateRecord::failure() const {
    const std::lock_guard lock(mutex_);
    return before_ ? before_->failure() : error_;
}

void GateRecord::tell() {
    const std::lock_guard lock(mutex_);
    told_ = true;
    if (before_) before_->tell();
}

bool GateRecord::over() const {
    const std::lock_guard lock(mutex_);
    return ended_ && (before_ ? before_->over() : !error_ || told_);
}

std::shared_ptr<GateRecord> StreamOrder::last(void* stream) {
    if (!any_.load(std::memory_order_acquire)) return nullptr;
    const auto key = key_of(stream);
    const std::lock_guard lock(mutex_);
    forget_what_is_over();
    const auto found = key ? last_.find(*key) : last_.end();
    return found != last_.end() ? found->second : nullptr;
}

std::shared_ptr<GateRecord> StreamOrder::enter(void* stream, std::shared_ptr<GateRecord> before) {
    auto record = std::make_shared<GateRecord>(std::move(before));
    const auto key = key_of(stream);
    if (!key) return record;
    const std::lock_guard lock(mutex_);
    forget_what_is_over();
    if (last_.size() >= max_kept) {
        const auto failed =
            std::ranges::find_if(last_, [](const auto& one) { return one.second->failure().has_value(); });
        if (failed != last_.end()) last_.erase(failed);
    }
    last_[*key] = record;
    any_.store(true, std::memory_order_release);
    return record;
}

std::optional<std::uint64_t> StreamOrder::key_of(void* stream) const {
    for (backend::Streams* streams : registry_.with(&backend::Backend::streams))
        if (const auto key = streams->stream_key(stream)) return key;
    return std::nullopt;
}

void StreamOrder::forget_what_is_over() {
    std::erase_if(last_, [](const auto& one) { return one.second->over(); });
    any_.store(!last_.empty(), std::memory_order_release);
}

Result<void> StreamPlace::join(StreamOrder& order, void* stream) {
    before_ = order.last(stream);
    if (const auto failure = failure_before()) return *failure;
    return {};
}

Result<void> StreamPlace::hold(StreamOrder& order, const backend::Registry& registry, void* stream) {
    Error last{ErrorCode::unsupported, "no usable backend knows streams", "stream"};
    for (backend::Streams* streams : registry.with(&backend::Backend::streams)) {
        auto gate = streams->gate(stream);
        if (!gate) {
            last = gate.error();
            continue;
        }
        gate_ = std::move(*gate);
        own_ = order.enter(stream, before_);
        return {};
    }
    return last;
}

std::optional<Error> StreamPlace::failure_before() {
    const auto failure = before_ ? before_->failure() : std::nullopt;
    if (!failure) return std::nullopt;
    fails_with_before_ = true;
    return behind(*failure);
}

void StreamPlace::pass() {
    if (own_) own_->end();
    open();
}

void StreamPlace::fail(const Error& error) {
    if (!is_closed()) return;
    if (!fails_with_before_) return own_->end(error);
    own_->end_as_before();
    open();
}

void StreamPlace::open() {
    if (is_closed()) gate_->open();
    open_ = true;
}

void StreamPlace::tell() {
    if (own_) own_->tell();
    if (!own_ && fails_with_before_) before_->tell();
}

}  // namespace sidestep::transfer
