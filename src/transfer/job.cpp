#include "transfer/job.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::transfer {
namespace {

// A wish that the route could not meet is said in the receipt, not only among the refused paths.
std::string unmet_preference(const CopyOptions& options, const ReadyPlan& plan) {
    if (options.prefer == Prefer::automatic) return {};
    for (const auto& lane : plan.lanes)
        for (const ReadyHop& hop : lane)
            if (hop.meets == options.prefer) return {};
    return fmt::format("a {} was preferred, but none can carry these bytes",
                       options.prefer == Prefer::kernel ? "kernel" : "copy engine");
}

}  // namespace

void Job::begin(const Buffer& from, const Buffer& to) {
    std::lock_guard lock(mutex_);
    target_ = to;
    writes_files_ = to.place().is_file();
    const bool shared = from.place().is_shared() || to.place().is_shared();
    const bool far = !from.place().node().empty() || !to.place().node().empty();
    asks_files_or_others_ = writes_files_ || from.place().is_file() || shared || far;
    // On a stream the copy's place is where it was submitted.
    if (stream_ != nullptr || !asks_files_or_others_) return begin_moving(prepare(from, to), false);
    open([this, from, to] { return prepare(from, to); }, false);
}

Result<void> Job::prepare(const Buffer& from, const Buffer& to) {
    if (stream_ != nullptr) SIDESTEP_CHECK(place_.join(machine_.streams, stream_));
    SIDESTEP_TRY(ends_, resolve_ends(machine_.topology, machine_.registry, from, to, machine_.shared,
                                     options_.deadline));
    total_.store(ends_.bytes, std::memory_order_relaxed);
    const route::Request asked = request();
    SIDESTEP_TRY(plan_,
                 machine_.plans.get(asked, objections(machine_.registry, ends_.from, ends_.to, options_)));
    if (auto note = unmet_preference(options_, *plan_); !note.empty())
        receipt_.notes.push_back(std::move(note));
    SIDESTEP_CHECK(attach_ends());
    count_traffic();
    if (ends_.bytes > 0) SIDESTEP_CHECK(add_lanes());
    if (options_.verify && ends_.bytes > 0) SIDESTEP_CHECK(add_verifier());
    // The gate comes last: behind a closed one the CUDA driver blocks whoever frees memory (seen on H200,
    // driver 580.159.04), and does not say which other calls it may block.
    if (!needs_gate()) return {};
    state_ = State::gated;
    return place_.hold(machine_.streams, machine_.registry, stream_);
}

// Both are attached, and errors found, before a byte moves. Where both are files, holes of the source stay holes.
Result<void> Job::attach_ends() {
    const bool files = ends_.from.place().is_file() && ends_.to.whole_file();
    std::optional<std::vector<Cursor::Span>> extents;
    for (const auto& hops : plan_->lanes) {
        SIDESTEP_TRY(const backend::Registration* const from,
                     attach(hops.front().backend, backend::Access::read));
        if (files && !extents) extents = from->extents();
    }
    is_sparse_ = extents.has_value();
    for (const auto& hops : plan_->lanes) {
        SIDESTEP_TRY(const backend::Registration* const to,
                     attach(hops.back().backend, backend::Access::write));
        is_sparse_ &= to->reads_as_zeros();
    }
    const Bytes phase = phase_of(ends_.from, ends_.to);
    cursor_ = Cursor(ends_.bytes, phase);
    if (!is_sparse_) return {};
    holes_ = ends_.bytes;
    for (const Cursor::Span& extent : *extents) holes_ -= extent.size;
    cursor_ = Cursor(std::move(*extents), phase);
    receipt_.notes.push_back(
        fmt::format("{} of the source are holes, which stay holes in the target", format_bytes(holes_)));
    return {};
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
    options.sparse = access == backend::Access::write && is_sparse_;
    SIDESTEP_TRY(auto registration, machine_.registrations.get(*backend, buffer, options));
    attached_.push_back({backend, access, std::move(registration)});
    return attached_.back().registration.get();
}

