#include "backends/cuda/in_flight.hpp"

#include <utility>

#include <fmt/format.h>

namespace sidestep::backends::cuda {

InFlight::~InFlight() {
    driver::ScopedCudaContext current(*context_);
    for (const Enqueued& work : all_) context_->cuda().cuEventDestroy(work.event);
}

Result<Enqueued*> InFlight::take() {
    const std::lock_guard lock(mutex_);
    if (free_ != nullptr) {
        Enqueued* work = free_;
        free_ = std::exchange(work->next, nullptr);
        return work;
    }
    if (all_.size() >= max_in_flight)
        return Error{ErrorCode::device_error, fmt::format("{} pieces are in flight already", max_in_flight),
                     fmt::format("gpu:{}", gpu_), "wait for some of them"};
    CUevent event = nullptr;
    const driver::Cuda& cuda = context_->cuda();
    const CUresult status = cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (status != CUDA_SUCCESS) return cuda.error(status, "cuEventCreate");
    return &all_.emplace_back(Enqueued{event});
}

void InFlight::give_back(Enqueued* work) {
    const std::lock_guard lock(mutex_);
    work->next = free_;
    free_ = work;
}

void InFlight::add(Enqueued* work, CUstream stream) {
    // The default streams of all threads share one name, and each has its own order.
    const CUstream key = stream == CU_STREAM_PER_THREAD ? reinterpret_cast<CUstream>(work) : stream;
    const std::lock_guard lock(mutex_);
    Queue& queue = queues_[key];
    (queue.first == nullptr ? queue.first : queue.last->next) = work;
    queue.last = work;
    count_.fetch_add(1, std::memory_order_relaxed);
}

bool InFlight::look() {
    if (count_.load(std::memory_order_relaxed) == 0) return false;
    std::vector<Ended> ended;
    {
        const std::unique_lock looking(looking_, std::try_to_lock);
        if (!looking.owns_lock()) return true;
        std::vector<Queue*> busy;
        {
            const std::lock_guard lock(mutex_);
            if (queues_.size() > max_idle_queues)
                std::erase_if(queues_, [](const auto& entry) { return entry.second.first == nullptr; });
            for (auto& [stream, queue] : queues_)
                if (queue.first != nullptr) busy.push_back(&queue);
        }
        driver::ScopedCudaContext current(*context_);
        for (Queue* queue : busy) look_at(*queue, ended);
    }
    for (Ended& each : ended) each.flight->end(std::move(each.result));
    return count_.load(std::memory_order_relaxed) > 0;
}

// No other thread takes anything off the queue: its first element stays the same meanwhile.
void InFlight::look_at(Queue& queue, std::vector<Ended>& ended) {
    std::unique_lock lock(mutex_);
    while (queue.first != nullptr) {
        Enqueued& work = *queue.first;
        lock.unlock();
        auto result = outcome(work);
        lock.lock();
        if (!result) return;
        ended.push_back({work.flight, std::move(*result)});
        queue.first = std::exchange(work.next, free_);
        free_ = &work;
        count_.fetch_sub(1, std::memory_order_relaxed);
    }
}

// Nothing while it is in flight.
std::optional<Result<void>> InFlight::outcome(Enqueued& work) const {
    const driver::Cuda& cuda = context_->cuda();
    const bool unmarked = work.failure && work.failure->unmarked;
    const CUresult status =
        unmarked ? cuda.cuStreamQuery(*work.failure->unmarked) : cuda.cuEventQuery(work.event);
    // One question that fails tells nothing of the piece, which may be under way. Where the context is lost, and nothing is
    // under way, all do.
    const bool failed = status != CUDA_SUCCESS && status != CUDA_ERROR_NOT_READY;
    const bool doubted = std::exchange(work.doubted, failed);
    if (status == CUDA_ERROR_NOT_READY || (failed && !doubted)) return std::nullopt;
    work.doubted = false;
    if (const auto failure = std::move(work.failure)) return failure->error;
    if (status == CUDA_SUCCESS) return Result<void>();
    return cuda.error(status, "cuEventQuery", fmt::format("gpu:{}", gpu_));
}

}  // namespace sidestep::backends::cuda
