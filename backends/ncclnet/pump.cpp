#include "backends/ncclnet/pump.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/kept.hpp"
#include "base/thread.hpp"
#include "base/try.hpp"

namespace sidestep::backends::ncclnet {
namespace {

using Clock = std::chrono::steady_clock;

// A message of a megabyte takes less on a quick network.
constexpr auto without_pause = std::chrono::microseconds(200);
constexpr auto longest_pause = std::chrono::microseconds(1000);

}  // namespace

Result<std::shared_ptr<Pump>> Pump::start() {
    auto pump = std::make_shared<Pump>();
    // Held until its id is written.
    const std::lock_guard lock(pump->mutex_);
    SIDESTEP_TRY(pump->thread_, base::start_thread([pump] { pump->run(); }, "the ncclnet engine"));
    pump->id_ = pump->thread_.get_id();
    return pump;
}

bool Pump::post(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    if (ended_) return false;
    tasks_.push_back(std::move(task));
    wake_.notify_one();
    return true;
}

bool Pump::call(std::function<void()> task, std::chrono::milliseconds patience) {
    if (here()) return task(), true;
    struct Call {
        std::mutex mutex;
        std::condition_variable over;
        bool made = false;
    };
    const auto call = std::make_shared<Call>();
    const bool posted = post([call, work = std::move(task)] {
        work();
        const std::lock_guard lock(call->mutex);
        call->made = true;
        call->over.notify_all();
    });
    if (!posted) return false;
    std::unique_lock lock(call->mutex);
    const bool made = call->over.wait_for(lock, patience_now(patience), [&] { return call->made; });
    if (!made) hangs();
    return made;
}

bool Pump::end(std::chrono::milliseconds patience) {
    if (!thread_.joinable()) return true;
    bool over = false;
    {
        std::unique_lock lock(mutex_);
        ending_ = true;
        wake_.notify_one();
        over = !here() && over_.wait_for(lock, patience_now(patience), [this] { return ended_; });
    }
    if (over) {
        thread_.join();
        return true;
    }
    hangs();
    thread_.detach();
    base::keep(shared_from_this());
    return false;
}

std::chrono::milliseconds Pump::away() const {
    const auto since = away_since_.load();
    if (since == 0) return {};
    return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() -
                                                                 Clock::time_point(Clock::duration(since)));
}

void Pump::remove(const Client* client) {
    std::erase_if(clients_, [&](const auto& one) { return one.get() == client; });
}

void Pump::forget(std::uint64_t range) {
    for (const auto& client : clients_) client->forget(range);
}

// What was posted by now. False where that was the last.
bool Pump::take_tasks() {
    std::deque<std::function<void()>> tasks;
    {
        const std::lock_guard lock(mutex_);
        // Those that are left are being closed.
        if (tasks_.empty() && ending_ && clients_.empty()) return false;
        tasks.swap(tasks_);
    }
    if (!tasks.empty()) moved_ = Clock::now();
    away_since_.store(Clock::now().time_since_epoch().count());
    for (; !tasks.empty(); tasks.pop_front()) tasks.front()();
    return true;
}

void Pump::run() {
    while (take_tasks()) {
        hangs_.store(false);
        away_since_.store(Clock::now().time_since_epoch().count());
        Progress most = Progress::nothing;
        // An entry may be removed in its turn, or another one may: none is skipped for that.
        const auto all = clients_;
        for (const auto& client : all) most = std::max(most, client->turn());
        pause(most);
    }
    const std::lock_guard lock(mutex_);
    ended_ = true;
    over_.notify_all();
}

void Pump::pause(Progress progress) {
    const auto now = Clock::now();
    away_since_.store(0);
    if (progress == Progress::moved) moved_ = now;
    std::unique_lock lock(mutex_);
    const auto called = [this] { return !tasks_.empty() || ending_; };
    if (progress == Progress::nothing && !ending_) return wake_.wait(lock, called);
    const auto since = now - moved_;
    if (since >= without_pause) {
        wake_.wait_for(lock, std::min<Clock::duration>(since / 4, longest_pause), called);
        return;
    }
    lock.unlock();
    std::this_thread::yield();
}

}  // namespace sidestep::backends::ncclnet
