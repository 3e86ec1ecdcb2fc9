#include "backends/cuda/collective/copy_watch.hpp"

#include <algorithm>
#include <new>
#include <thread>

#include "base/try.hpp"

namespace sidestep::backends::cuda {
namespace {

using backend::CollectiveTask;
using backend::CopyStep;
using backend::FaultKind;
using backend::FaultRecord;

// A wait is looked into after this.
constexpr std::chrono::milliseconds patience{20};
// The words of a wait that is overdue cannot be read: then it ends without them.
constexpr std::chrono::seconds most_for_a_look{1};
// What one look spends on letting tasks go.
constexpr std::chrono::milliseconds most_for_letting_go{5};
constexpr std::size_t most_tags = 4096;

// Progress: the tags, the round and the row of a wait. Never 0.
constexpr unsigned row_bits = 3;
constexpr unsigned round_bits = 24;
constexpr std::uint64_t ended = (std::uint64_t{1} << row_bits) - 1;

constexpr std::uint64_t in_graph = std::uint64_t{1} << 63;
constexpr std::uint64_t number_mask = (std::uint64_t{1} << 31) - 1;

std::uint8_t row_of(std::uint64_t code) {
    return static_cast<std::uint8_t>(code & ended);
}
std::uint64_t round_of(std::uint64_t code) {
    return code >> row_bits & ((std::uint64_t{1} << round_bits) - 1);
}
std::uint32_t tags_of_code(std::uint64_t code) {
    return static_cast<std::uint32_t>(code >> (row_bits + round_bits)) - 1;
}

void store(std::uint64_t& word, std::uint64_t value) {
    std::atomic_ref(word).store(value, std::memory_order_release);
}

bool same_lengths(const CollectiveTask& a, const CollectiveTask& b, unsigned ranks) {
    for (unsigned r = 0; r < ranks; ++r)
        if (a.to[r].bytes != b.to[r].bytes || a.from[r].bytes != b.from[r].bytes) return false;
    return true;
}

}  // namespace

Result<std::unique_ptr<CopyWatch>> CopyWatch::create(Seats& seats, Gpu& gpu, const CopyPost& post,
                                                     HostWords& words) {
    std::unique_ptr<CopyWatch> watch(new CopyWatch(seats, gpu, post, words));
    SIDESTEP_CHECK(watch->set_up());
    return watch;
}

Result<void> CopyWatch::set_up() {
    int able = 0;
    const CUresult status = cuda().cuDeviceGetAttribute(
        &able, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, gpu_.context()->device());
    SIDESTEP_CHECK(cuda().check(status, "cuDeviceGetAttribute"));
    if (!able)
        return Error{ErrorCode::unsupported, "streams of this GPU cannot wait for words of 64 bits",
                     "CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS", "use GroupPolicy::automatic"};
    SIDESTEP_TRY(void* const control, seats_.pages.take());
    control_ = new (control) Control{};
    SIDESTEP_TRY(void* const rest, seats_.pages.take());
    rest_ = static_cast<std::uint64_t*>(rest);
    SIDESTEP_TRY(void* const seen, seats_.pages.take());
    seen_ = static_cast<std::uint64_t*>(seen);
    SIDESTEP_TRY(auto stream, driver::CudaStream::create_urgent(gpu_.context()));
    stream_.emplace(std::move(stream));
    at_ = ended;
    return {};
}

CopyWatch::~CopyWatch() {
    for (void* words : {static_cast<void*>(control_), static_cast<void*>(rest_), static_cast<void*>(seen_)})
        if (words) seats_.pages.give_back(words);
    for (const auto& tags : all_tags_) {
        seats_.pages.give_back(tags->arrived);
        seats_.pages.give_back(tags->ready);
    }
}

CUdeviceptr CopyWatch::on_gpu(const void* pinned) const {
    CUdeviceptr address = 0;
    // With unified addressing, which every GPU that this backend takes has, this only looks it up.
    const CUresult status = cuda().cuMemHostGetDevicePointer(&address, const_cast<void*>(pinned), 0);
    return status == CUDA_SUCCESS ? address : reinterpret_cast<CUdeviceptr>(pinned);
}

std::uint64_t CopyWatch::code_of(const CopyStep& step, std::uint32_t tags) {
    const std::uint64_t row = step.kind == CopyStep::Kind::end ? ended : step.row;
    return (std::uint64_t{tags} + 1) << (row_bits + round_bits) | std::uint64_t{step.round} << row_bits | row;
}

Result<const CopyTags*> CopyWatch::tags_of(const CollectiveTask& task) {
    const std::lock_guard lock(all_tags_mutex_);
    for (const auto& known : all_tags_)
        if (known->task.signature == task.signature && same_lengths(known->task, task, post_.ranks))
            return known.get();
    if (all_tags_.size() >= most_tags)
        return Error{ErrorCode::out_of_memory, "too many different operations were run by copy engines",
                     "cuda", "make a new group from time to time"};
    SIDESTEP_TRY(void* const arrived, seats_.pages.take());
    auto ready = seats_.pages.take();
    if (!ready) {
        seats_.pages.give_back(arrived);
        return ready.error();
    }
    auto tags = std::make_unique<CopyTags>();
    tags->task = task;
    tags->index = static_cast<std::uint32_t>(all_tags_.size());
    tags->arrived = static_cast<std::uint64_t*>(arrived);
    tags->ready = static_cast<std::uint64_t*>(*ready);
    for (unsigned peer = 0; peer < post_.ranks && !stopped(); ++peer) {
        store(tags->arrived[peer], backend::tag_of(task, post_.rank, peer, true));
        store(tags->ready[peer], backend::tag_of(task, post_.rank, peer, false));
    }
    all_tags_.push_back(std::move(tags));
    return all_tags_.back().get();
}

std::uint64_t CopyWatch::next_number(std::uint64_t task, std::uint32_t& count) {
    last_number_.store(task, std::memory_order_relaxed);
    count = ++count_;
    return (task & number_mask) << 32 | count;
}

std::uint64_t CopyWatch::number_in_graph(std::uint64_t task) {
    last_number_.store(task, std::memory_order_relaxed);
    return in_graph | (task & number_mask) << 32;
}

bool CopyWatch::began_after(std::uint32_t count) const {
    const std::uint64_t code = std::atomic_ref(control_->number).load(std::memory_order_acquire);
    return (code & in_graph) == 0 && static_cast<std::int32_t>(static_cast<std::uint32_t>(code) - count) > 0;
}

// A GPU that writes it meanwhile is seen by the next look.
void CopyWatch::note_progress() {
    const std::uint64_t code = std::atomic_ref(control_->progress).exchange(0, std::memory_order_acq_rel);
    if (code == 0) return;
    at_ = code;
    since_ = Clock::now();
    moved_ = true;
    examined_ = false;
    missing_.reset();
}

bool CopyWatch::waits() const {
    return row_of(at_) != ended;
}

std::optional<CopyTags> CopyWatch::tags_now() {
    const std::lock_guard lock(all_tags_mutex_);
    const std::uint32_t index = tags_of_code(at_);
    if (index >= all_tags_.size()) return std::nullopt;
    CopyTags tags = *all_tags_[index];
    const std::uint64_t code = std::atomic_ref(control_->number).load(std::memory_order_acquire);
    const std::uint64_t last = last_number_.load(std::memory_order_relaxed);
    tags.task.number = last - ((last - (code >> 32)) & number_mask);
    return tags;
}

void CopyWatch::look() noexcept {
    const std::unique_lock lock(looking_, std::try_to_lock);
    if (!lock) return;
    driver::ScopedCudaContext current(*gpu_.context());
    note_progress();
    if (stopped()) return let_go();
    if (!waits() || Clock::now() - since_ < patience) return;
    look_at_words();
    const std::uint64_t deadline = std::atomic_ref(words_.deadline_ns).load(std::memory_order_acquire);
    const auto overdue = Clock::now() - since_ - std::chrono::nanoseconds(deadline);
    if (stopped() || deadline == 0 || overdue.count() < 0) return;
    // All is there: it moves bytes.
    if (examined_ ? !missing_ : overdue < most_for_a_look) return;
    FaultRecord record;
    record.kind = FaultKind::timed_out;
    record.peer = missing_.value_or((post_.rank + 1) % post_.ranks);
    give_up(record);
    stop_now();
}

void CopyWatch::look_at_words() {
    if (reading_ && cuda().cuStreamQuery(stream_->get()) == CUDA_ERROR_NOT_READY) return;
    const bool fresh =
        reading_ && !moved_ && std::atomic_ref(control_->progress).load(std::memory_order_acquire) == 0;
    reading_ = false;
    if (fresh) examine();
    if (stopped()) return;
    const auto bytes = backend::most_ranks * sizeof(std::uint64_t);
    moved_ = false;
    reading_ = cuda().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(seen_), own_word(row_of(at_)), bytes,
                                    stream_->get()) == CUDA_SUCCESS;
}

