#include "backends/cuda/collective/copies.hpp"

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/thread.hpp"
#include "base/try.hpp"

namespace sidestep::backends::cuda {
namespace {

using protocol::CollectiveTask;
using protocol::CopyExchange;
using protocol::FaultKind;
using protocol::FaultRecord;

// A gate is closed while its highest bit is set: a stream waits until the word, as a signed number, is not
// below 0.
constexpr std::uint64_t closed = std::uint64_t{1} << 63;

// Tasks that wait in a stream, of four entries each: three for the write and the wait, one for the copy. Its
// queue has some 1020; who finds it full waits within the driver until one is done, where no other thread of
// the process comes in (seen on H200, driver 580.159.04).
constexpr unsigned max_waiting = 240;

// The thread looks without a pause for so long after something has happened, longer while bytes are on their
// way, and then with naps in between; longer ones where only graphs that may be launched are to be seen to.
constexpr std::chrono::microseconds looks_for{300};
constexpr std::chrono::milliseconds looks_at_copies_for{20};
constexpr std::chrono::microseconds nap{20};
constexpr std::chrono::milliseconds quiet_for{20};
constexpr std::chrono::microseconds long_nap{200};
// After this the driver does not let the thread go on.
constexpr std::chrono::seconds max_without_a_beat{2};
// The longest that a copy takes. One that takes longer may never come to its end: it may wait in a queue of
// the GPU that a stream holds up, perhaps the one behind this very gate.
constexpr std::chrono::seconds max_for_a_copy{5};

}  // namespace

Result<std::unique_ptr<Copies>> Copies::create(Seats& seats, Gpu& gpu, const CopyPost& post,
                                               HostWords& words) {
    std::unique_ptr<Copies> copies(new Copies(seats, gpu, post, words));
    SIDESTEP_CHECK(copies->set_up());
    return copies;
}

Result<void> Copies::set_up() {
    SIDESTEP_CHECK(CopyStreams::check(gpu_));
    if (post_.rows == nullptr)
        return Error{ErrorCode::internal, "the ranks share no memory of the host for copies", "cuda", {}};
    SIDESTEP_TRY(void* const words, seats_.pages.take());
    gate_ = static_cast<std::uint64_t*>(words);
    const CUresult status = cuda().cuMemHostGetDevicePointer(&gate_on_gpu_, words, 0);
    SIDESTEP_CHECK(cuda().check(status, "cuMemHostGetDevicePointer"));
    SIDESTEP_TRY(streams_, CopyStreams::create(seats_, gpu_, post_));
    beat();
    SIDESTEP_TRY(thread_, base::start_thread([this] { serve(); }, fmt::format("gpu:{}", gpu_.index())));
    return {};
}

Copies::~Copies() {
    halt();
    if (gate_) seats_.pages.give_back(gate_);
}

std::uint64_t Copies::keep(const CollectiveTask& task, bool captures) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t code = closed | ++last_;
    Plan& plan = plans_[code] = {task, captures};
    plan.task.to[post_.rank] = plan.task.from[post_.rank] = {};  // the caller's stream copies that one
    if (captures)
        captured_.store(true);
    else
        waiting_.fetch_add(1);
    due_.notify_all();
    return code;
}

void Copies::forget(std::uint64_t code) {
    const std::lock_guard lock(mutex_);
    const auto found = plans_.find(code);
    if (found == plans_.end() || found->second.captured) return;
    plans_.erase(found);
    waiting_.fetch_sub(1);
}

Copies::Plan* Copies::find(std::uint64_t code) {
    const std::lock_guard lock(mutex_);
    const auto found = plans_.find(code);
    return found == plans_.end() ? nullptr : &found->second;
}

// Here and not within the driver, where the thread that ends the tasks could not come in.
Result<void> Copies::wait_for_room() {
    const auto start = Clock::now();
    const auto max = deadline();
    while (waiting_.load() >= max_waiting && !stopped()) {
        if (max.count() > 0 && Clock::now() - start > max)
            return Error{ErrorCode::timed_out,
                         fmt::format("{} operations wait for the other ranks, more than a stream holds",
                                     waiting_.load()),
                         fmt::format("gpu:{}", gpu_.index()),
                         "let the other ranks call before more are enqueued"};
        std::this_thread::sleep_for(nap);
    }
    return {};
}

Result<void> Copies::close_gate(std::uint64_t code, CUstream stream) {
    const CUresult status =
        cuda().cuStreamWriteValue64(stream, gate_on_gpu_, code, CU_STREAM_WRITE_VALUE_DEFAULT);
    if (status == CUDA_ERROR_INVALID_HANDLE)
        return Error{ErrorCode::invalid_argument, "the stream does not belong to the rank's GPU",
                     fmt::format("gpu:{}", gpu_.index()), "give a stream of that GPU"};
    return cuda().check(status, "cuStreamWriteValue64");
}

