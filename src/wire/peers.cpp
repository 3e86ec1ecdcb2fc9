#include "wire/peers.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::wire {

// A handler that ran meanwhile may have seen its peer before the end, and have it connect again: that sees the end now. After the loop
// no other comes.
Peers::~Peers() {
    close();
    if (loop_) loop_->end();
    asking_.wait();
    workers_.wait();
}

void Peers::close() {
    std::map<std::string, std::shared_ptr<Entry>> entries;
    std::vector<std::weak_ptr<Peer>> all;
    {
        std::lock_guard lock(mutex_);
        closed_ = true;
        entries.swap(entries_);
        all.swap(all_);
    }
    const Error why{ErrorCode::cancelled, "the connection was closed on this side", "network", {}};
    for (const auto& weak : all) {
        const auto peer = weak.lock();
        if (!peer) continue;
        peer->close(why);
        if (const auto session = peer->session()) session->link()->end(why);
    }
    asking_.wait();
    workers_.wait();
}

// With the mutex held.
Result<const Peer::Tools*> Peers::tools() {
    if (closed_) return Error{ErrorCode::cancelled, "connections to nodes have been closed", "network", {}};
    if (tools_) return tools_.get();
    SIDESTEP_TRY(auto tls, driver::Tls::load());
    SIDESTEP_TRY(std::string key, key_());
    if (!loop_) {
        SIDESTEP_TRY(loop_, driver::EventLoop::create("connections to nodes"));
    }
    tools_.reset(new Peer::Tools{*loop_, *engines_, workers_, std::move(tls), std::move(key), node_});
    return tools_.get();
}

Result<std::shared_ptr<Peers::Entry>> Peers::entry(const NodeAddress& address) {
    std::lock_guard lock(mutex_);
    if (const auto found = entries_.find(address.name); found != entries_.end()) return found->second;
    if (entries_.size() >= most_)
        std::erase_if(entries_, [](const auto& one) {
            return one.second.use_count() == 1 && (!one.second->peer || one.second->peer->end());
        });
    if (entries_.size() >= most_)
        return Error{
            ErrorCode::out_of_memory, fmt::format("{} nodes are connected already", most_), "network", {}};
    auto made = std::make_shared<Entry>();
    made->address = address;
    entries_.emplace(address.name, made);
    return made;
}

std::shared_ptr<Peer> Peers::known(Entry& entry, const NodeAddress& address) const {
    std::lock_guard lock(mutex_);
    entry.used = std::chrono::steady_clock::now();
    return entry.peer && entry.address == address && !entry.peer->end() ? entry.peer : nullptr;
}

void Peers::close_idle(std::chrono::milliseconds limit) {
    const auto now = std::chrono::steady_clock::now();
    std::vector<std::shared_ptr<Peer>> idle;
    {
        std::lock_guard lock(mutex_);
        std::erase_if(entries_, [&](const auto& one) {
            auto& [name, entry] = one;
            if (entry.use_count() > 1 || (entry->peer && entry->peer.use_count() > 1)) entry->used = now;
            if (now - entry->used <= limit) return false;
            if (entry->peer) idle.push_back(std::move(entry->peer));
            return true;
        });
    }
    // To end a link may take a while.
    for (auto& peer : idle)
        static_cast<void>(workers_.add([peer = std::move(peer)] {
            const Error why{ErrorCode::cancelled, "nobody needs the connection any more", "network", {}};
            peer->close(why);
            if (const auto session = peer->session()) session->link()->end(why);
        }));
}

std::shared_ptr<Peer> Peers::find(const std::string& node) const {
    std::lock_guard lock(mutex_);
    const auto found = entries_.find(node);
    if (found == entries_.end()) return nullptr;
    const auto& peer = found->second->peer;
    return peer && !peer->end() ? peer : nullptr;
}

Result<std::shared_ptr<Peer>> Peers::get(const NodeAddress& address) {
    SIDESTEP_TRY(const auto one, entry(address));
    if (auto peer = known(*one, address)) return peer;
    const auto came = std::chrono::steady_clock::now();
    std::lock_guard connecting(one->connecting);
    if (auto peer = known(*one, address)) return peer;
    // Each that waited would try for as long again, one after the other.
    if (one->failed && one->failed_at >= came && one->tried == address) return *one->failed;
    const Peer::Tools* with = nullptr;
    {
        std::lock_guard lock(mutex_);
        const auto had = tools();
        if (!had) {
            Error error = had.error();
            error.message = fmt::format("{} is not reached: {}", address.name, error.message);
            return error;
        }
        with = *had;
    }
    auto made = Peer::connect(*with, address, in_time());
    if (!made) {
        one->failed = made.error();
        one->failed_at = std::chrono::steady_clock::now();
        one->tried = address;
        return made;
    }
    auto peer = std::move(*made);
    std::shared_ptr<Peer> before;  // goes without the mutex
    {
        std::lock_guard lock(mutex_);
        if (!closed_) {
            one->address = address;
            before = std::exchange(one->peer, peer);
            std::erase_if(all_, [](const auto& weak) { return weak.expired(); });
            all_.push_back(peer);
            used_.store(true, std::memory_order_release);
            return peer;
        }
    }
    const Error why{ErrorCode::cancelled, "connections to nodes have been closed", "network", {}};
    peer->close(why);
    if (const auto session = peer->session()) session->link()->end(why);
    return why;
}

// The link's threads tell of ends; a look by whoever waits is quicker.
void Peers::look() const {
    if (!used_.load(std::memory_order_acquire)) return;
    std::vector<std::shared_ptr<Session>> sessions;
    {
        std::lock_guard lock(mutex_);
        for (const auto& [name, one] : entries_)
            if (auto session = one->peer ? one->peer->session() : nullptr; session && session->worth_a_look())
                sessions.push_back(std::move(session));
    }
    for (const auto& session : sessions) session->link()->look();
}

void Peers::go_on_with_slots() const {
    std::vector<std::shared_ptr<Peer>> all;
    {
        std::lock_guard lock(mutex_);
        for (const auto& weak : all_)
            if (auto peer = weak.lock()) all.push_back(std::move(peer));
    }
    for (const auto& peer : all)
        if (const auto session = peer->session()) session->go_on_with_slots();
}

}  // namespace sidestep::wire
