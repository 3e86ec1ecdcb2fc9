#include "backends/cuda/in_flight.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/thread.hpp"

namespace sidestep::backends::cuda {

InFlight::~InFlight() {
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
    if (Enqueued& last = *queue->second.last; !last.marked) mark(last);
}

Result<Enqueued*> InFlight::take(CUstream stream, Mark mark) {
    Share& share = own();
    for (Share& other : shares_) {
        if (mark == Mark::later || &other == &share || other.count.load(std::memory_order_relaxed) == 0)
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
        work->marked.store(false, std::memory_order_relaxed);
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

CUresult InFlight::mark(Enqueued& work) const {
    const CUresult status = context_->cuda().cuEventRecord(work.event, work.stream);
    if (status == CUDA_SUCCESS) work.marked.store(true, std::memory_order_release);
    return status;
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
    thread_local unsigned looks = 0;
    if (Share& share = own();
        share.count.load(std::memory_order_relaxed) > 0 && ++looks % looks_at_own != 0) {
        look_at(share);
        return true;
    }
    bool left = false;
    for (Share& share : shares_) left |= look_at(share);
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
    const bool marked = work.marked.load(std::memory_order_acquire);
    const CUresult status = marked ? cuda.cuEventQuery(work.event) : cuda.cuStreamQuery(work.stream);
    if (!marked && status == CUDA_ERROR_NOT_READY) {
        // What other threads enqueue there from now on is not waited for.
        const std::lock_guard lock(share.mutex);
        if (!work.marked) mark(work);
    }
    // One question that fails tells nothing of the piece, which may be under way. Where the context is lost, and nothing is
    // under way, all do.
    const bool failed = status != CUDA_SUCCESS && status != CUDA_ERROR_NOT_READY;
    const bool doubted = std::exchange(work.doubted, failed);
    if (status == CUDA_ERROR_NOT_READY || (failed && !doubted)) return std::nullopt;
    work.doubted = false;
    if (const auto failure = std::move(work.failure)) return failure->error;
    if (status == CUDA_SUCCESS) return Result<void>();
    return cuda.error(status, marked ? "cuEventQuery" : "cuStreamQuery", fmt::format("gpu:{}", gpu_));
}

}  // namespace sidestep::backends::cuda
