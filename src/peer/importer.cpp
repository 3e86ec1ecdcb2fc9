#include "peer/importer.hpp"

#include <poll.h>

#include <algorithm>

#include <fmt/format.h>

#include "base/thread.hpp"
#include "base/try.hpp"

namespace sidestep::peer {

Importer::~Importer() {
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
    }
    tidy();
    if (thread_.joinable()) thread_.join();
}

void Importer::tidy() {
    std::lock_guard lock(mutex_);
    if (waker_) waker_->wake();
}

Result<Offered> Importer::find(const Folder& folder, const std::string& name, Connection::Time until) {
    SIDESTEP_CHECK(check_name(name));
    std::shared_ptr<Connection> connection;
    const auto ask = [&]() -> Result<Offered> {
        SIDESTEP_TRY(connection, connect(folder.socket_of(name), until));
        return connection->ask(name, until);
    };
    const auto absent = [](const auto& result) {
        return !result && result.error().code == ErrorCode::not_found;
    };
    auto found = ask();
    // The connection may have ended before, and the publisher be there.
    if (absent(found) && connection && connection->closed()) found = ask();
    if (found) {
        found->connection = std::move(connection);
        return found;
    }
    // The watching thread, once awake, drops a connection that has no users.
    connection.reset();
    tidy();
    if (!absent(found)) return found;
    (void)folder.tidy(name);
    return Error{ErrorCode::not_found,
                 fmt::format("nothing is published as {}: {}", name, found.error().message), folder.path(),
                 "is its process running, and does it use the same folder (SIDESTEP_PEER_FOLDER)?"};
}

// With the mutex held.
Result<void> Importer::start() {
    if (thread_.joinable()) return {};
    SIDESTEP_TRY(driver::Waker waker, driver::Waker::create());
    waker_ = std::make_shared<const driver::Waker>(std::move(waker));
    SIDESTEP_TRY(thread_, base::start_thread([this] { watch(); }, "published memory"));
    return {};
}

// With the mutex held.
std::shared_ptr<Connection> Importer::known(const std::string& socket) const {
    const auto found = std::find_if(connections_.begin(), connections_.end(),
                                    [&](const auto& one) { return one->leads_to(socket); });
    return found == connections_.end() ? nullptr : *found;
}

Result<std::shared_ptr<Connection>> Importer::connect(const std::string& path, Connection::Time until) {
    {
        std::lock_guard lock(mutex_);
        SIDESTEP_CHECK(start());
        if (auto connection = known(file_id(path))) return connection;
    }
    SIDESTEP_TRY(auto connection, Connection::open(path, until, waker_));
    {
        std::lock_guard lock(mutex_);
        connections_.push_back(connection);
        waker_->wake();
    }
    const auto entered = connection->enter(until);
    std::lock_guard lock(mutex_);
    // Another thread may have been quicker.
    auto first = entered ? known(file_id(path)) : nullptr;
    if (entered && (!first || first == connection)) return connection;
    connection = std::move(first);
    waker_->wake();
    if (!entered) return entered.error();
    return connection;
}

void Importer::watch() {
    std::vector<pollfd> polled;
    // Held while they are polled, so that no descriptor is closed and given out again meanwhile.
    std::vector<std::shared_ptr<Connection>> held;
    std::unique_lock lock(mutex_);
    while (!stop_) {
        bool news = false;
        std::erase_if(connections_, [&](const auto& one) {
            const bool over = one->closed() || one.use_count() == 1;
            news |= one->take_news();
            return over;
        });
        if (news) {
            lock.unlock();
            ended_();
            lock.lock();
            continue;
        }
        held = connections_;
        lock.unlock();
        polled.assign(1, {waker_->number(), POLLIN, 0});
        for (const auto& connection : held) {
            polled.push_back({connection->number(), POLLIN, 0});
            polled.push_back({connection->process(), POLLIN, 0});
        }
        ::poll(polled.data(), polled.size(), -1);
        if (polled[0].revents != 0) waker_->clear();
        for (const auto& connection : held) connection->listen();
        held.clear();
        lock.lock();
    }
}

}  // namespace sidestep::peer