// Beside the exchange, which has begun. On H200 the driver copies within a GPU by kernels of its own, so the
// stream waits in a queue for those.
Result<void> Copies::wait_at_gate(const CollectiveTask& task, CUstream stream) {
    const auto to = reinterpret_cast<CUdeviceptr>(task.recv) + task.from[post_.rank].offset;
    const auto from = reinterpret_cast<CUdeviceptr>(task.send) + task.to[post_.rank].offset;
    const std::uint64_t bytes = task.to[post_.rank].bytes;
    if (bytes != 0 && to != from)
        SIDESTEP_CHECK(cuda().check(cuda().cuMemcpyAsync(to, from, bytes, stream), "cuMemcpyAsync"));
    const CUresult status =
        cuda().cuStreamWaitValue64(stream, gate_on_gpu_, open_gate, CU_STREAM_WAIT_VALUE_GEQ);
    return cuda().check(status, "cuStreamWaitValue64");
}

Result<void> Copies::run(const CollectiveTask& task, CUstream stream, bool captures) {
    if (!captures) SIDESTEP_CHECK(wait_for_room());
    if (stopped()) return {};
    const std::uint64_t code = keep(task, captures);
    auto calls = streams_->enqueue_waits();
    if (auto closes = close_gate(code, stream); !closes) {
        forget(code);
        return closes;
    }
    auto waits = wait_at_gate(task, stream);
    calls.unlock();
    // The gate closes in any case, so the thread has to open it: told first, it copies nothing.
    if (!waits && !captures) give_up({.kind = FaultKind::aborted, .peer = post_.rank}, code);
    if (!captures) enqueued_.store(code, std::memory_order_release);
    return waits;
}

void Copies::serve() noexcept {
    driver::ScopedCudaContext current(*gpu_.context());
    auto since = Clock::now();
    while (!halts_.load(std::memory_order_acquire)) {
        beat();
        const std::uint64_t code = gate();
        if (code == open_gate) {
            rest(since);
            continue;
        }
        carry_out(code);
        since = Clock::now();
    }
}

// Until a gate may be closed.
void Copies::rest(Clock::time_point& since) {
    const auto idle = Clock::now() - since;
    if (idle < looks_for) {
        std::this_thread::yield();
    } else if (waiting_.load() == 0 && !captured_.load()) {
        std::unique_lock lock(mutex_);
        due_.wait(lock, [this] { return halts_.load() || waiting_.load() != 0 || captured_.load(); });
        since = Clock::now();
    } else {
        std::this_thread::sleep_for(waiting_.load() == 0 && idle > quiet_for ? long_nap : nap);
    }
}

void Copies::carry_out(std::uint64_t code) {
    moved_at_ = Clock::now();
    Plan* const plan = find(code);
    if (plan != nullptr && plan->captured) look_up(plan->task);
    const bool begins = plan != nullptr && !stopped();
    if (!begins || !exchange(*plan, code)) {
        if (halts_.load()) return;
        FaultRecord record;
        record.kind = FaultKind::aborted;
        record.peer = post_.rank;
        give_up(record, code);
        if (begins) wait_for_copies();
    }
    forget(code);
    std::atomic_ref(*gate_).store(open_gate, std::memory_order_release);
}

// What is being copied is still read and written.
void Copies::wait_for_copies() {
    streams_->close();
    while (!halts_.load() && !streams_->quiet()) {
        beat();
        if (Clock::now() - moved_at_ > max_for_a_copy) {
            base::log(
                base::LogLevel::warn,
                fmt::format("gpu:{}: copies of rank {} have not ended, and are waited for no longer ({})",
                            gpu_.index(), post_.rank, streams_->missing()));
            return;
        }
        std::this_thread::sleep_for(nap);
    }
}

// Since the capture the others may have mapped this memory. Or they have unmapped it, and its slot names another allocation.
void Copies::look_up(CollectiveTask& task) {
    if (!post_.where || protocol::send_overlaps_recv(task, post_.rank, post_.ranks)) return;
    for (unsigned r = 0; r < post_.ranks; ++r) {
        if (r == post_.rank || task.from[r].bytes == 0) continue;
        task.from_tokens[r] =
            post_.where(static_cast<const char*>(task.recv) + task.from[r].offset, task.from[r].bytes);
    }
}

