#include "shims/nccl/communicator.hpp"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "shims/nccl/failure.hpp"

namespace sidestep::nccl {
namespace {

bool holds(const Allocation& memory, const void* address, std::size_t bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.address());
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    return at >= begin && bytes <= memory.size() && at - begin <= memory.size() - bytes;
}

Error no_handle() {
    return bad_argument("unknown registration handle");
}

Result<void> call_on(Group& group, const Call& c) {
    switch (c.what) {
        case Collective::all_reduce:
            return group.all_reduce(c.send, c.recv, c.count, c.dtype, c.reduction, c.stream);
        case Collective::broadcast:
            return group.broadcast(c.send, c.recv, c.count, c.dtype, c.root, c.stream);
        case Collective::reduce:
            return group.reduce(c.send, c.recv, c.count, c.dtype, c.reduction, c.root, c.stream);
        case Collective::all_gather:
            return group.all_gather(c.send, c.recv, c.count, c.dtype, c.stream);
        case Collective::reduce_scatter:
            return group.reduce_scatter(c.send, c.recv, c.count, c.dtype, c.reduction, c.stream);
        case Collective::all_to_all:
            return group.all_to_all(c.send, c.recv, c.count, c.dtype, c.stream);
        case Collective::gather:
            return group.gather(c.send, c.recv, c.count, c.dtype, c.root, c.stream);
        case Collective::scatter:
            return group.scatter(c.send, c.recv, c.count, c.dtype, c.root, c.stream);
        case Collective::send_recv:
            return c.sends ? group.send(c.send, c.count, c.dtype, c.root, c.stream)
                           : group.recv(c.recv, c.count, c.dtype, c.root, c.stream);
        case Collective::all_to_all_v:
        case Collective::barrier:
            break;
    }
    return Error{ErrorCode::internal, fmt::format("NCCL has no call for {}", to_string(c.what)), {}, {}};
}

}  // namespace

Communicator::Communicator(Gpu device, Config config, int rank, int ranks)
    : device_(std::move(device)), config_(std::move(config)), rank_(rank), ranks_(ranks) {}

// The groups end before the memory that others have mapped through them.
Communicator::~Communicator() {
    copies_.reset();
    group_.reset();
}

Result<void> Communicator::set_group(Group group) {
    std::optional<Group> copies;
    if (config_.copy_engines) {
        GroupOptions options = config_.options();
        options.policy = GroupPolicy::zero_sm;
        options.name =
            fmt::format("{}, copy engines", config_.name.empty() ? group.id().to_string() : config_.name);
        auto made = group.split(0, group.rank(), options, stop());
        if (!made.ok()) {
            Error error = made.error();
            if (error.code == ErrorCode::timed_out)
                error.hint = "either all ranks ask for NCCL_CTA_POLICY_ZERO, or none does";
            return error;
        }
        copies = std::move(*made);
    }
    const std::lock_guard guard(facts_);
    group_.emplace(std::move(group));
    copies_ = std::move(copies);
    if (aborted_) {
        group_->abort("ncclCommAbort while the communicator was being made");
        if (copies_) copies_->abort("ncclCommAbort while the communicator was being made");
    }
    phase_.store(Phase::ready, std::memory_order_release);
    return {};
}

void Communicator::set_failure(const Error& error) {
    const std::lock_guard guard(facts_);
    failure_ = error;
    has_failed_ = true;
    phase_.store(Phase::failed, std::memory_order_release);
}

void Communicator::leave(const Result<void>& how) {
    if (!how.ok()) {
        const std::lock_guard guard(facts_);
        failure_ = how.error();
        has_failed_ = true;
    }
    busy_.fetch_sub(1);
}

std::pair<ncclResult_t, Error> Communicator::state() const {
    const Phase phase = phase_.load(std::memory_order_acquire);
    if (phase == Phase::joining || busy_ > 0) return {ncclInProgress, {}};
    if (has_failed_) {
        const std::lock_guard guard(facts_);
        return {number_of(failure_), failure_};
    }
    if (revoked_) {
        for (const auto* group : {&group_, &copies_}) {
            if (!*group) continue;
            const auto idle = (*group)->idle();
            if (idle.ok() && !*idle) return {ncclInProgress, {}};
        }
        return {ncclSuccess, {}};
    }
    const auto now = status();
    if (now.ok()) return {ncclSuccess, {}};
    return {number_of(now.error()), now.error()};
}

Result<void> Communicator::status() const {
    if (auto one = group_->status(); !one.ok()) return one;
    return copies_ ? copies_->status() : Result<void>{};
}

Result<void> Communicator::wait() const {
    const auto one = group_->wait();
    const auto other = copies_ ? copies_->wait() : Result<void>{};
    return one.ok() ? other : one;
}

