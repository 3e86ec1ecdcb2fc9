#include "transfer/engine.hpp"

#include <algorithm>

#include "base/log.hpp"
#include "base/try.hpp"

namespace sidestep::transfer {
namespace {

using Clock = std::chrono::steady_clock;

// How long a driver that sees nothing move waits before it looks again. A copy is looked at again and
// again from shortly before its expected end until well after it, so that the end is seen at once; at
// other times the core is left to those who move bytes.
class Backoff {
public:
    explicit Backoff(Clock::duration expected = {}) : expected_(expected) {}
    void moved() { since_ = Clock::now(); }
    // Zero: look again at once.
    std::chrono::microseconds next() {
        const auto still = Clock::now() - since_;
        const auto longest_look = std::chrono::microseconds(100) + expected_ / 2;
        if (still > expected_ + longest_look) return std::chrono::microseconds(100);
        // A sleep of 50 us lasts up to 110 (the kernel's timer slack), hence the early wake.
        if (still + std::chrono::microseconds(250) < expected_ * 9 / 10) return std::chrono::microseconds(50);
        std::this_thread::yield();
        return std::chrono::microseconds(0);
    }

private:
    Clock::duration expected_;
    Clock::time_point since_ = Clock::now();
};

struct Attending {
    explicit Attending(Activity& job) : job_(job) { job_.attended.fetch_add(1, std::memory_order_relaxed); }
    ~Attending() { job_.attended.fetch_sub(1, std::memory_order_relaxed); }
    Activity& job_;
};

// What Context::allocate gives at a place, for routes that are asked for without buffers.
route::End typical_end(const std::vector<backend::Offer>& offers, const Place& place) {
    if (place.is_file()) return {place, MemoryKind::storage};
    if (place.is_gpu()) return {place, MemoryKind::device};
    const bool pinned = std::any_of(offers.begin(), offers.end(), [](const backend::Offer& offer) {
        return offer.support.usable && offer.host_memory.has(MemoryKind::pinned);
    });
    return {place, pinned ? MemoryKind::pinned : MemoryKind::pageable};
}

}  // namespace

Engine::Engine(const Topology& topology, const backend::Registry& registry,
               std::chrono::milliseconds drain_limit)
    : topology_(topology), registry_(registry), drain_limit_(drain_limit), plans_(topology, registry), pool_(registry) {}

Engine::~Engine() {
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
    const auto give_up = Clock::now() + std::chrono::seconds(1);
    for (auto& job : jobs_) {
        job->cancel();
        while (!job->drained() && Clock::now() < give_up)
            if (!job->step(true)) std::this_thread::sleep_for(std::chrono::microseconds(100));
        if (job->drained()) continue;
        // A device still writes to memory that the job holds: freeing it would corrupt whatever comes next.
        base::log(base::LogLevel::error, "a copy still hangs at the end; its memory is kept");
        new std::shared_ptr<Activity>(job);
    }
}

std::shared_ptr<Activity> Engine::submit(const Buffer& from, const Buffer& to, const CopyOptions& options,
                                    void* stream) {
    auto job = std::make_shared<Job>(Machine{topology_, registry_, plans_, pool_, drain_limit_}, options, stream);
    job->begin(from, to);
    if (job->needs_driving()) enroll(job);
    return job;
}

bool Engine::wait(const std::shared_ptr<Activity>& job, std::chrono::nanoseconds limit) {
    if (job->finished()) return true;
    const Attending attending(*job);
    const auto until = Clock::now() + limit;
    Backoff backoff(job->expected());
    while (!job->finished()) {
        const bool moved = job->step(true);
        if (job->finished()) break;
        // Also while bytes move: who waits for a time wants to look at the copy then, or to cancel it.
        if (limit.count() > 0 && Clock::now() >= until) return false;
        if (moved) {
            backoff.moved();
            continue;
        }
        if (const auto pause = backoff.next(); pause.count() > 0) std::this_thread::sleep_for(pause);
    }
    settle(job);
    return true;
}

bool Engine::poll(const std::shared_ptr<Activity>& job) {
    if (!job->finished()) job->try_step(false);
    if (!job->finished()) return false;
    settle(job);
    return true;
}

// A job that reported while pieces hang goes on to be driven until they end.
void Engine::settle(const std::shared_ptr<Activity>& job) {
    if (!job->drained()) enroll(job);
}

void Engine::enroll(std::shared_ptr<Activity> job) {
    {
        std::lock_guard lock(mutex_);
        if (std::find(jobs_.begin(), jobs_.end(), job) != jobs_.end()) return;
        jobs_.push_back(std::move(job));
        if (!thread_.joinable()) thread_ = std::thread([this] { drive(); });
    }
    wake_.notify_one();
}

void Engine::drive() {
    Backoff backoff;
    std::vector<std::shared_ptr<Activity>> jobs;
    std::unique_lock lock(mutex_);
    while (!stop_) {
        std::erase_if(jobs_, [](const auto& job) { return job->finished() && job->drained(); });
        jobs = jobs_;
        if (jobs.empty()) {
            wake_.wait(lock);
            backoff.moved();
            continue;
        }
        lock.unlock();
        bool moved = false;
        for (auto& job : jobs)
            if (job->attended.load(std::memory_order_relaxed) == 0) moved |= job->try_step(true);
        jobs.clear();
        if (moved) backoff.moved();
        const auto pause = moved ? std::chrono::microseconds(0) : backoff.next();
        lock.lock();
        if (pause.count() > 0 && !stop_) wake_.wait_for(lock, pause);
    }
}

Result<Route> Engine::route(const Buffer& from, const Buffer& to, const CopyOptions& options) {
    SIDESTEP_TRY(const Ends ends, resolve_ends(topology_, registry_, from, to));
    SIDESTEP_TRY(auto plan, plans_.get({ends.from_end, ends.to_end, ends.bytes, options.require,
                                        options.prefer, options.max_staging}));
    return plan->route;
}

Result<Route> Engine::route(const Place& from, const Place& to, Bytes bytes, const CopyOptions& options) {
    for (const Place* place : {&from, &to}) SIDESTEP_CHECK(check_place(topology_, *place));
    SIDESTEP_TRY(auto plan, plans_.get({typical_end(registry_.offers(), from),
                                        typical_end(registry_.offers(), to), bytes, options.require,
                                        options.prefer, options.max_staging}));
    return plan->route;
}

}  // namespace sidestep::transfer
