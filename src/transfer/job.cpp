#include "transfer/job.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/try.hpp"

namespace sidestep::transfer {
namespace {

// Files are mostly opened and closed in less: whoever submits, or drives, waits so long.
constexpr auto wait_for_file = std::chrono::milliseconds(10);

// A wish that the route could not meet is said in the receipt, not only among the refused paths.
std::string unmet_preference(const CopyOptions& options, const Route& route) {
    if (options.prefer == Prefer::automatic) return {};
    const char* wanted = options.prefer == Prefer::kernel ? "kernel" : "copy engine";
    for (const auto& lane : route.lanes)
        for (const Hop& hop : lane.hops)
            if (hop.engine.find(wanted) != std::string::npos) return {};
    return fmt::format("a {} was preferred, but none can carry these bytes", wanted);
}

}  // namespace

Job::Job(const Machine& machine, const CopyOptions& options, void* stream)
    : machine_(machine), options_(options), stream_(stream) {
    on_stream_ = stream != nullptr;
}

Job::~Job() {
    progress_entry_.leave();
}

void Job::begin(const Buffer& from, const Buffer& to) {
    std::lock_guard lock(mutex_);
    target_ = to.to_string();
    // On a stream the copy's place is where it was submitted.
    if (stream_ != nullptr || (!from.place().is_file() && !to.place().is_file()))
        return opened(prepare(from, to));
    state_ = State::opening;
    const auto wait =
        options_.deadline.count() > 0 ? std::min(options_.deadline, wait_for_file) : wait_for_file;
    call([this, from, to] { return prepare(from, to); }, wait);
    advance(false);
}

// Makes a call that may block, aside; outcome() has what came of it. Nothing else is called meanwhile.
void Job::call(std::function<Result<void>()> what, std::chrono::nanoseconds wait) {
    if (!calls_aside()) return void(outcome_.emplace(what()));
    calling_.store(true, std::memory_order_relaxed);
    machine_.calls.make(
        [this, what = std::move(what)] {
            outcome_.emplace(what());
            calling_.store(false, std::memory_order_release);
        },
        wait);
}

// To hand a call over takes 0.05 ms, as long as opening a file: a copy that may take any time makes it itself.
bool Job::calls_aside() const {
    return options_.deadline.count() > 0 || options_.sync_file;
}

std::optional<Result<void>> Job::outcome() {
    if (calling_.load(std::memory_order_acquire)) return std::nullopt;
    return std::exchange(outcome_, std::nullopt);
}

void Job::opened(const Result<void>& prepared) {
    if (!prepared) {
        fail(prepared.error());
        end();
        return;
    }
    if (state_ == State::opening) state_ = State::moving;
    last_move_ = Clock::now();  // neither opening files nor pinning staging memory is a stall
    advance(false);
    if (needs_driving() && touches_file(ends_)) progress_entry_ = machine_.progress_list.enter(*this);
}

Result<void> Job::prepare(const Buffer& from, const Buffer& to) {
    if (stream_ != nullptr) SIDESTEP_CHECK(place_.join(machine_.streams, stream_));
    SIDESTEP_TRY(ends_, resolve_ends(machine_.topology, machine_.registry, from, to, machine_.shared,
                                     options_.deadline));
    total_.store(ends_.bytes, std::memory_order_relaxed);
    const route::Request asked = request();
    SIDESTEP_TRY(plan_,
                 machine_.plans.get(asked, objections(machine_.registry, ends_.from, ends_.to, options_)));
    if (auto note = unmet_preference(options_, plan_->route); !note.empty())
        receipt_.notes.push_back(std::move(note));
    // Both ends are attached, and errors found, before a byte moves.
    for (const auto& hops : plan_->lanes) {
        SIDESTEP_CHECK(attach(hops.front().backend, backend::Access::read));
        SIDESTEP_CHECK(attach(hops.back().backend, backend::Access::write));
    }
    cursor_ = Cursor(ends_.bytes, phase_of(ends_.from, ends_.to));
    count_traffic();
    if (ends_.bytes > 0) SIDESTEP_CHECK(add_lanes());
    if (options_.verify && ends_.bytes > 0) SIDESTEP_CHECK(add_verifier());
    // The gate comes last: behind a closed one the CUDA driver blocks whoever frees memory (seen on H200,
    // driver 580.159.04), and does not say which other calls it may block.
    if (!needs_gate()) return {};
    state_ = State::gated;
    return place_.hold(machine_.streams, machine_.registry, stream_);
}

route::Request Job::request() const {
    route::Request asked{ends_.from_end,  ends_.to_end,         ends_.bytes,    options_.require,
                         options_.prefer, options_.max_staging, options_.lanes, machine_.pool.relay_limits()};
    // On a caller's stream one lane can be enqueued as it is; several would hold the stream at a gate.
    if (stream_ != nullptr && asked.lanes == 0) asked.lanes = 1;
    return asked;
}

// The registration of one end with one backend, shared by the lanes that use it.
Result<backend::Registration*> Job::attach(backend::Backend* backend, backend::Access access) {
    for (const Attached& attached : attached_)
        if (attached.backend == backend && attached.access == access) return attached.registration.get();
    backend::AttachOptions options;
    options.access = access;
    options.page_cache = options_.page_cache;
    options.sync_file = options_.sync_file;
    options.strict = options_.require == Require::direct;
    options.expected_size = ends_.bytes;
    const Buffer& buffer = access == backend::Access::read ? ends_.from : ends_.to;
    options.identity = access == backend::Access::read ? ends_.from_identity : ends_.to_identity;
    options.version = access == backend::Access::read ? ends_.from_version : 0;
    SIDESTEP_TRY(auto registration, machine_.registrations.get(*backend, buffer, options));
    attached_.push_back({backend, access, std::move(registration)});
    return attached_.back().registration.get();
}

// A copy of one hop goes onto the caller's stream itself. Any other holds the stream at a gate.
bool Job::needs_gate() const {
    const bool one_hop = plan_->lanes.size() == 1 && plan_->lanes[0].size() == 1;
    return stream_ != nullptr && !(one_hop && plan_->lanes[0][0].streams);
}

bool Job::step(bool may_block) {
    std::lock_guard lock(mutex_);
    return advance(may_block);
}

bool Job::try_step(bool may_block) {
    std::unique_lock lock(mutex_, std::try_to_lock);
    return lock.owns_lock() && advance(may_block);
}

void Job::assist() {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return;
    if (state_ != State::moving) return;
    assisted_.store(true, std::memory_order_relaxed);
    if (move()) last_move_ = Clock::now();
}

bool Job::advance(bool may_block) {
    if (state_ == State::ended && drained_.load(std::memory_order_relaxed)) return false;
    if (state_ != State::ended && state_ != State::draining) watch(Clock::now());
    bool moved = false;
    if (state_ == State::opening) {
        if (const auto prepared = outcome()) opened(*prepared);
        return state_ != State::opening;
    }
    if (state_ == State::gated) {
        auto reached = place_.reached();
        if (!reached)
            fail(reached.error());
        else if (*reached)
            come_to_gate();
    }
    if (state_ == State::moving) moved |= move();
    if (state_ == State::verifying) moved |= verify();
    if (state_ == State::committing && (may_block || calls_aside() || !ends_.to.place().is_file()))
        moved |= commit();
    if (state_ == State::draining || state_ == State::ended) moved |= drain();
    if (moved) last_move_ = Clock::now();
    return moved;
}

// What held the stream up before is no stall.
void Job::come_to_gate() {
    if (auto before = place_.failure_before()) return fail(std::move(*before));
    state_ = State::moving;
    last_move_ = Clock::now();
}

bool Job::move() {
    bool moved = false;
    bool all_idle = true;
    Bytes arrived = 0;
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
        if (!lanes_[i]) continue;
        auto stepped = lanes_[i]->step(cursor_);
        if (stepped)
            moved |= *stepped;
        else
            lose(i, stepped.error());
        all_idle &= lanes_[i]->idle();
        arrived += lanes_[i]->arrived();
    }
    done_.store(arrived, std::memory_order_relaxed);
    if (state_ == State::moving && all_idle && cursor_.empty()) {
        all_arrived();
        moved = true;
    }
    return moved;
}

