#include "base/blocking_calls.hpp"

#include <cstdint>
#include <utility>

#include "base/thread.hpp"

namespace sidestep::base {

// Threads that are kept for the next call.
constexpr std::size_t kept_idle = 4;

struct BlockingCalls::Worker {
    std::condition_variable wake, ended;
    std::function<void()> call;  // empty: it is idle
    std::uint64_t number = 0;    // calls that it was given,
    std::uint64_t over = 0;      // and that have ended
};

struct BlockingCalls::Shared {
    std::mutex mutex;  // guards all, and what workers hold
    std::vector<std::shared_ptr<Worker>> idle;
    std::size_t threads = 0;
    std::condition_variable fewer;  // threads
    bool stop = false;
};

BlockingCalls::BlockingCalls() : shared_(std::make_shared<Shared>()) {}

BlockingCalls::~BlockingCalls() {
    std::unique_lock lock(shared_->mutex);
    shared_->stop = true;
    for (const auto& worker : shared_->idle) worker->wake.notify_one();
    shared_->fewer.wait(lock, [this] { return shared_->threads == 0; });
}

bool BlockingCalls::make(std::function<void()> call, std::chrono::nanoseconds patience) {
    std::unique_lock lock(shared_->mutex);
    std::shared_ptr<Worker> worker;
    if (!shared_->idle.empty()) {
        worker = std::move(shared_->idle.back());
        shared_->idle.pop_back();
        worker->call = std::move(call);
        worker->wake.notify_one();
    } else {
        worker = std::make_shared<Worker>();
        worker->call = call;
        auto started =
            start_thread([shared = shared_, worker] { work(shared, worker); }, "calls that may block");
        if (!started) {
            lock.unlock();
            call();
            return true;
        }
        ++shared_->threads;
        started->detach();
    }
    // It may have begun another one by then.
    const std::uint64_t mine = ++worker->number;
    return worker->ended.wait_for(lock, patience, [&] { return worker->over >= mine; });
}

void BlockingCalls::work(const std::shared_ptr<Shared>& shared, const std::shared_ptr<Worker>& worker) {
    std::unique_lock lock(shared->mutex);
    for (;;) {
        worker->wake.wait(lock, [&] { return shared->stop || worker->call; });
        if (!worker->call) break;
        lock.unlock();
        worker->call();
        worker->call = nullptr;  // by nobody else: it is not idle
        lock.lock();
        ++worker->over;
        worker->ended.notify_all();
        if (shared->stop || shared->idle.size() == kept_idle) break;
        shared->idle.push_back(worker);
    }
    --shared->threads;
    shared->fewer.notify_all();
}

}  // namespace sidestep::base