Result<void> Communicator::ready() const {
    const Phase phase = phase_.load(std::memory_order_acquire);
    if (phase == Phase::joining || busy_ > 0)
        return bad_argument(
            "the communicator is not ready: call ncclCommGetAsyncError until it no longer answers "
            "ncclInProgress");
    if (phase == Phase::ready) return {};
    const std::lock_guard guard(facts_);
    return failure_;
}

Result<void> Communicator::usable() const {
    if (auto there = ready(); !there.ok()) return there;
    if (revoked_) return misuse("the communicator was revoked", "split or shrink it, or destroy it");
    if (finalized_) return misuse("the communicator was finalized", "destroy it");
    if (!has_failed_) return {};
    const std::lock_guard guard(facts_);
    return failure_;
}

// Alike on all ranks: a question of the operation and the number of ranks.
bool Communicator::by_copy_engines(const Call& call) const {
    return copies_ && copies_->explain(call.what, call.count, call.dtype, call.reduction).ok();
}

Result<void> Communicator::prepare_locked(bool copied) {
    forget_locked();
    if (!copies_) return {};
    // Where one of the two has ended, so has the communicator.
    if (auto good = status(); !good.ok()) return good;
    // There are no streams there that would keep the order.
    if (device_.emulated && copied != last_was_copied_)
        if (auto ended = wait(); !ended.ok()) return ended;
    last_was_copied_ = copied;
    return {};
}

Result<void> Communicator::run(const Call& c) {
    const std::lock_guard guard(calls_);
    const bool copied = by_copy_engines(c);
    if (auto ready = prepare_locked(copied); !ready.ok()) return ready;
    return call_on(copied ? *copies_ : *group_, c);
}

Result<void> Communicator::run_together(const std::vector<Call>& calls) {
    if (calls.size() == 1) return run(calls.front());
    const std::lock_guard guard(calls_);
    if (auto ready = prepare_locked(false); !ready.ok()) return ready;
    group_->begin_calls();
    // Where one fails, the end says so and runs none.
    for (const Call& call : calls) static_cast<void>(call_on(*group_, call));
    return group_->end_calls();
}

Result<void> Communicator::settle() const {
    return device_.emulated ? wait() : Result<void>{};
}

double Communicator::expected_us(const Call& call) const {
    const Group& group = by_copy_engines(call) ? *copies_ : *group_;
    const auto plan = group.explain(call.what, call.count, call.dtype, call.reduction, call.send, call.recv);
    return plan.ok() ? plan->expected_us : 0;
}

Result<void> Communicator::finalize() {
    const auto ended = wait();
    finalized_ = true;
    return ended;
}

void Communicator::abort(const std::string& why) {
    stop_.request_stop();
    const std::lock_guard guard(facts_);
    aborted_ = true;
    if (group_) group_->abort(why);
    if (copies_) copies_->abort(why);
}

void Communicator::end(const Error& why) {
    const std::string words = why.to_string();
    group_->abort(words);
    if (copies_) copies_->abort(words);
}

void Communicator::revoke() {
    revoked_ = true;
    group_->abort("ncclCommRevoke");
    if (copies_) copies_->abort("ncclCommRevoke");
}

Result<std::optional<Group>> Communicator::split(int color, int key, const GroupOptions& options) {
    const std::lock_guard guard(calls_);
    if (!revoked_) return group_->split(color, key, options, stop());
    // A group that has ended carries no split; one of the same ranks does.
    auto again = group_->shrink({}, options, stop());
    if (!again.ok()) return again.error();
    return again->split(color, key, options, stop());
}

Result<Group> Communicator::shrink(const std::vector<int>& excluded, bool abort_first,
                                   const GroupOptions& options) {
    if (abort_first) {
        group_->abort("ncclCommShrink with NCCL_SHRINK_ABORT");
        if (copies_) copies_->abort("ncclCommShrink with NCCL_SHRINK_ABORT");
    }
    const std::lock_guard guard(calls_);
    return group_->shrink(excluded, options, stop());
}

int Communicator::add_reduction(const Reduction& reduction, Dtype dtype) {
    static std::atomic<unsigned> made{0};
    const std::lock_guard guard(tables_);
    for (;;) {
        // Wraps after 2^30, far below the largest ncclRedOp_t.
        const int op = ncclNumOps + static_cast<int>(made.fetch_add(1) & 0x3fffffff);
        if (reductions_.emplace(op, CustomReduction{reduction, dtype}).second) return op;
    }
}

Result<void> Communicator::remove_reduction(int op) {
    const std::lock_guard guard(tables_);
    if (reductions_.erase(op) == 1) return {};
    return bad_argument(fmt::format("unknown reduction operator {}", op));
}

