// The control connection of two machines: messages under TLS, and signs of life.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "driver/event_loop.hpp"
#include "driver/tcp_socket.hpp"
#include "driver/tls.hpp"

namespace sidestep::wire {

// Any thread. Lives in a shared_ptr, and goes on until it is closed.
class Channel : public std::enable_shared_from_this<Channel> {
public:
    using Clock = std::chrono::steady_clock;
    // Who says nothing says this often that it lives, and is taken for dead after that time.
    static constexpr std::chrono::milliseconds heartbeat{1000};
    static constexpr std::chrono::milliseconds silence{5000};

    // Both are called on the loop's thread, one at a time; `ended` once, and last.
    struct Handlers {
        std::function<void(std::string message)> message;
        std::function<void(Error)> ended;
    };

    // `peer`: the other machine's name, for errors. `first`: what has come already.
    static Result<std::shared_ptr<Channel>> start(driver::EventLoop& loop, driver::TcpSocket socket,
                                                  driver::TlsSession tls, std::string peer, Handlers handlers,
                                                  std::string_view first = {});
    ~Channel() = default;
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;

    // At most longest_message bytes. Dropped where the channel has ended.
    void send(std::string_view message);
    // Both ends see it. `why` is what `ended` is told, unless it has been called before.
    void close(Error why);
    // The other end has shown that it has the key.
    bool established() const;
    // Its descriptor, open as long as the channel is there.
    int socket() const { return socket_.number(); }

private:
    Channel(driver::EventLoop& loop, driver::TcpSocket socket, driver::TlsSession tls, std::string peer)
        : loop_(loop), socket_(std::move(socket)), tls_(std::move(tls)), peer_(std::move(peer)) {}

    // What the other end may leave unread.
    static constexpr std::size_t most_unsent = std::size_t{4} << 20;

    void ready(driver::EventLoop::Ready ready);
    Result<void> receive();
    Result<void> take_in(std::string_view wire);
    Result<std::optional<std::string>> next_message();
    void flush();
    Result<void> flush_locked();
    void tick();
    void finish(const Error& why);

    driver::EventLoop& loop_;
    const driver::TcpSocket socket_;
    mutable std::mutex mutex_;  // guards what follows, but for what is said of it
    driver::TlsSession tls_;
    const std::string peer_;
    Handlers handlers_;  // the loop's thread alone
    driver::EventLoop::Id watch_ = 0;
    driver::EventLoop::Id timer_ = 0;
    std::string plain_;  // decrypted, and not a whole message yet; the loop's thread alone
    std::string unsent_;
    bool waits_for_room_ = false;
    std::optional<Error> end_;
    Clock::time_point sent_ = Clock::now();
    Clock::time_point heard_ = Clock::now();
};

}  // namespace sidestep::wire