// The words that are waited for, as they were at a time of this very wait.
void CopyWatch::examine() {
    const auto tags = tags_now();
    if (!tags) return;
    const std::uint8_t row = row_of(at_);
    const bool sends = !backend::is_arrived(row);
    missing_.reset();
    examined_ = true;
    for (unsigned i = 0; i + 1 < post_.ranks; ++i) {
        const unsigned peer = (post_.rank + 1 + i) % post_.ranks;
        const std::uint64_t bytes = sends ? tags->task.to[peer].bytes : tags->task.from[peer].bytes;
        if (round_of(at_) >= backend::copy_pieces(bytes, post_.ranks)) continue;
        const std::uint64_t word = std::atomic_ref(seen_[peer]).load(std::memory_order_acquire);
        if (word == 0 && !missing_) missing_ = peer;
        if (word == 0 || word == backend::tag_of(tags->task, post_.rank, peer, sends)) continue;
        give_up(backend::fault_of_word(tags->task, post_.rank, peer, row, word));
        return stop_now();
    }
}

// The first one counts.
void CopyWatch::give_up(FaultRecord record) {
    const std::atomic_ref kind(words_.fault.kind);
    if (kind.load(std::memory_order_acquire) != FaultKind::none) return;
    if (const auto tags = tags_now()) {
        record.number = tags->task.number;
        record.signature = tags->task.signature;
    }
    const FaultKind why = record.kind;
    record.kind = FaultKind::none;
    words_.fault = record;
    kind.store(why, std::memory_order_release);
}

