#include "backends/cuda/in_flight.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "backends/cuda/allocate.hpp"
#include "base/kept.hpp"
#include "base/thread.hpp"

namespace sidestep::backends::cuda {
namespace {

Allocation zeros(const std::shared_ptr<const driver::CudaContext>& context, Bytes bytes) {
    driver::ScopedCudaContext current(*context);
    auto zeros = allocate_portable(context, bytes);
    if (!zeros) return {};
    std::memset(zeros->address(), 0, bytes);
    return std::move(*zeros);
}

}  // namespace

InFlight::InFlight(std::shared_ptr<const driver::CudaContext> context, int gpu)
    : context_(std::move(context)),
      gpu_(gpu),
      words_(zeros(context_, max_words * bytes_a_word)),
      words_given_(words_ ? 0 : max_words) {}

InFlight::~InFlight() {
    // What hangs may still write its word.
    if (!idle()) base::keep(std::make_shared<Allocation>(std::move(words_)));
    driver::ScopedCudaContext current(*context_);
    for (const Share& share : shares_)
        for (const Enqueued& work : share.all) context_->cuda().cuEventDestroy(work.event);
}

InFlight::Share& InFlight::own() {
    return shares_[base::thread_number() % shares];
}

// With the share's mutex held.
void InFlight::mark_last(Share& share, CUstream stream) const {
    const auto queue = share.queues.find(stream);
    if (queue == share.queues.end() || queue->second.first == nullptr) return;
    if (Enqueued& last = *queue->second.last; last.told == Told::by_stream) record(last);
}

Result<Enqueued*> InFlight::take(CUstream stream, Mark mark) {
    Share& share = own();
    for (Share& other : shares_) {
        if (mark != Mark::now || &other == &share || other.count.load(std::memory_order_relaxed) == 0)
            continue;
        const std::lock_guard lock(other.mutex);
        mark_last(other, stream);
    }
    const std::lock_guard lock(share.mutex);
    mark_last(share, stream);
    if (share.free != nullptr) {
        Enqueued* work = share.free;
        share.free = std::exchange(work->next, nullptr);
        work->stream = stream;
        work->told.store(Told::by_stream, std::memory_order_relaxed);
        return work;
    }
    if (made_.load(std::memory_order_relaxed) >= max_in_flight)
        return Error{ErrorCode::device_error, fmt::format("{} pieces are in flight already", max_in_flight),
                     fmt::format("gpu:{}", gpu_), "wait for some of them"};
    CUevent event = nullptr;
    const driver::Cuda& cuda = context_->cuda();
    const CUresult status = cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (status != CUDA_SUCCESS) return cuda.error(status, "cuEventCreate", fmt::format("gpu:{}", gpu_));
    made_.fetch_add(1, std::memory_order_relaxed);
    return &share.all.emplace_back(event, stream);
}

CUresult InFlight::record(Enqueued& work) const {
    const CUresult status = context_->cuda().cuEventRecord(work.event, work.stream);
    if (status == CUDA_SUCCESS) work.told.store(Told::by_event, std::memory_order_release);
    return status;
}

CUresult InFlight::mark(Enqueued& work, Mark mark) {
    if (mark == Mark::now) return record(work);
    if (mark == Mark::awaited && idle()) write_word(work);
    return CUDA_SUCCESS;
}

bool InFlight::idle() const {
    return std::ranges::all_of(
        shares_, [](const Share& share) { return share.count.load(std::memory_order_relaxed) == 0; });
}

// Without a word, or a driver that writes it, the piece is told by its stream.
void InFlight::write_word(Enqueued& work) {
    if (work.word == nullptr && words_given_.load(std::memory_order_relaxed) < max_words) {
        const std::size_t number = words_given_.fetch_add(1, std::memory_order_relaxed);
        auto* const bytes = static_cast<std::byte*>(words_.address());
        if (number < max_words) work.word = reinterpret_cast<std::uint64_t*>(bytes + number * bytes_a_word);
    }
    if (work.word == nullptr) return;
    const auto address = reinterpret_cast<CUdeviceptr>(work.word);
    const CUresult status = context_->cuda().cuStreamWriteValue64(work.stream, address, ++work.value,
                                                                  CU_STREAM_WRITE_VALUE_DEFAULT);
    if (status != CUDA_SUCCESS) {
        words_given_.store(max_words, std::memory_order_relaxed);
        work.word = nullptr;
        return;
    }
    work.looks = 0;
    work.told.store(Told::by_word, std::memory_order_release);
}

void InFlight::give_back(Enqueued* work) {
    Share& share = own();
    const std::lock_guard lock(share.mutex);
    work->next = share.free;
    share.free = work;
}

void InFlight::add(Enqueued* work) {
    // The default streams of all threads share one name, and each has its own order.
    const bool of_thread = work->stream == CU_STREAM_PER_THREAD;
    const CUstream key = of_thread ? reinterpret_cast<CUstream>(work) : work->stream;
    Share& share = own();
    const std::lock_guard lock(share.mutex);
    Queue& queue = share.queues[key];
    (queue.first == nullptr ? queue.first : queue.last->next) = work;
    queue.last = work;
    share.count.fetch_add(1, std::memory_order_relaxed);
}

bool InFlight::look() {
    Share& share = own();
    if (share.count.load(std::memory_order_relaxed) > 0 &&
        (share.looks.fetch_add(1, std::memory_order_relaxed) + 1) % looks_at_own != 0) {
        look_at(share);
        return true;
    }
    bool left = false;
    for (Share& each : shares_) left |= look_at(each);
    return left;
}

bool InFlight::look_at(Share& share) {
    if (share.count.load(std::memory_order_relaxed) == 0) return false;
    std::vector<Ended> ended;
    {
        const std::unique_lock looking(share.looking, std::try_to_lock);
        if (!looking.owns_lock()) return true;
        std::vector<Queue*> busy;
        {
            const std::lock_guard lock(share.mutex);
            if (share.queues.size() > max_idle_queues)
                std::erase_if(share.queues, [](const auto& entry) { return entry.second.first == nullptr; });
            for (auto& [stream, queue] : share.queues)
                if (queue.first != nullptr) busy.push_back(&queue);
        }
        driver::ScopedCudaContext current(*context_);
        for (Queue* queue : busy) look_at(share, *queue, ended);
    }
    for (Ended& each : ended) each.flight->end(std::move(each.result));
    return share.count.load(std::memory_order_relaxed) > 0;
}

// No other thread takes anything off the queue: its first element stays the same meanwhile.
void InFlight::look_at(Share& share, Queue& queue, std::vector<Ended>& ended) const {
    std::unique_lock lock(share.mutex);
    while (queue.first != nullptr) {
        Enqueued& work = *queue.first;
        lock.unlock();
        auto result = outcome(share, work);
        lock.lock();
        if (!result) return;
        ended.push_back({work.flight, std::move(*result)});
        queue.first = std::exchange(work.next, share.free);
        share.free = &work;
        share.count.fetch_sub(1, std::memory_order_relaxed);
    }
}

// Nothing while it is in flight.
std::optional<Result<void>> InFlight::outcome(Share& share, Enqueued& work) const {
    const driver::Cuda& cuda = context_->cuda();
    const Told told = work.told.load(std::memory_order_acquire);
    // A question takes 0.8 to 1.7 us, and 2.2 to 3.7 when the piece has ended (docs/lab-book.md, as Mark says).
    const bool written =
        told == Told::by_word && std::atomic_ref(*work.word).load(std::memory_order_acquire) == work.value;
    if (told == Told::by_word && !written && ++work.looks <= looks_at_word) return std::nullopt;
    const CUresult status = written                  ? CUDA_SUCCESS
                            : told == Told::by_event ? cuda.cuEventQuery(work.event)
                                                     : cuda.cuStreamQuery(work.stream);
    if (told == Told::by_stream && status == CUDA_ERROR_NOT_READY) {
        // What other threads enqueue there from now on is not waited for.
        const std::lock_guard lock(share.mutex);
        if (work.told == Told::by_stream) record(work);
    }
    // One question that fails tells nothing of the piece, which may be under way. Where the context is lost, and nothing is
    // under way, all do.
    const bool failed = status != CUDA_SUCCESS && status != CUDA_ERROR_NOT_READY;
    const bool doubted = std::exchange(work.doubted, failed);
    if (status == CUDA_ERROR_NOT_READY || (failed && !doubted)) return std::nullopt;
    work.doubted = false;
    if (const auto failure = std::move(work.failure)) return failure->error;
    if (status == CUDA_SUCCESS) return Result<void>();
    return cuda.error(status, told == Told::by_event ? "cuEventQuery" : "cuStreamQuery",
                      fmt::format("gpu:{}", gpu_));
}

}  // namespace sidestep::backends::cuda
