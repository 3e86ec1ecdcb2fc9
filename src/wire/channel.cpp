#include "wire/channel.hpp"

#include <array>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "wire/messages.hpp"

namespace sidestep::wire {

Result<std::shared_ptr<Channel>> Channel::start(driver::EventLoop& loop, driver::TcpSocket socket,
                                                driver::TlsSession tls, std::string peer, Handlers handlers,
                                                std::string_view first) {
    std::shared_ptr<Channel> channel(new Channel(loop, std::move(socket), std::move(tls), std::move(peer)));
    channel->handlers_ = std::move(handlers);
    {
        // Its handlers wait until they know what they are called.
        std::lock_guard lock(channel->mutex_);
        // The loop holds the channel until it has ended.
        SIDESTEP_TRY(channel->watch_,
                     loop.add(channel->socket_.number(), true, false,
                              [channel](driver::EventLoop::Ready ready) { channel->ready(ready); }));
        channel->timer_ = loop.every(heartbeat, [channel] { channel->tick(); });
    }
    loop.post([channel, first = std::string(first)] {
        if (auto taken = first.empty() ? Result<void>() : channel->take_in(first); !taken)
            channel->close(taken.error());
        channel->flush();
    });
    return channel;
}

void Channel::ready(driver::EventLoop::Ready ready) {
    if (ready.out) flush();
    if (!ready.in && !ready.ended) return;
    if (auto received = receive(); !received) close(received.error());
}

Result<void> Channel::receive() {
    std::array<char, 16384> bytes;
    SIDESTEP_TRY(const auto came, socket_.receive(bytes.data(), bytes.size()));
    if (!came) return {};
    if (*came == 0)
        return Error{ErrorCode::io_error, fmt::format("{} has closed the connection", peer_), "control", {}};
    return take_in({bytes.data(), *came});
}

Result<void> Channel::take_in(std::string_view wire) {
    {
        std::lock_guard lock(mutex_);
        if (end_) return {};
        const auto taken = tls_.take_in(wire);
        // What tells the other end of a failure goes out too.
        if (auto sent = flush_locked(); taken && !sent) return sent;
        SIDESTEP_CHECK(taken);
        plain_ += tls_.read();
        if (tls_.established()) heard_ = Clock::now();
    }
    while (true) {
        SIDESTEP_TRY(auto message, next_message());
        if (!message) return {};
        if (!message->empty()) handlers_.message(std::move(*message));
    }
}

Result<std::optional<std::string>> Channel::next_message() {
    std::uint32_t size = 0;
    if (plain_.size() < sizeof(size)) return std::optional<std::string>();
    std::memcpy(&size, plain_.data(), sizeof(size));
    if (size > longest_message)
        return Error{
            ErrorCode::io_error, fmt::format("{} sent a message that is too long", peer_), "control", {}};
    if (plain_.size() - sizeof(size) < size) return std::optional<std::string>();
    std::optional<std::string> message(plain_.substr(sizeof(size), size));
    plain_.erase(0, sizeof(size) + size);
    return message;
}

void Channel::send(std::string_view message) {
    const auto size = static_cast<std::uint32_t>(message.size());
    Result<void> sent;
    {
        std::lock_guard lock(mutex_);
        if (end_) return;
        std::string framed(reinterpret_cast<const char*>(&size), sizeof(size));
        framed += message;
        sent = tls_.write(framed);
        if (sent) sent = flush_locked();
        sent_ = Clock::now();
    }
    if (!sent) close(sent.error());
}

void Channel::flush() {
    Result<void> sent;
    {
        std::lock_guard lock(mutex_);
        if (!end_) sent = flush_locked();
    }
    if (!sent) close(sent.error());
}

Result<void> Channel::flush_locked() {
    unsent_ += tls_.take_out();
    while (!unsent_.empty()) {
        const driver::TcpSocket::Part part{unsent_.data(), unsent_.size()};
        SIDESTEP_TRY(const Bytes gone, socket_.send({&part, 1}));
        if (gone == 0) break;
        unsent_.erase(0, gone);
    }
    if (unsent_.size() > most_unsent)
        return Error{
            ErrorCode::io_error, fmt::format("{} does not take what is sent to it", peer_), "control", {}};
    if (const bool wait = !unsent_.empty(); std::exchange(waits_for_room_, wait) != wait)
        loop_.change(watch_, true, wait);
    return {};
}

void Channel::tick() {
    const auto now = Clock::now();
    bool silent = false;
    bool beat = false;
    {
        std::lock_guard lock(mutex_);
        if (end_) return;
        silent = now - heard_ > silence;
        beat = tls_.established() && now - sent_ >= heartbeat;
    }
    if (silent)
        return close(Error{ErrorCode::timed_out,
                           fmt::format("nothing was heard of {} for {} s", peer_, silence.count() / 1000),
                           "control", "see whether the machine lives and is reached"});
    if (beat) send({});
}

void Channel::close(Error why) {
    {
        std::lock_guard lock(mutex_);
        if (end_) return;
        end_ = why;
        socket_.shut_down();
    }
    // On the loop's thread, and in none of its calls for this channel.
    loop_.post([self = shared_from_this(), why = std::move(why)] { self->finish(why); });
}

void Channel::finish(const Error& why) {
    loop_.remove(timer_);
    loop_.remove(watch_);
    const auto handlers = std::exchange(handlers_, {});
    if (handlers.ended) handlers.ended(why);
}

bool Channel::established() const {
    std::lock_guard lock(mutex_);
    return tls_.established();
}

}  // namespace sidestep::wire
