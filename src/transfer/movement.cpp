#include "transfer/movement.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"

namespace sidestep::transfer {
namespace {

// For what is about to end, or to say so, anyway, behind a deadline.
constexpr std::chrono::milliseconds grace(30);

// Later work on a caller's stream waits at most this long until a thread sees that the stream has come here.
constexpr std::chrono::milliseconds look_at_stream(1);

// Of a receipt: a load may have thousands of files.
constexpr std::size_t max_notes = 16;

// Whether a time limit, none if it is 0, has passed. Compared in milliseconds: the longest limits have no nanoseconds.
bool passed(std::chrono::milliseconds limit, std::chrono::steady_clock::duration spent) {
    return limit.count() > 0 && std::chrono::floor<std::chrono::milliseconds>(spent) >= limit;
}

}  // namespace

Movement::Movement(Machine& machine, const CopyOptions& options, void* stream, Names names)
    : machine_(machine), options_(options), stream_(stream), names_(names) {
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

void Movement::open_again(base::BlockingCall::Work prepare) {
    state_ = State::opening;
    call_.make(&machine_.calls, std::move(prepare), std::chrono::nanoseconds(0));
}

std::vector<Objection> Movement::against_way(const Ends& ends, Bytes arrived) {
    on_detour_ = true;
    auto against = objections(machine_.registry, ends.from, ends.to, options_);
    if (!against.empty())
        note(fmt::format("{}: {} of {} had gone past this machine, and the rest went another way",
                         against.front().reason, format_bytes(arrived), format_bytes(ends.bytes)));
    return against;
}

void Movement::begin_moving(const Result<void>& prepared, bool may_block) {
    if (!prepared) {
        fail(prepared.error());
        end();
        return;
    }
    if (state_ == State::opening) state_ = State::moving;
    last_move_ = Clock::now();  // neither opening files nor pinning staging memory is a stall
    advance(may_block, last_move_);
}

bool Movement::step(bool may_block) {
    return advance_locked(may_block, std::unique_lock(mutex_));
}

bool Movement::try_step(bool may_block) {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    const bool moved = advance_locked(may_block, std::move(lock));
    // What is left may be for one who may block.
    if (moved && !may_block) lookout_->ring();
    return moved;
}

// A thread that came meanwhile and found the mutex taken has left its work to the holder.
bool Movement::advance_locked(bool may_block, std::unique_lock<std::mutex> lock) {
    news_.store(false);
    const auto now = Clock::now();
    // What has ended since the last step has not stalled, however late somebody comes to see it.
    if (wants_step_.exchange(false, std::memory_order_relaxed)) last_move_ = now;
    next_wake_ = Clock::time_point::max();
    const bool moved = advance(may_block, now);
    set_wake();
    wake_by_.store(next_wake_, std::memory_order_relaxed);
    lock.unlock();
    return news_.load() || moved;
}

void Movement::ended() {
    news_.store(true);
    wants_step_.store(true, std::memory_order_relaxed);
    if (!lookout_->drives_beside()) return lookout_->ring();
    lookout_->look();
    while (news_.load()) {
        std::unique_lock lock(mutex_, std::try_to_lock);
        if (!lock.owns_lock()) return;
        news_.store(false);
        if (state_ == State::moving && go_on_beside()) {
            last_move_ = Clock::now();
            (Lookout::looks_here() ? moved_in_look_ : driven_beside_).store(true, std::memory_order_relaxed);
        }
        // The driver that was woken for it may have found the mutex taken by this thread.
        const bool left = state_ != State::moving || cancelled() || is_abandoned_ || needs_driver();
        wants_step_.store(left, std::memory_order_relaxed);
        lock.unlock();
        left ? lookout_->ring() : lookout_->begun_beside();
    }
}

void Movement::abandoned(Error error) {
    {
        const std::lock_guard lock(abandoning_);
        if (!abandoned_) abandoned_ = std::move(error);
    }
    is_abandoned_.store(true);
    news_.store(true);
    lookout_->ring();
}

void Movement::give_up_abandoned() {
    if (!is_abandoned_.load()) return;
    const std::lock_guard lock(abandoning_);
    fail(*abandoned_, true);
}

void Movement::cancel() {
    Activity::cancel();
    lookout_->ring();
}

bool Movement::advance(bool may_block, Clock::time_point now) {
    if (state_ == State::ended && drained()) return false;
    give_up_abandoned();
    if (state_ < State::draining) watch(now);
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
    if (moved && state_ < State::draining) last_move_ = may_block ? Clock::now() : now;  // blocking took time
    return moved;
}

// The next time limit.
void Movement::set_wake() {
    if (state_ == State::ended && drained()) return;
    const auto now = Clock::now();
    const auto after = [&](Clock::time_point from, std::chrono::milliseconds limit) {
        if (limit.count() == 0) return;
        const auto left = limit - std::chrono::floor<std::chrono::milliseconds>(now - from);
        wake_no_later(
            now + std::clamp<std::chrono::milliseconds>(left, std::chrono::milliseconds(0), longest_sleep));
    };
    wake_no_later(now + longest_sleep);
    if (on_stream_) wake_no_later(now + look_at_stream);
    if (state_ < State::draining) {
        after(started_, options_.deadline + asking());
        if (stalls()) after(last_move_, options_.stall_limit);
        return;
    }
    if (state_ == State::draining) after(drain_since_, patience());
    if (touches_buffers()) after(drain_since_, machine_.drain_limit);
}

// Who opens published memory keeps the deadline itself, and says more.
std::chrono::milliseconds Movement::asking() const {
    return state_ == State::opening && options_.deadline.count() > 0 ? grace : std::chrono::milliseconds(0);
}

// Until the stream comes to the gate nothing moves, and a device may take any time to flush what it has.
bool Movement::stalls() const {
    return state_ != State::gated && state_ != State::committing && may_stall();
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
            where(), std::move(hint)};
    };
    // A target that is being made final will be there.
    if (cancelled() && state_ != State::committing)
        return fail({ErrorCode::cancelled, fmt::format("{} was cancelled", names_.what), where()});
    if (passed(options_.deadline + asking(), now - started_))
        return fail(told(fmt::format("the deadline of {} ms passed", options_.deadline.count()),
                         "raise the deadline"),
                    true);
    if (stalls() && passed(options_.stall_limit, now - last_move_))
        fail(told(fmt::format("nothing moved for {} ms,", options_.stall_limit.count()),
                  "a device or file system hangs: see the kernel's log"));
}

