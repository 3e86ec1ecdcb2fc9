#include "transfer/movement.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"

namespace sidestep::transfer {
namespace {

// For what is about to end, or to say so, anyway, behind a deadline.
constexpr std::chrono::milliseconds grace(30);

// Whether a time limit, none if it is 0, has passed. Compared in milliseconds: the longest limits have no
// nanoseconds.
bool passed(std::chrono::milliseconds limit, std::chrono::steady_clock::duration spent) {
    return limit.count() > 0 && std::chrono::floor<std::chrono::milliseconds>(spent) >= limit;
}

}  // namespace

Movement::Movement(const Machine& machine, const CopyOptions& options, void* stream, Names names)
    : machine_(machine), options_(options), stream_(stream), names_(std::move(names)) {
    on_stream_ = stream != nullptr;
}

base::BlockingCalls* Movement::aside() const {
    const bool wanted = asks_files_or_others_ && (options_.deadline.count() > 0 || options_.sync_file);
    return wanted ? &machine_.calls : nullptr;
}

void Movement::open(base::BlockingCall::Work prepare, bool may_block) {
    state_ = State::opening;
    const bool soon = options_.deadline.count() > 0 && options_.deadline < wait_for_file;
    call_.make(aside(), std::move(prepare), soon ? options_.deadline : wait_for_file);
    advance(may_block);
}

void Movement::begin_moving(const Result<void>& prepared, bool may_block) {
    if (!prepared) {
        fail(prepared.error());
        end();
        return;
    }
    if (state_ == State::opening) state_ = State::moving;
    last_move_ = Clock::now();  // neither opening files nor pinning staging memory is a stall
    advance(may_block);
    if (asks_files_or_others_ && needs_driving()) progress_entry_ = machine_.progress_list.enter(*this);
}

bool Movement::step(bool may_block) {
    std::lock_guard lock(mutex_);
    return advance(may_block);
}

bool Movement::try_step(bool may_block) {
    std::unique_lock lock(mutex_, std::try_to_lock);
    return lock.owns_lock() && advance(may_block);
}

void Movement::assist() {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock() || state_ != State::moving) return;
    assisted_.store(true, std::memory_order_relaxed);
    if (go_on_assisting()) last_move_ = Clock::now();
}

bool Movement::advance(bool may_block) {
    if (state_ == State::ended && drained()) return false;
    if (state_ < State::draining) watch(Clock::now());
    if (state_ == State::opening) {
        const auto prepared = call_.take();
        if (prepared) begin_moving(*prepared, may_block);
        return prepared.has_value();
    }
    bool moved = false;
    if (state_ == State::gated) come_to_gate();
    if (state_ == State::moving || state_ == State::verifying) moved = go_on(may_block);
    if (state_ == State::committing) moved |= commit(may_block);
    if (state_ >= State::draining && !drained()) moved |= drain(may_block);
    if (moved) last_move_ = Clock::now();
    return moved || expects_more_soon();
}

// What held the stream up before is no stall.
void Movement::come_to_gate() {
    const auto reached = place_.reached();
    if (!reached) return fail(reached.error());
    if (!*reached) return;
    if (auto before = place_.failure_before()) return fail(std::move(*before));
    state_ = State::moving;
    last_move_ = Clock::now();
}

void Movement::watch(Clock::time_point now) {
    const auto told = [this](std::string message, std::string hint) {
        return Error{
            ErrorCode::timed_out,
            fmt::format("{} with {} of {} bytes {}", message, bytes_done(), bytes_total(), names_.done),
            names_.where, std::move(hint)};
    };
    // A target that is being made final will be there.
    if (cancelled() && state_ != State::committing)
        return fail({ErrorCode::cancelled, fmt::format("{} was cancelled", names_.what), names_.where, {}});
    // Who opens published memory keeps the deadline itself, and says more.
    const auto asking =
        state_ == State::opening && options_.deadline.count() > 0 ? grace : std::chrono::milliseconds(0);
    if (passed(options_.deadline + asking, now - started_)) {
        late_ = true;
        return fail(told(fmt::format("the deadline of {} ms passed", options_.deadline.count()),
                         "raise the deadline"));
    }
    // Until the stream comes to the gate nothing moves, and a device may take any time to flush what it has.
    const bool waits = state_ == State::gated || state_ == State::committing;
    if (!waits && may_stall() && passed(options_.stall_limit, now - last_move_))
        fail(told(fmt::format("nothing moved for {} ms,", options_.stall_limit.count()),
                  "a device or file system hangs: see the kernel's log"));
}

