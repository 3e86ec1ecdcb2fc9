#include "backends/cufile/io_pool.hpp"

#include <system_error>

#include <fmt/format.h>

namespace sidestep::backends::cufile {

IoPool::~IoPool() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

bool IoPool::end() {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    waiting_.clear();
    wake_.notify_all();
    return work_ended_.wait_until(lock, last_begun_ + end_limit, [this] { return busy_ == 0; });
}

Result<backend::Ticket> IoPool::start(Work work) {
    const std::lock_guard lock(mutex_);
    if (jobs_.size() >= max_under_way)
        return Error{ErrorCode::device_error, fmt::format("{} pieces are in flight already", max_under_way),
                     "cufile", "wait for some of them"};
    if (busy_ + waiting_.size() >= threads_.size() && threads_.size() < max_threads_) {
        try {
            threads_.emplace_back([this] { run(); });
        } catch (const std::system_error&) {  // no more threads allowed: those that run do it all
            if (threads_.empty())
                return Error{ErrorCode::device_error, "no thread can be started", "cufile", "see ulimit -u"};
        }
    }
    const std::uint64_t id = next_++;
    jobs_[id].work = std::move(work);
    waiting_.push_back(id);
    wake_.notify_one();
    return backend::Ticket{id};
}

Result<backend::Progress> IoPool::poll(backend::Ticket ticket) {
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(ticket.id);
    if (found == jobs_.end())
        return Error{ErrorCode::internal, "a ticket was asked for that is not in flight", "cufile", {}};
    if (!found->second.result) return backend::Progress::pending;
    const Result<void> result = std::move(*found->second.result);
    jobs_.erase(found);
    if (!result) return result.error();
    return backend::Progress::done;
}

void IoPool::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
        if (waiting_.empty()) return;        // stopping, and all done
        Job& job = jobs_[waiting_.front()];  // stays where it is until poll() has seen its result
        waiting_.pop_front();
        ++busy_;
        last_begun_ = std::chrono::steady_clock::now();
        lock.unlock();
        Result<void> result = job.work();
        lock.lock();
        job.result.emplace(std::move(result));
        --busy_;
        if (stopping_) work_ended_.notify_all();
    }
}

}  // namespace sidestep::backends::cufile