void Job::all_arrived() {
    if (auto before = place_.failure_before()) return fail(std::move(*before));
    receipt_.bytes = ends_.bytes;
    receipt_.seconds = seconds_since_start() - receipt_.verify_seconds;
    for (const auto& lane : lanes_) receipt_.lane_bytes.push_back(lane ? lane->arrived() : 0);
    // Before verification reads them all once more.
    for (const Attached& attached : attached_) receipt_.storage += attached.registration->storage_bytes();
    if (lanes_.empty()) receipt_.lane_bytes.assign(plan_->lanes.size(), 0);
    if (!verifier_) {
        place_.pass();
        receipt_.verified = options_.verify;  // nothing to compare in no bytes
    }
    state_ = verifier_ ? State::verifying : State::committing;
}

bool Job::verify() {
    auto stepped = verifier_->step();
    if (!stepped) {
        fail(stepped.error());
        return true;
    }
    if (!verifier_->finished()) return *stepped;
    place_.pass();
    receipt_.verified = true;
    receipt_.verify_seconds = seconds_since_start() - receipt_.seconds;  // its making ready too
    state_ = State::committing;
    return true;
}

bool Job::commit() {
    if (ends_.to.place().is_file() && !sealing_) {
        sealing_ = Clock::now();
        call([this] { return make_final(); }, std::chrono::nanoseconds(0));
    }
    const auto made_final = sealing_ ? outcome() : make_final();
    if (!made_final) return false;
    if (!*made_final) {
        fail(made_final->error());
        return true;
    }
    for (const Attached& attached : attached_)
        for (std::string& note : attached.registration->notes()) receipt_.notes.push_back(std::move(note));
    if (sealing_) receipt_.seconds += std::chrono::duration<double>(Clock::now() - *sealing_).count();
    end();
    return true;
}

Result<void> Job::make_final() {
    for (const Attached& attached : attached_)
        if (attached.access == backend::Access::write) SIDESTEP_CHECK(attached.registration->commit());
    return {};
}

