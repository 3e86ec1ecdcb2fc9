#include "peer/watcher.hpp"

#include <poll.h>

#include "base/thread.hpp"
#include "base/try.hpp"

namespace sidestep::peer {

Watcher::~Watcher() {
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
    }
    if (waker_) waker_->wake();
    if (thread_.joinable()) thread_.join();
}

Result<void> Watcher::add(std::shared_ptr<const Connection> connection) {
    std::lock_guard lock(mutex_);
    if (!thread_.joinable()) {
        SIDESTEP_TRY(driver::Waker waker, driver::Waker::create());
        waker_ = std::make_unique<driver::Waker>(std::move(waker));
        SIDESTEP_TRY(thread_, base::start_thread([this] { watch(); }, "published memory"));
    }
    connections_.push_back(std::move(connection));
    waker_->wake();
    return {};
}

void Watcher::remove(const Connection& connection) {
    std::lock_guard lock(mutex_);
    std::erase_if(connections_, [&](const auto& watched) { return watched.get() == &connection; });
    if (waker_) waker_->wake();
}

void Watcher::watch() {
    std::vector<pollfd> polled;
    // Held while they are polled, so that no descriptor is closed and given out again meanwhile.
    std::vector<std::shared_ptr<const Connection>> held;
    std::unique_lock lock(mutex_);
    while (!stop_) {
        held = connections_;
        lock.unlock();
        polled.assign(1, {waker_->number(), POLLIN, 0});
        for (const auto& connection : held) polled.push_back({connection->number(), POLLIN, 0});
        ::poll(polled.data(), polled.size(), -1);
        if (polled[0].revents != 0) waker_->clear();
        for (std::size_t i = 1; i < polled.size(); ++i) {
            if (polled[i].revents == 0) continue;
            remove(*held[i - 1]);
            ended_(*held[i - 1]);
        }
        held.clear();
        lock.lock();
    }
}

}  // namespace sidestep::peer
