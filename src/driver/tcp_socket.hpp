// TCP over IPv4 and IPv6. No call here blocks past the time it is given.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>
#include "driver/fd.hpp"

namespace sidestep::driver {

// Where a socket is, or shall be: a value.
class SocketAddress {
public:
    // What the machine's resolver answers for a name or a number ("10.0.0.2", "::1", "node7"); at least one.
    // ErrorCode::not_found where it knows none, timed_out where it has not answered in that time. Zero: may block as long
    // as the resolver does.
    static Result<std::vector<SocketAddress>> resolve(const std::string& host, std::uint16_t port,
                                                      std::chrono::milliseconds limit = {});

    std::uint16_t port() const;
    // 127.0.0.0/8, ::1.
    bool loopback() const;
    // "10.0.0.2:47900", "[::1]:47900".
    std::string to_string() const;

private:
    friend class TcpConnects;
    friend class TcpSocket;
    friend class TcpListener;
    static Result<std::vector<SocketAddress>> look_up(const std::string& host, std::uint16_t port, int flags);
    std::vector<unsigned char> bytes_;  // a sockaddr
};

// One end of a connection. Does not wait where nothing is said of a time. Nagle's algorithm is off.
class TcpSocket {
public:
    using Time = std::chrono::steady_clock::time_point;

    explicit TcpSocket(Fd fd) : fd_(std::move(fd)) {}

    // ErrorCode::not_found where nothing listens, io_error where the network has no route, timed_out where no
    // answer comes.
    static Result<TcpSocket> connect(const SocketAddress& to, Time until);

    int number() const { return fd_.get(); }
    Fd take() && { return std::move(fd_); }
    Result<SocketAddress> local() const;
    Result<SocketAddress> peer() const;

    struct Part {
        const void* data = nullptr;
        Bytes size = 0;
    };
    // Sends as much of the parts, in their order, as is taken at once; 0: nothing is at present. At most 256 parts.
    // ErrorCode::io_error where the connection has ended, with the system's words.
    Result<Bytes> send(std::span<const Part> parts) const;
    // Bytes that have come, at most `size`; nothing: none are there at present; 0: the other end says no more.
    // ErrorCode::io_error where the connection has ended otherwise.
    Result<std::optional<Bytes>> receive(void* to, Bytes size) const;
    // The same into parts, in their order; at most 256.
    struct Room {
        void* data = nullptr;
        Bytes size = 0;
    };
    Result<std::optional<Bytes>> receive(std::span<const Room> parts) const;

    // Waits until all is sent, or all of `size` has come. timed_out, io_error, end_of_file.
    Result<void> send_all(const void* data, Bytes size, Time until) const;
    Result<void> receive_all(void* to, Bytes size, Time until) const;

    // The round trip as the kernel has measured it so far; nothing where it has not.
    std::optional<std::chrono::microseconds> round_trip() const;
    // At most so many bytes wait in the kernel in each direction, instead of as many as it finds good. Best effort.
    void bound_buffers(Bytes bytes) const;

    // How long nothing was heard of the other end, while bytes that were sent wait for a sign that they came; nothing while
    // none do. A receiver that takes nothing gives signs all the same.
    std::optional<std::chrono::milliseconds> unheard() const;
    // Where nothing is sent for so long, the kernel asks whether the other end is there, and ends the connection if it is
    // not. Best effort.
    void keep_alive(std::chrono::seconds idle) const;

    // Both ends see the end of the connection from now on. The descriptor stays open until the destructor.
    void shut_down() const;

private:
    Fd fd_;
};

// Connections that are being made side by side.
class TcpConnects {
public:
    // Begins one, which is known by that number from now on.
    void begin(const SocketAddress& to, std::size_t number);

    struct Ended {
        std::size_t number = 0;
        SocketAddress to;
        Result<TcpSocket> socket;  // as TcpSocket::connect()
    };
    // One that has come about, or failed; nothing: none has by then. `give_up`: one from which no answer has come by then
    // has failed too.
    std::optional<Ended> next(TcpSocket::Time until, bool give_up);

private:
    struct One {
        std::size_t number = 0;
        SocketAddress to;
        Fd fd{};
        std::optional<Error> failed{};
    };
    static Result<TcpSocket> finished(One one);
    std::vector<One> all_;
};

class TcpListener {
public:
    // Port 0: any that is free. ErrorCode::permission_denied, invalid_argument (in use), unsupported (not this machine's
    // address, or of a kind that it does not have).
    static Result<TcpListener> bind(const SocketAddress& at);

    int number() const { return fd_.get(); }
    Result<SocketAddress> local() const;
    // The next client; nothing where none waits, or the one that waited is gone. out_of_memory where there is
    // no descriptor left: the client then goes on waiting.
    Result<std::optional<TcpSocket>> accept() const;

private:
    explicit TcpListener(Fd fd) : fd_(std::move(fd)) {}
    Fd fd_;
};

}  // namespace sidestep::driver