bool Job::drain() {
    bool moved = false;
    const bool calling = calling_.load(std::memory_order_acquire);
    if (!calling) {
        stop_lanes();
        for (auto& lane : lanes_)
            if (auto stepped = lane ? lane->step(cursor_) : Result<bool>(false); stepped) moved |= *stepped;
        if (verifier_)
            if (auto stepped = verifier_->step(); stepped) moved |= *stepped;
    }
    const bool quiet = !calling && idle();
    const bool in_time = Clock::now() - drain_since_ <= machine_.drain_limit;
    touches_buffers_.store(!quiet && !calling && in_time, std::memory_order_release);
    if (state_ == State::draining) {
        if (!quiet && !calling && Clock::now() - drain_since_ <= patience(machine_.drain_limit)) return moved;
        if (calling)
            failure_->message += "; the file system has not answered, and may still do what it was asked";
        else if (!quiet)
            failure_->message += "; pieces are still in flight, so the buffers may still be written to";
    } else if (holds_stream() || !quiet) {
        return moved;
    }
    end();
    return true;
}

void Job::watch(Clock::time_point now) {
    // A target that is being made final will be there.
    if (cancelled() && state_ != State::committing)
        return fail({ErrorCode::cancelled, "the copy was cancelled", target_, {}});
    if (passed(options_.deadline, now - started_)) return fail(late(options_.deadline, "copied", target_));
    // Until the stream comes to the copy. Where the copy is on the stream itself, only its end tells.
    // A device may take any time to flush what it has.
    const bool waits = state_ == State::gated || state_ == State::committing ||
                       (state_ == State::moving && stream_ != nullptr && !place_.has_gate());
    if (!waits && passed(options_.stall_limit, now - last_move_))
        fail(stalled(options_.stall_limit, "copied", target_));
}

// A lane cannot go on: the others take over what it had not brought to its end. The copy fails with the last.
void Job::lose(std::size_t lane, Error error) {
    if (!receipt_.lane_failures[lane].empty()) return;
    receipt_.lane_failures[lane] = error.message;
    const auto& failures = receipt_.lane_failures;
    if (std::none_of(failures.begin(), failures.end(), [](const std::string& text) { return text.empty(); }))
        return fail(std::move(error));
    receipt_.notes.push_back(
        fmt::format("lane {} failed and the others took over: {}", lane + 1, error.to_string()));
}

void Job::fail(Error error) {
    if (state_ == State::draining || state_ == State::ended) return;
    failure_ = std::move(error);
    place_.fail(*failure_);
    if (!calling_.load(std::memory_order_acquire)) stop_lanes();
    state_ = State::draining;
    drain_since_ = Clock::now();
}

void Job::stop_lanes() {
    for (auto& lane : lanes_)
        if (lane) lane->stop();
    if (verifier_) verifier_->stop();
}

// Publishes the result, and lets go of everything if nothing is in flight.
void Job::end() {
    state_ = State::ended;
    const bool calling = calling_.load(std::memory_order_acquire);
    if (!calling) host_link_ = {};
    if (!finished()) {
        ended_at_ = Clock::now();
        if (!calling) receipt_.route = plan_ ? std::shared_ptr<const Route>(plan_, &plan_->route) : nullptr;
        if (failure_)
            result_.emplace(*failure_);
        else
            result_.emplace(std::move(receipt_));
    }
    if (!calling && idle() && !holds_stream()) {
        lanes_.clear();
        close_ends();
        progress_entry_.leave();
        drained_.store(true, std::memory_order_release);
    }
    finish();
}

// Closing a file may block as well.
void Job::close_ends() {
    struct Open {
        std::vector<Attached> attached;
        std::unique_ptr<Verifier> verifier;
    };
    auto open = std::make_shared<Open>(Open{std::exchange(attached_, {}), std::move(verifier_)});
    if (!touches_file(ends_) || !calls_aside()) return;
    machine_.calls.make([open = std::move(open)]() mutable { open.reset(); }, wait_for_file);
}

void Job::hand_over(bool seen) {
    if (stream_ == nullptr) return;
    std::lock_guard lock(mutex_);
    if (failure_ && (seen || cancelled())) place_.tell();
    handed_over_ = true;
    advance(false);
}

// Whether the work behind a copy that failed is still kept from running.
bool Job::holds_stream() {
    if (!place_.is_closed()) return false;
    const bool in_time = Clock::now() - ended_at_ <= machine_.drain_limit;
    if (!handed_over_ && !cancelled() && in_time) return true;
    if (!handed_over_ && !cancelled())
        base::log(
            base::LogLevel::error,
            fmt::format("nobody asked what became of a copy, and what is behind it on its stream goes on "
                        "without its bytes: {}",
                        failure_->message));
    place_.open();
    return false;
}

bool Job::idle() const {
    return std::all_of(lanes_.begin(), lanes_.end(),
                       [](const auto& lane) { return !lane || lane->idle(); }) &&
           (!verifier_ || verifier_->idle());
}

double Job::seconds_since_start() const {
    return std::chrono::duration<double>(Clock::now() - started_).count();
}

}  // namespace sidestep::transfer
