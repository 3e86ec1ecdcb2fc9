// The order of a caller's stream as copies keep it: the gates that hold it, and what comes behind them.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "backend/registry.hpp"

namespace sidestep::transfer {

// What becomes of a copy that holds a stream at a gate, for the copies behind it. Any thread may call.
class GateRecord {
public:
    // `before`: at the gate before on the stream; may be null.
    explicit GateRecord(std::shared_ptr<GateRecord> before) : before_(std::move(before)) {}

    // The bytes are there, or will not be for this reason. What is told first stays.
    void end(std::optional<Error> error = {}) {
        const std::lock_guard lock(mutex_);
        if (std::exchange(ended_, true)) return;
        error_ = std::move(error);
        // Of two that came at once the one in front may be the later one to end.
        if (error_ || (before_ && before_->over())) before_.reset();
    }
    // It fails with the copy before.
    void end_as_before() {
        const std::lock_guard lock(mutex_);
        ended_ = true;
    }
    // Its own, or of the copy before, with which it will fail.
    std::optional<Error> failure() const {
        const std::lock_guard lock(mutex_);
        return before_ ? before_->failure() : error_;
    }
    // The caller knows of that failure.
    void tell() {
        const std::lock_guard lock(mutex_);
        told_ = true;
        if (before_) before_->tell();
    }
    // It concerns only those that came behind it already.
    bool over() const {
        const std::lock_guard lock(mutex_);
        return ended_ && (before_ ? before_->over() : !error_ || told_);
    }

private:
    mutable std::mutex mutex_;  // guards what follows; before that of the record before
    bool ended_ = false;
    std::optional<Error> error_;
    bool told_ = false;
    std::shared_ptr<GateRecord> before_;  // until it passes, or fails by itself
};

// The last gate of each stream, for as long as it waits, or has failed and no caller has seen the failure.
// Any thread may call.
class StreamOrder {
public:
    explicit StreamOrder(const backend::Registry& registry) : registry_(registry) {}

    // What a copy that is put on the stream now comes behind, or null.
    std::shared_ptr<GateRecord> last(void* stream) {
        if (!any_.load(std::memory_order_acquire)) return nullptr;
        const auto key = key_of(stream);
        const std::lock_guard lock(mutex_);
        forget_what_is_over();
        const auto found = key ? last_.find(*key) : last_.end();
        return found != last_.end() ? found->second : nullptr;
    }
    // The stream will be held. `before` is what last() answered; another thread may have come in between, whose record it
    // becomes then.
    std::shared_ptr<GateRecord> enter(void* stream, std::shared_ptr<GateRecord>& before) {
        const auto key = key_of(stream);
        const std::lock_guard lock(mutex_);
        forget_what_is_over();
        if (const auto found = key ? last_.find(*key) : last_.end(); found != last_.end())
            before = found->second;
        auto record = std::make_shared<GateRecord>(before);
        if (!key) return record;
        if (last_.size() >= max_kept) {
            const auto failed = std::ranges::find_if(
                last_, [](const auto& one) { return one.second->failure().has_value(); });
            if (failed != last_.end()) last_.erase(failed);
        }
        last_[*key] = record;
        any_.store(true, std::memory_order_release);
        return record;
    }

private:
    // Streams without users that still hold failures which no caller has seen.
    static constexpr std::size_t max_kept = 1024;

    std::optional<std::uint64_t> key_of(void* stream) const {
        for (backend::Streams* streams : registry_.with(&backend::Backend::streams))
            if (const auto key = streams->stream_key(stream)) return key;
        return std::nullopt;
    }
    // With the mutex held.
    void forget_what_is_over() {
        std::erase_if(last_, [](const auto& one) { return one.second->over(); });
        any_.store(!last_.empty(), std::memory_order_release);
    }

    const backend::Registry& registry_;
    std::atomic<bool> any_{false};
    std::mutex mutex_;  // guards what follows
    std::map<std::uint64_t, std::shared_ptr<GateRecord>> last_;
};

// The place of one copy, or batch, on a stream. One thread at a time.
//
// CUDA cannot cancel work that is already on a stream: when the gate opens, it runs, even if the copy has failed. So the gate
// of a failed copy stays closed until the caller has seen the failure, and later copies on the stream fail too.
class StreamPlace {
public:
    // To be called before anything is put on the stream. Fails where a copy before failed and nobody was told.
    Result<void> join(StreamOrder& order, void* stream) {
        before_ = order.last(stream);
        if (const auto failure = failure_before()) return *failure;
        return {};
    }
    // Holds the stream, by the first backend that can.
    Result<void> hold(StreamOrder& order, const backend::Registry& registry, void* stream) {
        Error last{ErrorCode::unsupported, "no usable backend knows streams", "stream"};
        own_ = order.enter(stream, before_);
        for (backend::Streams* streams : registry.with(&backend::Backend::streams)) {
            auto gate = streams->gate(stream);
            if (gate) {
                gate_ = std::move(*gate);
                return {};
            }
            last = gate.error();
        }
        std::exchange(own_, nullptr)->end();
        return last;
    }

    bool has_gate() const { return gate_ != nullptr; }
    bool is_closed() const { return has_gate() && !open_; }
    // Whether the stream has come to the gate.
    Result<bool> reached() { return gate_->ready(); }
    // Why what comes before on the stream is not there; to be asked once the stream has come to the copy, which
    // fails with it then.
    std::optional<Error> failure_before() {
        auto failure = before_ ? before_->failure() : std::nullopt;
        if (!failure) return std::nullopt;
        fails_with_before_ = true;
        failure->message = fmt::format(
            "a copy before it on the stream failed, so that these bytes may be old: {}", failure->message);
        return failure;
    }

    // The bytes are there: opens the gate.
    void pass() {
        if (own_) own_->end();
        open();
    }
    // They are not. The gate stays closed, unless the failure is that of the copy before.
    void fail(const Error& error) {
        if (!is_closed()) return;
        if (!fails_with_before_) return own_->end(error);
        own_->end_as_before();
        open();
    }
    void open() {
        if (is_closed()) gate_->open();
        open_ = true;
    }
    // The caller knows of the failure.
    void tell() {
        if (own_) own_->tell();
        if (!own_ && fails_with_before_) before_->tell();
    }

private:
    std::shared_ptr<GateRecord> before_;
    std::shared_ptr<GateRecord> own_;
    std::unique_ptr<backend::Gate> gate_;
    bool open_ = false;
    bool fails_with_before_ = false;
};

}  // namespace sidestep::transfer