bool Movement::commit(bool may_block) {
    if (!sealing_) {
        if (writes_files_ && !may_block && aside() == nullptr) return false;
        sealing_ = Clock::now();
        call_.make(
            writes_files_ ? aside() : nullptr, [this] { return make_final(); }, std::chrono::nanoseconds(0));
    }
    const auto made_final = call_.take();
    if (!made_final) return false;
    if (writes_files_) receipt_.seconds += std::chrono::duration<double>(Clock::now() - *sealing_).count();
    if (!*made_final)
        fail(made_final->error());
    else
        end();
    return true;
}

void Movement::all_equal() {
    receipt_.verified = true;
    receipt_.verify_seconds = seconds_since_start() - receipt_.seconds;  // its making ready too
    state_ = State::committing;
}

void Movement::fail(Error error) {
    if (state_ >= State::draining) return;
    failure_ = std::move(error);
    place_.fail(*failure_);
    given_up_.store(true, std::memory_order_relaxed);
    if (!calling()) stop();
    state_ = State::draining;
    drain_since_ = Clock::now();
}

// How long one that failed waits for its pieces in flight before it says so.
std::chrono::milliseconds Movement::patience() const {
    return late_ ? std::min(machine_.drain_limit, grace) : machine_.drain_limit;
}

bool Movement::drain(bool may_block) {
    const bool calls = calling();
    bool moved = false;
    if (!calls) {
        stop();
        moved = settle(may_block);
    }
    const bool quiet = !calls && idle();
    const auto spent = Clock::now() - drain_since_;
    touches_buffers_.store(!quiet && !calls && spent <= machine_.drain_limit, std::memory_order_release);
    if (state_ == State::draining) {
        if (!quiet && !calls && spent <= patience()) return moved;
        if (calls)
            failure_->message += "; the file system has not answered, and may still do what it was asked";
        else if (!quiet)
            failure_->message += "; pieces are still in flight, so the buffers may still be written to";
    } else if (!quiet || waits_for_calls() || holds_stream()) {
        return moved;
    }
    end();
    return true;
}

// Publishes the result, and lets go of everything if nothing is in flight.
void Movement::end() {
    state_ = State::ended;
    if (!finished()) {
        ended_at_ = Clock::now();
        if (failure_)
            result_.emplace(*failure_);
        else
            result_.emplace(receipt());
    }
    if (!calling() && idle() && !waits_for_calls() && !holds_stream()) {
        touches_buffers_.store(false, std::memory_order_release);
        release();
        progress_entry_.leave();
        drained_.store(true, std::memory_order_release);
    }
    finish();
}

void Movement::close(std::shared_ptr<void> held) {
    if (base::BlockingCalls* calls = aside())
        calls->make([held = std::move(held)]() mutable { held.reset(); }, wait_for_file);
}

void Movement::hand_over(bool seen) {
    if (stream_ == nullptr) return;
    std::lock_guard lock(mutex_);
    if (failure_ && (seen || cancelled())) place_.tell();
    handed_over_ = true;
    advance(false);
}

// Whether the work behind a movement that failed is still kept from running.
bool Movement::holds_stream() {
    if (!place_.is_closed()) return false;
    const bool in_time = Clock::now() - ended_at_ <= machine_.drain_limit;
    if (!handed_over_ && !cancelled() && in_time) return true;
    if (!handed_over_ && !cancelled())
        base::log(base::LogLevel::error,
                  fmt::format("nobody asked what became of {}, and what is behind it on its stream goes on "
                              "without its bytes: {}",
                              names_.what, failure_->message));
    place_.open();
    return false;
}

double Movement::seconds_since_start() const {
    return std::chrono::duration<double>(Clock::now() - started_).count();
}

}  // namespace sidestep::transfer