bool Movement::commit(bool may_block) {
    if (!sealing_) {
        if (writes_files_ && !may_block && aside() == nullptr) return false;
        sealing_ = writes_files_ ? seconds_since_start() : 0;
        call_.make(
            writes_files_ ? aside() : nullptr, [this] { return make_final(); }, std::chrono::nanoseconds(0));
    }
    const auto made_final = call_.take();
    if (!made_final) return false;
    if (writes_files_) receipt_.seconds += seconds_since_start() - *sealing_;
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

void Movement::fail(Error error, bool hurried) {
    hurried_ |= hurried;
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
    return hurried_ ? std::min(machine_.drain_limit, grace) : machine_.drain_limit;
}

bool Movement::drain(bool may_block) {
    const bool calls = calling();
    bool moved = false;
    if (!calls) {
        stop();
        moved = go_on(may_block);
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

// Publishes the result, and releases everything if nothing is in flight.
void Movement::end() {
    state_ = State::ended;
    if (!finished()) {
        if (on_stream_) ended_at_ = Clock::now();
        if (failure_)
            result_.emplace(*failure_);
        else
            result_.emplace(receipt());
        if (base::logs(base::LogLevel::debug))
            base::log(base::LogLevel::debug, *result_ ? (*result_)->summary() : result_->error().to_string());
    }
    if (!calling() && idle() && !waits_for_calls() && !holds_stream()) {
        touches_buffers_.store(false, std::memory_order_release);
        release();
        held_.reset();
        drained_.store(true, std::memory_order_release);
    }
    finish();
    if (needs_driving_.load(std::memory_order_relaxed)) lookout_->ring();
}

void Movement::note(std::string text) {
    std::vector<std::string>& notes = receipt_.notes;
    if (notes.size() > max_notes || std::ranges::find(notes, text) != notes.end()) return;
    if (notes.size() == max_notes) text = "there are more notes, which are left out";
    notes.push_back(std::move(text));
}

void Movement::let_go(std::shared_ptr<void> held) {
    if (base::BlockingCalls* calls = aside())
        calls->make([held = std::move(held)]() mutable { held.reset(); }, wait_for_file);
}

void Movement::hand_over(bool seen) {
    if (stream_ == nullptr) return;
    std::lock_guard lock(mutex_);
    if (failure_ && (seen || cancelled())) place_.tell();
    handed_over_ = true;
    advance(false);
    lookout_->ring();
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

}  // namespace sidestep::transfer
