// Notices connections that ended, so that memory of dead processes is let go of although nobody asks for it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "peer/connection.hpp"

namespace sidestep::peer {

// Any thread may call. Its thread starts with the first connection.
class Watcher {
public:
    // `ended` is called on the watcher's thread, once for each connection, which is then no longer watched.
    explicit Watcher(std::function<void(const Connection&)> ended) : ended_(std::move(ended)) {}
    // No call of `ended` comes after it. Not to be destroyed by `ended`.
    ~Watcher();
    Watcher(const Watcher&) = delete;
    Watcher& operator=(const Watcher&) = delete;

    Result<void> add(std::shared_ptr<const Connection> connection);
    // The connection is closed soon after, unless somebody else holds it.
    void remove(const Connection& connection);

private:
    void watch();

    const std::function<void(const Connection&)> ended_;
    std::mutex mutex_;  // guards what follows
    std::vector<std::shared_ptr<const Connection>> connections_;
    bool stop_ = false;
    std::unique_ptr<driver::Waker> waker_;  // constant once the thread runs
    std::thread thread_;
};

}  // namespace sidestep::peer