void CopyWatch::give_up_if_waiting() {
    if (!waits()) return;
    FaultRecord record;
    record.kind = FaultKind::aborted;
    record.peer = post_.rank;
    give_up(record);
}

void CopyWatch::stop() noexcept {
    const std::lock_guard lock(looking_);
    driver::ScopedCudaContext current(*gpu_.context());
    note_progress();
    give_up_if_waiting();
    stop_now();
}

void CopyWatch::stop_now() {
    if (stopped()) return;
    {
        const std::lock_guard lock(all_tags_mutex_);
        stopped_.store(true, std::memory_order_release);
        for (const auto& tags : all_tags_)
            for (unsigned peer = 0; peer < post_.ranks; ++peer) {
                store(tags->arrived[peer], 0);
                store(tags->ready[peer], 0);
            }
    }
    for (unsigned i = 0; i < backend::most_ranks; ++i) store(rest_[i], backend::copy_release);
    let_go();
}

// Again and again: what others that were stopped raise is 0, and a zero may have been on its way here.
void CopyWatch::let_go() {
    const auto end = Clock::now() + most_for_letting_go;
    for (;;) {
        note_progress();
        if (!waits()) return;
        give_up_if_waiting();
        if (cuda().cuStreamQuery(stream_->get()) == CUDA_SUCCESS)
            for (unsigned row = 0; row < 4; ++row)
                if (!release(row)) return;
        if (Clock::now() >= end) return;
        std::this_thread::yield();
    }
}

// All but the rank's own word: what it raises at others passes through that.
bool CopyWatch::release(unsigned row) {
    constexpr std::size_t size = sizeof(std::uint64_t);
    const CUdeviceptr words = own_word(row);
    const unsigned after = post_.rank + 1;
    const auto put = [&](unsigned first, unsigned count) {
        return count == 0 || cuda().cuMemcpyAsync(words + first * size, rest(), count * size,
                                                  stream_->get()) == CUDA_SUCCESS;
    };
    return put(0, post_.rank) && put(after, backend::most_ranks - after);
}

bool CopyWatch::busy() noexcept {
    const std::lock_guard lock(looking_);
    return waits();
}

}  // namespace sidestep::backends::cuda