// A copy of one hop goes onto the caller's stream itself. Any other holds the stream at a gate.
bool Job::needs_gate() const {
    const bool one_hop = plan_->lanes.size() == 1 && plan_->lanes[0].size() == 1;
    return stream_ != nullptr && !(one_hop && plan_->lanes[0][0].streams);
}

bool Job::go_on(bool) {
    const bool moved = state_ == State::moving && move();
    if (state_ == State::moving && lost_ && !on_detour_ && idle()) {
        on_detour_ = true;
        open_again([this] { return detour(); });
        return true;
    }
    return (state_ == State::verifying && verify()) || moved;
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
    done_.store(holes_ + before_ + arrived, std::memory_order_relaxed);
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
    all_equal();
    return true;
}

Result<void> Job::make_final() {
    for (const Attached& attached : attached_)
        if (attached.access == backend::Access::write) SIDESTEP_CHECK(attached.registration->commit());
    return {};
}

bool Job::settle(bool) {
    bool moved = false;
    for (auto& lane : lanes_)
        if (auto stepped = lane ? lane->step(cursor_) : Result<bool>(false); stepped) moved |= *stepped;
    if (verifier_)
        if (auto stepped = verifier_->step(); stepped) moved |= *stepped;
    return moved;
}

// A lane cannot go on: the others take over what it had not brought to its end. The copy fails with the last.
void Job::lose(std::size_t lane, Error error) {
    if (!receipt_.lane_failures[lane].empty()) return;
    receipt_.lane_failures[lane] = error.message;
    const auto& failures = receipt_.lane_failures;
    if (std::none_of(failures.begin(), failures.end(), [](const std::string& text) { return text.empty(); }))
        return may_detour() ? void(lost_ = std::move(error)) : fail(std::move(error));
    receipt_.notes.push_back(
        fmt::format("lane {} failed and the others took over: {}", lane + 1, error.to_string()));
}

// Once: what fails again fails for good.
bool Job::may_detour() const {
    const bool nodes = !ends_.from.place().node().empty() && !ends_.to.place().node().empty();
    return nodes && !lost_ && lanes_.size() == 1 && plan_->lanes[0].size() == 1;
}

// Whether it was that is asked of the nodes.
Result<void> Job::detour() {
    const auto against = objections(machine_.registry, ends_.from, ends_.to, options_);
    if (against.empty()) return *lost_;
    auto plan = machine_.plans.get(request(), against);
    if (!plan) return *lost_;
    before_ = lanes_[0]->arrived();
    receipt_.notes.push_back(
        fmt::format("{}: {} of {} had gone past this machine, and the rest went by the route above",
                    against.front().reason, format_bytes(before_), format_bytes(ends_.bytes)));
    lanes_.clear();
    receipt_.lane_failures.clear();
    plan_ = std::move(*plan);
    return add_lanes();
}

// Lanes of other copies need not make way for what may hang.
void Job::stop() {
    for (auto& lane : lanes_)
        if (lane) lane->stop();
    if (verifier_) verifier_->stop();
    host_link_ = {};
}

Receipt Job::receipt() {
    for (const Attached& attached : attached_)
        for (std::string& note : attached.registration->notes()) receipt_.notes.push_back(std::move(note));
    receipt_.route = std::shared_ptr<const Route>(plan_, &plan_->route);
    return std::move(receipt_);
}

void Job::release() {
    lanes_.clear();
    host_link_ = {};
    struct Open {
        std::vector<Attached> attached;
        std::unique_ptr<Verifier> verifier;
    };
    Open open{std::exchange(attached_, {}), std::move(verifier_)};
    if (aside() != nullptr) let_go(std::make_shared<Open>(std::move(open)));
}

bool Job::idle() const {
    return std::all_of(lanes_.begin(), lanes_.end(),
                       [](const auto& lane) { return !lane || lane->idle(); }) &&
           (!verifier_ || verifier_->idle());
}

}  // namespace sidestep::transfer