// A query of a stream says nothing about a wait that is enqueued later; in a graph that wait comes with
// the gate. If the driver blocks the caller in the middle of this, the deadline still holds: the
// exchange finds it passed.
void Copies::let_stream_wait(const Plan& plan, std::uint64_t code) {
    const auto max = deadline();
    while (!plan.captured && enqueued_.load(std::memory_order_acquire) < code && !stopped() &&
           !halts_.load()) {
        beat();
        if (max.count() != 0 && Clock::now() - moved_at_ > max) return;
        std::this_thread::yield();
    }
}

// False: it has not come to its end.
bool Copies::exchange(const Plan& plan, std::uint64_t code) {
    let_stream_wait(plan, code);
    streams_->begin();
    CopyExchange exchange(plan.task, post_.rank, post_.ranks, counters_, *streams_);
    while (!stopped() && !halts_.load(std::memory_order_relaxed)) {
        beat();
        const auto state = exchange.step();
        streams_->end_step();
        if (!state) {
            base::log(base::LogLevel::warn,
                      fmt::format("gpu:{}: {}", gpu_.index(), state.error().to_string()));
            break;
        }
        if (*state == CopyExchange::State::ended) return true;
        if (*state == CopyExchange::State::differs) {
            give_up(exchange.fault(), code);
            break;
        }
        const auto now = Clock::now();
        if (*state == CopyExchange::State::moved) moved_at_ = now;
        const bool copying = *state == CopyExchange::State::copying;
        const auto idle = now - moved_at_;
        const auto max = deadline();
        if (max.count() != 0 && idle > max && (!copying || idle > max_for_a_copy)) {
            FaultRecord record;
            record.kind = FaultKind::timed_out;
            record.peer = exchange.missing();
            if (streams_->held_up()) say_held_up();
            give_up(record, code);
            break;
        }
        if (idle < (copying ? Clock::duration(looks_at_copies_for) : Clock::duration(looks_for)))
            std::this_thread::yield();
        else
            std::this_thread::sleep_for(nap);
    }
    exchange.withdraw();
    return false;
}

void Copies::say_held_up() {
    base::log(
        base::LogLevel::warn,
        fmt::format(
            "gpu:{}: copies of rank {} could not begin, since streams that wait hold up every queue of the "
            "GPU that copies go through; with CUDA_DEVICE_MAX_CONNECTIONS=32 in the environment it has more",
            gpu_.index(), post_.rank));
}

void Copies::give_up(const FaultRecord& record, std::uint64_t code) {
    const std::lock_guard lock(mutex_);
    write_fault(record, code);
    // Only now: from here on run() leaves tasks out, and callers have to find the reason.
    stopped_.store(true, std::memory_order_release);
}

// The first one counts. Under the lock.
void Copies::write_fault(FaultRecord record, std::uint64_t code) {
    const std::atomic_ref kind(words_.fault.kind);
    if (kind.load(std::memory_order_acquire) != FaultKind::none) return;
    // Looked up here: the thread may be done with the plan, and forget it, as soon as the lock is free.
    if (const auto found = plans_.find(code); found != plans_.end()) {
        record.number = found->second.task.number;
        record.signature = found->second.task.signature;
    }
    // All but the kind, which others read meanwhile to learn whether the rest is there.
    FaultRecord& written = words_.fault;
    written.peer = record.peer;
    written.number = record.number;
    written.signature = record.signature;
    written.peer_signature = record.peer_signature;
    written.bytes = record.bytes;
    written.peer_bytes = record.peer_bytes;
    kind.store(record.kind, std::memory_order_release);
}

void Copies::look() noexcept {
    std::uint64_t code = gate();
    if (code == open_gate || halts_.load()) return;
    const Clock::duration without(Clock::now().time_since_epoch().count() -
                                  beat_.load(std::memory_order_relaxed));
    const auto max = deadline();
    const bool overdue = max.count() != 0 && without > max;
    if (without < max_without_a_beat || !(stopped() || overdue)) return;
    FaultRecord record;
    record.kind = FaultKind::timed_out;
    record.peer = (post_.rank + 1) % post_.ranks;
    give_up(record, code);
    // If this thread was held up, the gate may be the next task's by now.
    std::atomic_ref(*gate_).compare_exchange_strong(code, open_gate);
}

void Copies::stop() noexcept {
    const std::lock_guard lock(mutex_);
    stopped_.store(true, std::memory_order_release);
    due_.notify_all();
}

void Copies::halt() noexcept {
    {
        const std::lock_guard lock(mutex_);
        halts_.store(true, std::memory_order_release);
        due_.notify_all();
    }
    const std::lock_guard lock(joining_);
    if (thread_.joinable()) thread_.join();
}

}  // namespace sidestep::backends::cuda