Result<Reduction> Communicator::reduction(int op, Dtype dtype) const {
    switch (op) {
        case ncclSum:
            return Reduction::of(ReduceOp::sum);
        case ncclProd:
            return Reduction::of(ReduceOp::prod);
        case ncclMax:
            return Reduction::of(ReduceOp::max);
        case ncclMin:
            return Reduction::of(ReduceOp::min);
        case ncclAvg:
            return Reduction::of(ReduceOp::avg);
        default:
            break;
    }
    const std::lock_guard guard(tables_);
    const auto found = reductions_.find(op);
    if (found == reductions_.end()) return bad_argument(fmt::format("unknown reduction operator {}", op));
    if (found->second.dtype != dtype)
        return bad_argument(fmt::format("reduction operator {} was created for {}, but the call uses {}", op,
                                        to_string(found->second.dtype), to_string(dtype)));
    return found->second.reduction;
}

Result<void*> Communicator::add_registration(void* memory, std::size_t bytes) {
    auto entry = std::make_unique<Registration>();
    entry->buffer = Buffer::memory(device_.place, memory, bytes);
    {
        const std::lock_guard guard(calls_);
        const bool known = std::any_of(attached_.begin(), attached_.end(),
                                       [&](const auto& held) { return holds(*held, memory, bytes); });
        // Memory that nobody else can map is carried through the arena: slower, but nothing that the caller
        // has to know.
        if (!known && bytes > 0) entry->attached = group_->attach(entry->buffer).ok();
    }
    void* handle = entry.get();
    const std::lock_guard guard(tables_);
    registrations_.emplace(handle, std::move(entry));
    return handle;
}

Result<void> Communicator::remove_registration(void* handle) {
    std::unique_ptr<Registration> entry;
    {
        const std::lock_guard guard(tables_);
        const auto found = registrations_.find(handle);
        if (found == registrations_.end()) return no_handle();
        entry = std::move(found->second);
        registrations_.erase(found);
    }
    if (!entry->attached) return {};
    const std::lock_guard guard(calls_);
    // The others unmap it as soon as they can; of a group that has failed nothing is mapped any more.
    const auto detached = group_->detach(entry->buffer);
    if (detached.ok() || detached.error().code == ErrorCode::timed_out || !group_->status().ok()) return {};
    return detached.error();
}

Result<void*> Communicator::registered_memory(void* handle) const {
    const std::lock_guard guard(tables_);
    const auto found = registrations_.find(handle);
    if (found == registrations_.end()) return no_handle();
    return found->second->buffer.address();
}

// Made of the group's own id, so that ranks that have it need no word from each other; spread over all bits,
// so that ids of two groups do not meet.
GroupId Communicator::grown_id(std::uint32_t before) const {
    GroupId id = group_->id();
    std::uint64_t state = before + std::uint64_t{1};
    for (std::size_t round = 0; round < 2 * id.bytes.size(); ++round) {
        std::uint8_t& byte = id.bytes[round % id.bytes.size()];
        state = (state ^ byte) * 0x9e3779b97f4a7c15;
        state ^= state >> 29;
        byte = static_cast<std::uint8_t>(state >> 40);
    }
    return id;
}

// Where a call is under way the lock is held, perhaps for long. The memory is found at its first use then.
void Communicator::attach(const std::shared_ptr<const Allocation>& memory) {
    const std::unique_lock guard(calls_, std::try_to_lock);
    if (!guard || phase_.load(std::memory_order_acquire) != Phase::ready || memory->place() != device_.place)
        return;
    forget_locked();
    // An emulated GPU shares memory only while nothing runs, and what runs may wait for a rank that is here.
    const auto idle = device_.emulated ? group_->idle() : Result<bool>(true);
    if (!idle.ok() || !*idle) return;
    if (std::find(attached_.begin(), attached_.end(), memory) != attached_.end()) return;
    if (group_->attach(memory->buffer()).ok()) attached_.push_back(memory);
}

void Communicator::detach(const std::shared_ptr<const Allocation>& memory) {
    {
        const std::lock_guard guard(tables_);
        to_forget_.push_back(memory);
        forgets_ = true;
    }
    const std::unique_lock guard(calls_, std::try_to_lock);
    if (guard) forget_locked();
}

void Communicator::forget_locked() {
    if (!forgets_) return;
    std::vector<std::shared_ptr<const Allocation>> going, mapped;
    {
        const std::lock_guard guard(tables_);
        going.swap(to_forget_);
        forgets_ = false;
    }
    for (const auto& memory : going) {
        const auto found = std::find(attached_.begin(), attached_.end(), memory);
        if (found == attached_.end()) continue;
        const auto detached = group_->detach(memory->buffer());
        // Any other failure means that the group has ended, and all its mappings with it.
        if (!detached.ok() && detached.error().code == ErrorCode::timed_out)
            mapped.push_back(memory);
        else
            attached_.erase(found);
    }
    if (mapped.empty()) return;
    const std::lock_guard guard(tables_);
    to_forget_.insert(to_forget_.end(), mapped.begin(), mapped.end());
    forgets_ = true;
}

}  // namespace sidestep::nccl
